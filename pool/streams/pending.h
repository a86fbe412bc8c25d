/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that recorded streams hold back: finding out which of it is free. Who
 * polls a pending list takes it out of its arena under the grow lock: with that lock held, nothing
 * is missing. */
#ifndef DUCTILE_POOL_STREAMS_PENDING_H
#define DUCTILE_POOL_STREAMS_PENDING_H

#include "pool/blocks/arena.h"

/* Frees the pending blocks whose recorded work is done. Pre: in relaxed mode. Grow lock held, index
 * lock not. */
void dpool_poll_pending_all(ductile_allocator *a, dpool_arena *arena);

/* Of them as many as a hit may look for; in relaxed mode where it asks the driver. Grow lock
 * held, index lock not. */
void dpool_poll_pending_some(ductile_allocator *a, dpool_arena *arena);

#endif
