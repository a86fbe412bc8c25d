/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: the segments, blocks and free index of one stream in one pool.
 *
 * Proof that free memory may leave its stream (design rule: the earliest point at which the
 * stream itself could have reused it):
 *
 *     alloc_epoch    counts the arena's allocation calls
 *     block->epoch   alloc_epoch when a FREE block was freed (the latest, after merges)
 *     marker         recorded inside allocation call number e, so after every free of epoch < e
 *     proven_epoch   the highest e whose marker is done: FREE blocks with epoch < proven_epoch
 *                    have no work under way, and programs that free first and join streams
 *                    afterwards stay correct; no other block leaves its stream (U2)
 *
 * Markers are numbered by sequence. A RETIRING block's epoch is the number of the marker that was
 * recorded when its memory moved away: with done_seq at or above it, the host knows that no work
 * uses the old address, which may then be unmapped (U3).
 */
#ifndef DUCTILE_POOL_BLOCKS_ARENA_H
#define DUCTILE_POOL_BLOCKS_ARENA_H

#include "pool/base/allocator.h"
#include "pool/base/stream_id.h"
#include "pool/blocks/block.h"
#include "pool/blocks/block_list.h"
#include "pool/blocks/free_index.h"
#include "pool/blocks/private_pool.h"
#include "pool/blocks/use_store.h"
#include "segments/unmap_handles.h"

enum {
    DPOOL_RING = 16, /* markers of one arena under way */
    DPOOL_GAPS_TOLERATED = 128,
    DPOOL_MARK_EVERY = 64 /* allocations between markers while several streams are known */
};

/* A segment as the pool sees it: its blocks, which tile the range. A dedicated region is one block,
 * behind which there is one handle (growth/dedicated.h). */
typedef struct dpool_region {
    dseg_segment *seg;
    struct dpool_arena *arena;
    bool is_dedicated;
    dpool_block *first;
    uint64_t span_bytes; /* as counted in the statistics */
    struct dpool_region *next;
} dpool_region;

typedef struct dpool_ring_mark {
    dvmm_marker *marker;
    uint64_t seq;
    uint64_t epoch; /* the allocation call it was recorded in */
} dpool_ring_mark;

typedef struct dpool_arena {
    /* constant after creation */
    ductile_stream stream;           /* NULL stands for the legacy default stream */
    uint64_t thread;                 /* per-thread default stream: its thread; else 0 */
    struct dpool_private_pool *pool; /* NULL: in no private pool, see private_pool.h     */
    struct dpool_arena *next_in_bucket;
    struct dpool_arena *next; /* all arenas */
    /* guarded by the index lock */
    dpool_list gaps;     /* GAP blocks */
    dpool_list retiring; /* RETIRING blocks, by epoch; see progress.h */
    uint64_t retiring_bytes;
    dpool_list
        closed; /* FREE blocks of dedicated regions: they serve no request, and go once proven */
    dpool_use *pending_first;
    dpool_use *pending_last;
    uint64_t pending_since; /* alloc_epoch when the list was last empty                    */
    uint64_t next_poll_at;  /* alloc_epoch from which a hit polls the pending blocks first */
    dpool_region *regions;
    uint64_t n_regions;
    uint64_t live_bytes;
    uint64_t pending_bytes;
    uint64_t mapped_bytes; /* own memory: LIVE, PENDING, FREE, and BUSY with memory */
    uint64_t alloc_epoch;
    uint64_t proven_epoch;
    dseg_idle proven_by; /* what raised proven_epoch and done_seq last: it covers all below both */
    uint64_t marker_seq;
    uint64_t done_seq;
    uint64_t context_epoch;  /* a wait for the whole context has covered frees below it */
    uint64_t next_mark_at;   /* alloc_epoch from which the next regular marker is due   */
    uint64_t maintenance_at; /* alloc_epoch from which a hit checks what is due */
    uint64_t peak_live;   /* see live_watermark.h: the peak that the next dip is measured from  */
    uint64_t dips_below;  /* live_bytes under which the dip begins or goes deeper     */
    uint64_t rises_above; /* live_bytes above which the peak grows or the dip is over */
    uint64_t gaps_tolerated; /* more gaps than this make compaction due at any time       */
    bool compaction_due;
    bool is_gone;             /* ductile_stream_done was called: the driver never gets it again */
    uint32_t fruitless_polls; /* polls in a row that found nothing done; grow lock */
    uint32_t n_waiters;       /* threads that wait without locks and will read the arena again */
    uint32_t n_stream_refs;   /* of these, threads that pass its stream to the driver */
    dpool_ring_mark ring[DPOOL_RING]; /* oldest first */
    uint32_t n_marks;
    dpool_free_index index;
} dpool_arena;

/* Which arenas: all, or those of one pool. */
typedef struct dpool_scope {
    bool is_all;
    const dpool_private_pool *pool; /* unless is_all; NULL: what is in none */
} dpool_scope;

static inline bool dpool_is_in(const dpool_scope *s, const dpool_arena *arena) {
    return s->is_all || arena->pool == s->pool;
}

/* ---- What may happen to an arena's memory, by its pool; all under the index lock ------------ */

/* Live graphs may own all of its memory (G1), or it is paused (G4). Index lock held. */
static inline bool dpool_is_frozen(const dpool_arena *arena) {
    const dpool_private_pool *pool = arena->pool;
    return pool != NULL && (pool->phase != DPOOL_RUNNING ||
                            (pool->kind == DUCTILE_POOL_CAPTURE && dpool_is_held(pool)));
}

/* The arena is in a paused pool whose blocks have no memory now: see pause.h. Index lock held. */
static inline bool dpool_is_unbacked(const dpool_arena *arena) {
    return arena->pool != NULL && arena->pool->is_unbacked;
}

/* Can anything of the arena be proven done by its stream's markers? Index lock held. */
static inline bool dpool_is_provable(const dpool_arena *arena) {
    const dpool_private_pool *pool = arena->pool;
    return pool == NULL || (!pool->awaits_context && pool->phase == DPOOL_RUNNING);
}

/* FREE blocks of an epoch below this may leave the arena's stream (U2). Index lock held. */
static inline uint64_t dpool_proven_epoch(const dpool_arena *arena) {
    return dpool_is_provable(arena) ? arena->proven_epoch : 0;
}

/* How often the pool of the arena was taken, when no reference holds it now; 0 when the arena is in
 * no pool, or in one that is held. Index lock held. */
static inline uint64_t dpool_released_life(const dpool_arena *arena) {
    return arena->pool != NULL && !dpool_is_held(arena->pool) ? arena->pool->n_lives : 0;
}

/* May FREE memory of the arena, once proven, serve `other`? Index lock held. */
bool dpool_may_serve(const dpool_arena *arena, const dpool_arena *other, bool under_pressure);

/* ---- Arenas and regions -------------------------------------------------------------------- */

/* The arena of the stream in the pool (NULL: in no pool); NULL when there is none. */
dpool_arena *dpool_arena_find_locked(ductile_allocator *a, const struct dpool_private_pool *pool,
                                     ductile_stream stream);

/* Finds or makes the arena. Grow lock held, index lock not. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_arena_get(ductile_allocator *a, struct dpool_private_pool *pool,
                               ductile_stream stream, dpool_arena **out);

/* An arena of the stream in any pool, not detached from it; NULL when there is none. */
dpool_arena *dpool_arena_any_locked(ductile_allocator *a, ductile_stream stream);

/* Is it an arena of this stream, and not detached from it? */
bool dpool_arena_is_of(const dpool_arena *arena, ductile_stream stream);

/* Unlinks an arena that holds nothing and frees it. Grow lock held, index lock not. */
void dpool_arena_drop_if_empty(ductile_allocator *a, dpool_arena *arena);

/* Detaches the arena from its stream, since the driver may reuse the handle for another stream. The
 * arena keeps its blocks and serves other streams as a donor. */
void dpool_arena_part_locked(ductile_allocator *a, dpool_arena *arena);

/* Makes a compaction due from the next allocation on. */
static inline void dpool_arena_want_compaction(dpool_arena *arena) {
    arena->compaction_due = true;
    arena->maintenance_at = 0;
}

/* May this thread pass the stream of the arena to the driver (U7)? */
bool dpool_arena_may_be_named(const dpool_arena *arena);

/* Around driver calls that pass the stream of the arena without the caller having passed it to us:
 * ductile_stream_done waits for the end. False: the stream must not be used. Pre: the arena cannot
 * disappear. Index lock not held. */
bool dpool_stream_ref_begin(ductile_allocator *a, dpool_arena *arena);
void dpool_stream_ref_end(ductile_allocator *a, dpool_arena *arena);

#endif
