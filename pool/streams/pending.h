/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which memory that recorded streams hold back is free. A thread that polls a pending
 * list takes it out of its arena under the grow lock, so the holder of that lock always sees the
 * whole list. */
#ifndef DUCTILE_POOL_STREAMS_PENDING_H
#define DUCTILE_POOL_STREAMS_PENDING_H

#include "pool/blocks/arena.h"

/* Frees the pending blocks whose recorded work is done. Pre: in relaxed mode. Grow lock held, index
 * lock not. */
void dpool_poll_pending_all(ductile_allocator *a, dpool_arena *arena);

/* Frees as many pending blocks as a hit may poll. Uses relaxed mode when it queries the driver.
 * Grow lock held, index lock not. */
void dpool_poll_pending_some(ductile_allocator *a, dpool_arena *arena);

#endif
