/* SPDX-License-Identifier: Apache-2.0 */
/* The slow path: requests that no free block serves at once, and pressure when memory is short. */
#ifndef DUCTILE_POOL_GROW_H
#define DUCTILE_POOL_GROW_H

#include "pool/arena.h"
#include "vmm/capture.h"

/* Serves a request by moving or creating memory; waits for the GPU only when nothing else is left.
 * No lock held. Errors as ductile_alloc. */
ductile_status dpool_alloc_slow(ductile_allocator *a, uint64_t size, uint64_t requested,
                                ductile_stream stream, dpool_block **out);

/* Counts and logs a request that is refused. No lock held. */
void dpool_refuse(ductile_allocator *a, ductile_status status, uint64_t requested);

/* Takes the slow lock, and lets this thread's driver calls pass beside anybody's capture. */
dvmm_capture_mode dpool_slow_enter(ductile_allocator *a);
void dpool_slow_leave(ductile_allocator *a, dvmm_capture_mode mode);

#endif
