/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of streams: recording markers, reading them, and what becomes possible when they are
 * done: pending blocks become free, retiring addresses are unmapped.
 */
#ifndef DUCTILE_POOL_STREAMS_PROGRESS_H
#define DUCTILE_POOL_STREAMS_PROGRESS_H

#include "pool/blocks/arena.h"

#include <limits.h>

/*
 * Records a marker on the arena's stream. Pre: inside a call that names this stream; index lock not
 * held. *seq (may be NULL) receives its number. ERR_CAPTURING when the stream cannot be marked now.
 */
ductile_status dpool_mark(ductile_allocator *a, dpool_arena *arena, uint64_t *seq);

/* Reads the arena's markers: raises done_seq and proven_epoch. Grow lock held, index lock not. */
void dpool_poll_marks(ductile_allocator *a, dpool_arena *arena);

/* A donor's old address: BUSY becomes RETIRING until the arena's marker `seq` is done. Index lock
 * held. */
void dpool_retire_locked(ductile_allocator *a, dpool_block *b, uint64_t seq);

/* Do gaps come in the order of calls, whatever the GPU has done (progress.c)? */
bool dpool_retires_in_order(const ductile_allocator *a);

/* May a plan unmap what is proven done, to exchange its handles for others? Where requests get
 * handles of several granules, and not where memory held must not depend on how far the GPU is. */
static inline bool dpool_may_exchange(const ductile_allocator *a) {
    return a->max_handle_granules > 1 && !dpool_retires_in_order(a);
}

/* Before a slow call on the stream: waits on the host where too much is retiring for that. No lock
 * held. */
void dpool_wait_retired(ductile_allocator *a, struct dpool_private_pool *pool,
                        ductile_stream stream);

/* Unmaps retiring addresses that are proven unused, about `most` granules of them, for a request of
 * the arena itself. As above: grow lock held, index lock not. */
void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* The same for anybody: none where they come in order, unless all are wanted (UINT32_MAX). */
void dpool_reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Markers, pending blocks and retiring addresses, where there are any. As above. */
void dpool_poll(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* The same everywhere, all of it, and spans with waits: what waits have proven. As above. */
void dpool_poll_all(ductile_allocator *a);

/* Releases cached handles above retain_bytes. As above. */
void dpool_respect_retain(ductile_allocator *a);

#endif
