/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_POOL_STREAMS_CHECK_STREAMS_H
#define DUCTILE_POOL_STREAMS_CHECK_STREAMS_H

#include "pool/blocks/arena.h"
#include "vmm/base/fault.h"

/* Recounts the pending list of one arena (A7) and its markers under way (A6), and records the first
 * invariant that does not hold in *fault. Both locks held, and no plan under way. */
void dpool_streams_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                                dti_fault *fault);

/* Invariant A6 of the context markers under way. */
void dpool_marks_check_locked(const ductile_allocator *a, dti_fault *fault);

#endif
