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

#include "pool/blocks/address_map.h"
#include "pool/blocks/block.h"
#include "pool/blocks/free_index.h"
#include "pool/pressure/oom_callbacks.h"
#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"
#include "segments/segment_set.h"
#include "segments/unmap_handles.h"
#include "vmm/base/lock.h"
#include "vmm/marker.h"

enum {
    DPOOL_RING = 16, /* markers of one arena under way */
    DPOOL_ARENA_BUCKETS = 256,
    DPOOL_GAPS_TOLERATED = 128,
    DPOOL_MARK_EVERY = 64 /* allocations between markers while several streams are known */
};

/* A segment as the pool sees it: its blocks, which tile the range. */
typedef struct dpool_region {
    dseg_segment *seg;
    struct dpool_arena *arena;
    dpool_block *first;
    uint64_t span_bytes; /* as counted in the statistics */
    struct dpool_region *next;
} dpool_region;

/* A stream that uses a block besides its own. Owned by the block; PENDING: marker recorded at the
 * free, or NULL when recording failed, which never means "done". */
typedef struct dpool_use {
    ductile_stream stream;
    uint64_t thread;   /* per-thread default stream: whose; else 0; gone: a number of its own */
    bool is_gone;      /* the stream was named done: the marker was recorded then, or never */
    bool is_done;      /* in a span with waits: the host knows it, and the marker is gone   */
    bool is_barred;    /* the same: no stream may wait for this one                         */
    uint32_t priority; /* first use of a span, see below */
    dvmm_marker *marker;
    struct dpool_use *next;
    union {
        struct { /* first use of a PENDING block: */
            dpool_block *block;
            struct dpool_use *pending_next; /* the arena's pending list; itself: in none yet */
            uint64_t number;                /* each use that has a marker: see stream_use.h  */
            struct dpool_lane *lane;        /* each use that is looked at: see pending.c     */
        };
        struct { /* first use of a span with waits (wait_map.h): */
            ductile_addr addr;
            ductile_addr end;
            struct dpool_use *left;
            struct dpool_use *right;
        };
    };
} dpool_use;

/* The spans with waits, see wait_map.h. */
typedef struct dpool_wait_map {
    dpool_use *root;
    _Atomic uint64_t n; /* changed under the index lock */
    ductile_addr polled_to;
} dpool_wait_map;

/* A stream that never waits, and is never waited for, on the GPU. */
typedef struct dpool_barred {
    ductile_stream stream;
    uint64_t thread;
    struct dpool_barred *next;
} dpool_barred;

/* Doubly linked through list_prev and list_next. */
typedef struct dpool_list {
    dpool_block *first;
    dpool_block *last;
    uint64_t count;
} dpool_list;

typedef struct dpool_ring_mark {
    dvmm_marker *marker;
    uint64_t seq;
    uint64_t epoch; /* the allocation call it was recorded in */
} dpool_ring_mark;

typedef struct dpool_arena {
    /* constant after creation */
    ductile_stream stream;      /* NULL stands for the legacy default stream */
    uint64_t thread;            /* per-thread default stream: whose; else 0  */
    struct dpool_private *pool; /* NULL: in no private pool, see pools.h     */
    struct dpool_arena *next_in_bucket;
    struct dpool_arena *next; /* all arenas */
    /* guarded by the index lock */
    dpool_list gaps;     /* GAP blocks */
    dpool_list retiring; /* RETIRING blocks, by epoch; see retire.c */
    uint64_t retiring_bytes;
    dpool_use *pending_first;
    dpool_use *pending_last;
    uint64_t pending_since; /* alloc_epoch when the list was last empty                    */
    uint64_t next_poll_at;  /* alloc_epoch from which a hit looks at the pending ones first */
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
    uint64_t chores_at;      /* alloc_epoch from which a hit asks what else is due      */
    uint64_t peak_live;      /* see heal.h: the peak that the next dip is measured from  */
    uint64_t dips_below;     /* live_bytes under which the dip begins or goes deeper     */
    uint64_t rises_above;    /* live_bytes above which the peak grows or the dip is over */
    uint64_t gaps_tolerated; /* more gaps than this make healing due at any time         */
    bool heal_due;
    bool is_gone;     /* the stream was named done: it is never named again                  */
    bool never_waits; /* neither on the GPU for others, nor they for it                      */
    uint32_t polls_in_vain;           /* by hits, since one found anything done; the grow lock's */
    uint32_t n_waiters;               /* threads waiting without locks that will come back to it */
    uint32_t n_namers;                /* of these, who name its stream to the driver meanwhile   */
    dpool_ring_mark ring[DPOOL_RING]; /* oldest first */
    uint32_t n_marks;
    dpool_free_index index;
} dpool_arena;

/* Counters under the index lock; those the store and the driver keep are added when read. A hit's
 * come first, peaks between them: of two side by side the compiler would make one vector, whose
 * load waits for the store that a free made to one of them. */
typedef struct dpool_counts {
    uint64_t requested, requested_peak;
    uint64_t allocated, allocated_peak;
    uint64_t requested_total, active_peak; /* of allocated + pending */
    uint64_t allocated_total, live_peak;   /* of blocks              */
    uint64_t allocs, pending;
    uint64_t paused, paused_blocks;
    uint64_t mapped, retiring;              /* mapped: own memory of all arenas */
    uint64_t held, held_peak, cached, lost; /* the store's, as last published   */
    uint64_t limit, soft_limit;             /* see limits.h                     */
    uint64_t created;                       /* bytes, the store's           */
    uint64_t handles, store_host_bytes;
    uint64_t pinned, exported; /* the same */
    uint64_t imported;
    uint64_t span, span_peak, address_bytes;
    uint64_t pending_blocks; /* live ones: entries of the map, frees: the rest */
    uint64_t slow_allocs, out_of_memory;
    uint64_t recycled_handles, healed_handles;
    uint64_t segments, arenas;
    uint64_t use_host_bytes, table_host_bytes;
} dpool_counts;

struct ductile_allocator {
    dti_lock index_lock;
    dti_lock grow_lock;
    /* constant after creation */
    dvmm_driver *driver;
    ductile_options options;
    uint64_t granule;               /* handle_bytes: the pool's granule */
    uint32_t max_handle_granules;   /* of handles that requests get by default        */
    _Atomic bool has_large_handles; /* some may have several granules; never undone   */
    uint64_t device_bytes;
    uint64_t birth;            /* which allocator of the process this is, from 1 */
    bool is_plain;             /* no option asks more of a hit than a block */
    _Atomic bool has_routes;   /* pools are open: requests ask for theirs first */
    _Atomic bool has_unmarked; /* pending uses want a marker: see captures.h */
    /* guarded by the index lock */
    dpool_arena *recent; /* the arena of the latest allocation in no pool */
    struct dpool_private *pools;
    struct dpool_route *routes; /* newest first */
    uint32_t n_context_waits;   /* threads in a wait for the whole device */
    uint32_t n_stream_waits;    /* threads in a wait for a stream */
    uint32_t n_announcing;      /* see announce.h; changed under both locks */
    dpool_nodes nodes;
    dpool_map map;
    dpool_counts counts;
    dpool_arena *arenas;
    dpool_arena *buckets[DPOOL_ARENA_BUCKETS];
    dseg_set segments;
    dpool_use *spare_uses;      /* linked by next */
    dvmm_marker *spare_markers; /* idle, for uses; linked by next */
    uint64_t last_mark;         /* the latest number of a use's marker */
    dpool_wait_map waits;
    dpool_barred *barred;
    uint64_t lost_reported; /* of counts.lost, said in the log */
    dpool_imports imports;  /* changed under both locks */
    /* guarded by the grow lock */
    dvmm_handle_store store;
    uint64_t soft_limit; /* at most store.limit_bytes */
    struct dpool_plan *plan;
    dpool_pins pins;
    /* safe by themselves */
    dvmm_marker_pool markers;
    dpool_callbacks oom_callbacks;
    dpool_callbacks map_callbacks;
};

static inline bool dpool_has_large_handles(const ductile_allocator *a) {
    return atomic_load_explicit(&a->has_large_handles, memory_order_relaxed);
}

/* PAUSED blocks are in the address map too. */
static inline uint64_t dpool_live_blocks_locked(const ductile_allocator *a) {
    return a->map.count - a->counts.paused_blocks;
}

/* ---- Lists --------------------------------------------------------------------------------- */

void dpool_list_append(dpool_list *list, dpool_block *b);
void dpool_list_remove(dpool_list *list, dpool_block *b);

/* Behind the last one of no later epoch. Quick when epochs mostly rise. */
void dpool_list_insert_by_epoch(dpool_list *list, dpool_block *b);

/* ---- Arenas and regions -------------------------------------------------------------------- */

/* NULL when the stream is not known in the pool yet. pool: NULL for none. */
dpool_arena *dpool_arena_find_locked(ductile_allocator *a, const struct dpool_private *pool,
                                     ductile_stream stream);

/* Finds or makes the arena. Grow lock held, index lock not. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_arena_get(ductile_allocator *a, struct dpool_private *pool,
                               ductile_stream stream, dpool_arena **out);

/* The stream's arena in whatever pool: NULL when there is none that was not parted from it. */
dpool_arena *dpool_arena_any_locked(ductile_allocator *a, ductile_stream stream);

/* Is it an arena of this stream, which was not named done since? */
bool dpool_arena_is_of(const dpool_arena *arena, ductile_stream stream);

/* Chains one more range to the arena. Grow lock held, index lock not. */
ductile_status dpool_region_add(ductile_allocator *a, dpool_arena *arena, uint64_t need_bytes);

/* Gives back ranges with nothing in them: those whose one block is a GAP, `keep` of them spared.
 * Grow lock held, index lock not. */
void dpool_regions_release_empty(ductile_allocator *a, dpool_arena *arena, uint32_t keep);

/* Takes an arena that holds nothing out of the allocator and frees it. Both as above. */
void dpool_arena_drop_if_empty(ductile_allocator *a, dpool_arena *arena);

/* Takes the arena from its stream, whose handle may come to name another one: it keeps its blocks
 * and serves other streams as a donor. */
void dpool_arena_part_locked(ductile_allocator *a, dpool_arena *arena);

/* A number that names the calling thread, never used again. */
uint64_t dpool_this_thread(void);
/* Is the stream one that never waits? Index lock held. */
bool dpool_is_barred_locked(const ductile_allocator *a, ductile_stream stream, uint64_t thread);

/* The stream is done: its handle may come to name another one. Index lock held. */
void dpool_unbar_locked(ductile_allocator *a, ductile_stream stream);

/* Forgets all such streams. Destroying only. */
void dpool_barred_fini(ductile_allocator *a);

/* The same for both handles of the legacy default stream. */
ductile_stream dpool_canonical_stream(ductile_stream stream);

/* Which thread's stream the handle names: 0 unless it is the per-thread default stream. */
uint64_t dpool_thread_of(ductile_stream stream);

/* Healing is due from the next allocation on. */
static inline void dpool_arena_want_heal(dpool_arena *arena) {
    arena->heal_due = true;
    arena->chores_at = 0;
}

/* May this thread name that stream in a driver call? */
bool dpool_may_name(ductile_stream stream, uint64_t thread);

/* May this thread name the arena's stream in a driver call (U7)? */
bool dpool_arena_is_nameable(const dpool_arena *arena);

/* Around driver calls that name the arena's stream where the user's call does not: the stream does
 * not get done in between. False: it must not be named. Pre: the arena cannot disappear. Index lock
 * not held. */
bool dpool_naming_begin(ductile_allocator *a, dpool_arena *arena);
void dpool_naming_end(ductile_allocator *a, dpool_arena *arena);

/* ---- Block transitions, all under the index lock --------------------------------------------- */

/* A span with memory becomes FREE: merged with free neighbours and indexed. Returns the result. */
dpool_block *dpool_make_free_locked(ductile_allocator *a, dpool_block *b);

/* A span without memory becomes GAP: merged with neighbouring gaps and listed. */
dpool_block *dpool_make_gap_locked(ductile_allocator *a, dpool_block *b);

/* Takes a FREE or GAP block out of its index or list and marks it BUSY. */
void dpool_make_busy_locked(dpool_block *b);

/* Makes [from, to) of a FREE block BUSY and returns it; what lies below and above stays FREE.
 * Pre: two spare nodes. */
dpool_block *dpool_carve_free_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to);

/* Publishes what the store and the region's segment hold now. Both locks held. */
void dpool_publish_locked(ductile_allocator *a, dpool_region *region);

/* The same for the store alone. Grow lock held, index lock not. */
void dpool_publish_store(ductile_allocator *a);

/* The driver has unmapped the span, or refused to: GAP or QUARANTINED, and published. Both locks.
 */
void dpool_settle_unmapped_locked(ductile_allocator *a, dpool_block *b, ductile_status status);

/* ---- Room for hits ------------------------------------------------------------------------- */

/* Makes sure of `n_nodes` spare nodes and room in the address map. Grow lock held, index lock not.
 */
ductile_status dpool_reserve_room(ductile_allocator *a, uint64_t n_nodes);

#endif
