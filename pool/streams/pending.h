/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that recorded streams hold back: finding out which of it is free, and waiting for it. Who
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

/*
 * Waits on the host for the oldest memory that recorded streams hold, `bytes` of it if there is so
 * much; of own (may be NULL) first. Returns how much was waited for: 0 when there is none, or none
 * that can be waited for. Linear in the blocks covered; a poll afterwards frees them, and without
 * one the next call would find them again. No lock held.
 */
uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes);

/* Markers of pending memory: as many waits, each for one, are enough for what is pending now.
 * No lock held. */
uint64_t dpool_count_pending_marks(ductile_allocator *a);

#endif
