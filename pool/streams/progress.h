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

/*
 * Waits on the host for the work of the arena's stream. ERR_CAPTURING when it is being captured. No
 * capture of another thread in a pool of this allocator is broken, even if it begins just now. Pre:
 * dpool_stream_ref_begin. No lock held.
 */
ductile_status dpool_sync_arena(ductile_allocator *a, dpool_arena *arena, dseg_idle *proof);

/* Waits on the host for all work of the device: afterwards all free memory is proven. False when it
 * could not be; *captured: because it would have broken a capture that is known of. *idle (may be
 * NULL): the proof of it. No lock held.
 */
bool dpool_wait_context(ductile_allocator *a, bool *captured, dseg_idle *idle);

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

/* Releases cached handles above retain_bytes. As above. */
void dpool_respect_retain(ductile_allocator *a);

/*
 * A snapshot of how far arenas had come, taken before a wait without locks, so that after it just
 * that much is known done (U8). Arenas in it cannot disappear.
 */
typedef struct dpool_wait_mark {
    dpool_arena *arena;
    uint64_t epoch;
    uint64_t seq;
    dseg_idle idle; /* no proof: was not, or could not be, waited for */
    uint64_t life;  /* of its pool, held by nobody then: no graph will start in it; else 0 */
} dpool_wait_mark;

typedef struct dpool_wait_point {
    dpool_wait_mark *marks;
    uint32_t n;
} dpool_wait_point;

/* Notes every arena. Index lock not held. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_wait_point_take(ductile_allocator *a, dpool_wait_point *s);

/* What was noted is done now, where there is proof; context: for recorded streams too. */
void dpool_wait_point_reached(ductile_allocator *a, dpool_wait_point *s, bool context);

/* Unpins the arenas. */
void dpool_wait_point_drop(ductile_allocator *a, dpool_wait_point *s);

#endif
