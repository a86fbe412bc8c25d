/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: the segments, blocks and free index of one stream in one pool. What is proven of their
 * memory, and what may therefore happen to it: proofs.h.
 */
#ifndef DUCTILE_POOL_BLOCKS_ARENA_H
#define DUCTILE_POOL_BLOCKS_ARENA_H

#include "pool/base/allocator.h"
#include "pool/base/stream_id.h"
#include "pool/blocks/block.h"
#include "pool/blocks/free_index.h"
#include "pool/blocks/private_pool.h"
#include "pool/blocks/use_store.h"
#include "segments/unmap_handles.h"

enum { DPOOL_GAPS_TOLERATED = 128 };

/*
 * A segment as the pool sees it: its blocks, which tile the range. A region that is_closed serves
 * no request but that of its one block, and gives no memory away (docs/dev/decisions/0047):
 *
 *     |pad, FREE|LIVE .......|     or one block; behind the blocks there is one handle
 *
 * No index and no list has its blocks, but that of the arena's leaving memory: so requests do not
 * find them, and nothing moves, splits or compacts them.
 */
typedef struct dpool_region {
    dseg_segment *seg;
    struct dpool_arena *arena;
    bool is_closed;
    bool is_spilled; /* is_closed: its handles are the device's, and behind them the host's */
    dpool_block *first;
    uint64_t *ages;      /* of granules in mixed blocks, see age.h */
    uint64_t span_bytes; /* as counted in the statistics */
    struct dpool_region *next;
} dpool_region;

/* What a hit counts, and when it has to do more: allocator.c, growth/maintenance.c. */
typedef struct dpool_calls {
    uint64_t n;              /* allocations */
    uint64_t maintenance_at; /* n from which a hit checks what is due */
} dpool_calls;

/* Live memory, and the levels at which compaction becomes due, or the next level is set:
 * transitions.c. */
typedef struct dpool_live {
    uint64_t bytes;
    uint64_t rises_above; /* bytes above which the peak grows or the dip is over */
    uint64_t dips_below;  /* bytes under which the dip begins or goes deeper     */
    uint64_t peak;        /* that the next dip is measured from                  */
} dpool_live;

/* The regions, and the blocks that no request finds in the index: region.c, transitions.c,
 * growth/dedicated.c. */
typedef struct dpool_blocks {
    dpool_region *regions;
    uint64_t n_regions;
    uint64_t mapped_bytes; /* own memory: LIVE, PENDING, FREE, and BUSY with memory */
    uint64_t pending_bytes;
    dpool_list gaps;        /* GAP blocks, but of is_closed regions: requests are placed in them */
    dpool_list leaving;     /* FREE blocks of is_closed regions, but pads: they go once proven */
    uint64_t n_pads;        /* of is_closed regions, in no list */
    uint64_t n_closed_gaps; /* likewise, GAP blocks */
} dpool_blocks;

/* Old addresses, RETIRING blocks: streams/progress.c. */
typedef struct dpool_retiring {
    dpool_list list; /* by age */
    uint64_t bytes;
    dpool_list kept; /* not among those: their memory may return, see growth/homes.h */
    uint64_t kept_bytes;
} dpool_retiring;

/* PENDING blocks, and when they are asked about: streams/stream_use.c, pending.c. */
typedef struct dpool_pending {
    dpool_pending_list list;
    uint64_t since;           /* calls.n when the list was last empty                    */
    uint64_t next_poll_at;    /* calls.n from which a hit polls the pending blocks first */
    uint32_t fruitless_polls; /* polls in a row that found nothing done; grow lock       */
} dpool_pending;

/* What is known of the work on the memory: proofs.h; streams/marks.c, host_waits.c. */
typedef struct dpool_proofs {
    uint64_t not_before; /* the memory counts as freed at this age, if it was freed before */
    uint64_t joined_age;
    dpool_proof own;       /* by proofs of the stream alone */
    dpool_mark own_mark;   /* of the stream alone, under way; marker NULL: none */
    uint64_t looked_age;   /* the last look for an allocation since: how old it is, and */
    uint64_t looked_calls; /* calls.n then; see host_waits.c                            */
} dpool_proofs;

/* When compaction is due: growth/compact.c. */
typedef struct dpool_compaction {
    uint64_t gaps_tolerated; /* more gaps than this make it due at any time */
    bool is_due;
} dpool_compaction;

/* Threads because of which the arena stays, or its stream's handle. */
typedef struct dpool_users {
    uint32_t n_waiters;     /* that wait without locks and will read the arena again */
    uint32_t n_stream_refs; /* of these, those that pass its stream to the driver */
} dpool_users;

/*
 *      whose it is     | stream  thread  pool                |
 *      a hit, a free   | calls  live                         | index: FREE blocks
 *      other blocks    | blocks: GAP  retiring  pending      |
 *      what may leave  | proofs                              |
 *      what is due     | compaction          users           |
 *
 * What a hit reads and writes is the first 72 bytes, and the index. Each struct says which files
 * write it. Guarded by the index lock where nothing else is said.
 */
typedef struct dpool_arena {
    /* constant after creation, but for the chains */
    ductile_stream stream;           /* NULL stands for the legacy default stream */
    uint64_t thread;                 /* per-thread default stream: its thread; else 0 */
    struct dpool_private_pool *pool; /* see private_pool.h */
    dpool_calls calls;
    dpool_live live;
    struct dpool_arena *next_in_bucket;
    struct dpool_arena *next; /* all arenas */
    bool is_elastic;          /* constant: one region, of units; no request finds it (units.h) */
    bool is_foreign;          /* constant: of a context that context markers do not cover */
    bool is_gone;             /* ductile_stream_done was called: the driver never gets it again */
    bool is_silent;           /* is_gone, and its own work is known done; foreign arenas only */
    dpool_blocks blocks;
    dpool_retiring retiring;
    dpool_pending pending;
    dpool_proofs proofs;
    dpool_compaction compaction;
    dpool_users users;
    struct ductile_elastic *range; /* is_elastic, until it is closed: what the program calls it;
                                      owned */
    dpool_free_index index;
} dpool_arena;

/* Is memory that serves elsewhere still mapped in the arena? */
static inline bool dpool_has_old_addresses(const dpool_arena *arena) {
    return arena->retiring.list.count > 0 || arena->retiring.kept.count > 0;
}

/* Will no call that gets memory name it any more? */
static inline bool dpool_has_ended(const dpool_arena *arena) {
    return arena->is_gone || dpool_is_released(arena->pool) ||
           (arena->is_elastic && arena->range == NULL);
}

/* Is it one of the pool's arenas? NULL: of all pools. */
static inline bool dpool_is_in(const dpool_private_pool *of, const dpool_arena *arena) {
    return of == NULL || arena->pool == of;
}

/* FREE and GAP blocks. Index lock held. */
static inline uint64_t dpool_count_free(const dpool_arena *arena) {
    return dpool_index_count(&arena->index) + arena->blocks.leaving.count + arena->blocks.n_pads;
}
static inline uint64_t dpool_count_gaps(const dpool_arena *arena) {
    return arena->blocks.gaps.count + arena->blocks.n_closed_gaps;
}

/* The least age that the memory of the arena counts as having. */
static inline uint64_t dpool_least_age(const dpool_arena *arena) {
    const dpool_private_pool *pool = arena->pool;
    return dti_max(pool->released_age, arena->proofs.not_before);
}

/* The bytes of the block that serves a request of so many. */
static inline uint64_t dpool_rounded_size(const ductile_allocator *a, uint64_t size) {
    return a->options.caching_off != 0 ? dti_round_up(size, a->granule) : dpool_round(size);
}

/* ---- Arenas and regions -------------------------------------------------------------------- */

/* The arena of the stream in the pool; NULL when there is none. */
dpool_arena *dpool_arena_find_locked(ductile_allocator *a, const struct dpool_private_pool *pool,
                                     ductile_stream stream);

/* Finds or makes the arena. Grow lock held, index lock not. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_arena_get(ductile_allocator *a, struct dpool_private_pool *pool,
                               ductile_stream stream, dpool_arena **out);

/* Makes an arena of the stream that is_elastic, with the caller as one who waits: it stays while it
 * has no region. Grow lock held, index lock not. NULL: the host has no memory. */
dpool_arena *dpool_arena_make_elastic(ductile_allocator *a, struct dpool_private_pool *pool,
                                      ductile_stream stream);

/* An arena of the stream in any pool, not detached from it; NULL when there is none. */
dpool_arena *dpool_arena_any_locked(ductile_allocator *a, ductile_stream stream);

/* Is it an arena of this stream, and not detached from it? */
bool dpool_arena_is_of(const dpool_arena *arena, ductile_stream stream);

/* Unlinks an arena that holds nothing and frees it. Grow lock held, index lock not. */
void dpool_arena_drop_if_empty(ductile_allocator *a, dpool_arena *arena);

/* Detaches the arena from its stream, since the driver may reuse the handle for another stream. The
 * arena keeps its blocks and serves other streams as a donor. */
void dpool_arena_part_locked(ductile_allocator *a, dpool_arena *arena);

/* Drops the mark of the arena's stream that is under way, if there is one. */
void dpool_drop_own_mark_locked(ductile_allocator *a, dpool_arena *arena);

/* Makes a compaction due from the next allocation on. */
static inline void dpool_arena_want_compaction(dpool_arena *arena) {
    arena->compaction.is_due = true;
    arena->calls.maintenance_at = 0;
}

/* May this thread pass the stream of the arena to the driver (U7)? */
bool dpool_arena_may_be_named(const dpool_arena *arena);

/* Around driver calls that pass the stream of the arena without the caller having passed it to us:
 * ductile_stream_done waits for the end. False: the stream must not be used. Pre: the arena cannot
 * disappear. Index lock not held. */
bool dpool_stream_ref_begin(ductile_allocator *a, dpool_arena *arena);
void dpool_stream_ref_end(ductile_allocator *a, dpool_arena *arena);

#endif
