/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which memory that recorded streams hold back is free. A thread that polls a pending
 * list takes it out of its arena under the grow lock, so the holder of that lock always sees the
 * whole list. */
#ifndef DUCTILE_POOL_STREAMS_PENDING_H
#define DUCTILE_POOL_STREAMS_PENDING_H

#include "pool/blocks/arena.h"
#include "vmm/base/fault.h"

/* Frees the pending blocks whose recorded work is done. Pre: in relaxed mode. Grow lock held, index
 * lock not. */
void dpool_poll_pending_all(ductile_allocator *a, dpool_arena *arena);

/* Frees as many pending blocks as a hit may poll. Uses relaxed mode when it queries the driver.
 * Grow lock held, index lock not. */
void dpool_poll_pending_some(ductile_allocator *a, dpool_arena *arena);

/* Recounts the pending list of one arena (A7), and records the first invariant that does not hold
 * in *fault. Both locks held, and no plan under way. */
void dpool_pending_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                                dti_fault *fault);

#endif
