/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of streams: records markers, reads them, and acts on the done ones: pending blocks
 * become free, retiring addresses are unmapped.
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

/* Makes the old address of a donor, BUSY, RETIRING until marker `seq` of the arena is done. Index
 * lock held. */
void dpool_retire_locked(ductile_allocator *a, dpool_block *b, uint64_t seq);

/* Do gaps appear in the order of calls, whatever the GPU has done (progress.c)? */
bool dpool_retires_in_order(const ductile_allocator *a);

/* May a plan unmap proven memory, to exchange its handles for others? True where requests get
 * handles of several granules, and the held memory may depend on the progress of the GPU. */
static inline bool dpool_may_exchange(const ductile_allocator *a) {
    return a->max_handle_granules > 1 && !dpool_retires_in_order(a);
}

/* Called before a slow call on the stream: waits on the host when too many addresses are retiring.
 * No lock held. */
void dpool_wait_retired(ductile_allocator *a, struct dpool_private_pool *pool,
                        ductile_stream stream);

/* Unmaps retiring addresses that are proven unused, about `most` granules of them, for a request of
 * the arena itself. Grow lock held, index lock not. */
void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Unmaps proven retiring addresses for any request. Where gaps must appear in the order of calls,
 * unmaps none, unless most is UINT32_MAX. Grow lock held, index lock not. */
void dpool_reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Reads the markers of an arena, frees its pending blocks that are done, and unmaps its retiring
 * addresses that are proven. Grow lock held, index lock not. */
void dpool_poll(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Polls every arena completely, and all spans with waits: applies what waits have proven. Grow lock
 * held, index lock not. */
void dpool_poll_all(ductile_allocator *a);

/* Releases cached handles above retain_bytes. Grow lock held, index lock not. */
void dpool_respect_retain(ductile_allocator *a);

#endif
