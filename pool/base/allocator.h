/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator: what all of its rooms share. What a room keeps here comes first, room by room; its
 * own headers say what it does with it.
 */
#ifndef DUCTILE_POOL_BASE_ALLOCATOR_H
#define DUCTILE_POOL_BASE_ALLOCATOR_H

#include "pool/base/callback_list.h"
#include "segments/segment_set.h"
#include "segments/unmap_handles.h"
#include "vmm/base/lock.h"
#include "vmm/captures.h"
#include "vmm/host_arena.h"
#include "vmm/marker.h"

#include <ductile.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { DPOOL_ARENA_BUCKETS = 256 };

struct dpool_block;
struct dpool_use;
struct dpool_import;
struct dpool_pin;
struct dpool_tag_export;

/* ---- Of blocks ----------------------------------------------------------------------------- */

/*
 * Nodes of blocks, in chunks. Taking one from an empty store fails: slow paths reserve what they
 * and the next hits need, so that no hit calls the system.
 */
typedef struct dpool_nodes {
    struct dpool_block *spare; /* linked by next */
    uint64_t n_spare;
    uint64_t host_bytes;
    struct dpool_node_chunk *chunks;
} dpool_nodes;

typedef struct dpool_map {
    uint64_t *slots;
    unsigned shift; /* of a hash, to its home */
    uint64_t mask;
    uint64_t count;
    uint64_t max_count; /* at most this many, so that probes stay short; 0: one became too long,
                           grow before the next insert */
} dpool_map;

/* The spans with waits, see wait_spans.h. */
typedef struct dpool_wait_spans {
    struct dpool_use *root;
    _Atomic uint64_t n; /* changed under the index lock */
    ductile_addr polled_to;
} dpool_wait_spans;

/* ---- Of streams ---------------------------------------------------------------------------- */

enum { DPOOL_MOST_MARKS = 64 };

typedef struct dpool_mark {
    dvmm_marker *marker;
    uint64_t age; /* proves, once done, what was freed at an age below */
} dpool_mark;

/* Context markers under way, the oldest first. Guarded by the index lock. */
typedef struct dpool_marks {
    dpool_mark all[DPOOL_MOST_MARKS];
    uint32_t n;
    uint64_t freed_bytes; /* of all frees before the latest one */
    bool is_wanted;       /* more than those frees waits for a proof */
    uint32_t n_own;       /* arenas with a mark of their own under way */
} dpool_marks;

/* ---- Of sharing ---------------------------------------------------------------------------- */

/* Pointers, in no order. Changed under both locks. */
typedef struct dpool_imports {
    struct dpool_import **items;
    uint32_t count;
    uint32_t capacity;
} dpool_imports;

/* Sorted by address. Guarded by the grow lock; the counts in handles are changed under both. */
typedef struct dpool_pins {
    struct dpool_pin *items;
    uint32_t count;
    uint32_t capacity;
    struct dpool_tag_export *tags; /* exports of whole tags, newest first */
    uint64_t last_tag_id;
} dpool_pins;

/* ---- Of growth ----------------------------------------------------------------------------- */

/* How large handles are made: sizes.h. Guarded by the grow lock. */
typedef struct dpool_sizes {
    uint32_t most_granules;    /* constant: of a handle but dedicated or tagged ones */
    uint32_t calls_until_look; /* at the memory that the device has left           */
    uint64_t room_bytes;       /* that may be held in all, as last seen            */
    uint64_t most_held;        /* ever, in bytes                                   */
    uint32_t stamp;            /* the latest number of a walk: homes.h; index lock */
    uint64_t most_in_use;      /* its peak since it was last forgotten; index lock */
    uint64_t n_moves;          /* handles mapped since so many requests were made, */
    uint64_t requests_before;  /* without more being held                          */
    uint32_t times;            /* larger than by their shares: a power of two      */
    /* written under the grow lock, read at any time */
    _Atomic bool has_large; /* handles of several granules may have been made */
    _Atomic bool goes_home; /* those that are made now have one, and few move */
    _Atomic bool is_tight;  /* close to the room is held                      */
} dpool_sizes;

/* Memory of the host: spill.h. Guarded by the index lock. */
typedef struct dpool_spilling {
    uint64_t futile_bytes; /* that a climb of the ladder did not find; 0: no climb is remembered */
    uint64_t freed_before; /* bytes freed in all, when it ended                                 */
    uint32_t n_forbidden;  /* scopes in which no request spills */
} dpool_spilling;

/* ---- Of all -------------------------------------------------------------------------------- */

/* Counters under the index lock; what the store and the driver count is added when statistics are
 * read. The counters that a hit changes come first. */
typedef struct dpool_counts {
    uint64_t requested, requested_peak;
    uint64_t allocated, allocated_peak;
    uint64_t requested_total, active_peak; /* of allocated + pending */
    uint64_t allocated_total, live_peak;   /* of blocks              */
    uint64_t allocs, pending;
    uint64_t asleep, asleep_blocks;
    uint64_t mapped, retiring;  /* mapped: own memory of all arenas */
    uint64_t limit, soft_limit; /* see limits.h                     */
    uint64_t imported;
    uint64_t span, span_peak, address_bytes;
    uint64_t pending_blocks; /* live ones: entries of the map, frees: the rest */
    uint64_t slow_allocs, out_of_memory;
    uint64_t recycled_handles, compacted_handles, readdressed_handles;
    uint64_t segments, arenas;
    uint64_t use_host_bytes, table_host_bytes;
    uint64_t past_allocated_peak, past_active_peak;               /* of what has ended: sizes.h */
    uint64_t pressure_waits, pressure_returns, pressure_returned; /* see ladder.c */
    uint64_t spills, spilled_total, promoted_total;               /* see spill.h */
} dpool_counts;

/* Proves that no work is under way on memory that was freed at an age below this (blocks/age.h). */
typedef struct dpool_proof {
    uint64_t age;
    dseg_idle idle;
} dpool_proof;

struct ductile_allocator {
    dti_lock index_lock;
    dti_lock grow_lock;
    /* constant after creation */
    dvmm_driver *driver;
    ductile_options options;
    uint64_t granule; /* of the driver: the smallest handle */
    uint64_t device_bytes;
    struct dpool_private_pool *default_pool;
    uint64_t instance_id;      /* which allocator of the process this is, from 1 */
    bool is_plain;             /* no option makes a hit do more than find a block */
    _Atomic bool has_routes;   /* pools are open, or the default pool is not awake: a request looks
                                  up its pool first */
    _Atomic bool has_unmarked; /* pending uses want a marker: see stream_use.h */
    /* guarded by the index lock */
    struct dpool_arena *recent;        /* the arena of the latest allocation in no pool */
    struct dpool_private_pool *pools;  /* newest first; the default pool last */
    struct dpool_private_pool *bypass; /* serves requests of the default pool while that sleeps, if
                                          it is not NULL */
    struct dpool_route *routes;        /* newest first */
    uint32_t n_context_waits;          /* threads in a wait for the whole device */
    uint32_t n_stream_waits;           /* threads in a wait for a stream */
    uint32_t n_announcing;             /* see announce.h; changed under both locks */
    uint64_t age;                      /* the clock of frees: blocks/age.h */
    dpool_proof proven;                /* by context markers */
    dpool_marks marks;
    dpool_nodes nodes;
    dpool_map map;
    dpool_counts counts;
    struct dpool_arena *arenas;
    struct dpool_arena *buckets[DPOOL_ARENA_BUCKETS];
    dseg_set segments;
    struct dpool_use *spare_uses; /* linked by next */
    uint64_t last_mark;           /* the latest number of a use's marker */
    dpool_wait_spans waits;
    uint64_t lost_reported; /* lost bytes that the log has reported */
    dpool_imports imports;  /* changed under both locks */
    dpool_spilling spill;
    /* guarded by the grow lock */
    dvmm_handle_store store;
    uint64_t soft_limit;           /* at most store.limit_bytes */
    struct dpool_plan *spare_plan; /* its arrays are kept for the next */
    dpool_sizes sizes;
    dpool_pins pins;
    /* safe by themselves */
    _Atomic int captures;     /* ductile_captures, as it is now */
    _Atomic bool met_capture; /* one that was not announced; to be logged */
    dvmm_marker_pool markers;
    dvmm_host_arena host_arena; /* for kept contents of sleeping pools */
    dpool_callbacks oom_callbacks;
    dpool_callbacks map_callbacks;
};

/* Do the options let free memory move between streams, without the driver? */
static inline bool dpool_may_cross(const ductile_allocator *a) {
    return a->options.reuse == DUCTILE_REUSE_STREAMS || a->options.reuse == DUCTILE_REUSE_WAIT;
}

/* May there be handles of several granules? No lock needed. */
static inline bool dpool_has_large_handles(const ductile_allocator *a) {
    return atomic_load_explicit(&a->sizes.has_large, memory_order_relaxed);
}

/* Is it worth while that granules keep their old addresses (growth/homes.h)? No lock needed. */
static inline bool dpool_goes_home(const ductile_allocator *a) {
    return atomic_load_explicit(&a->sizes.goes_home, memory_order_relaxed);
}

/* Is little room left, so that handles are made small (growth/sizes.h)? No lock needed. */
static inline bool dpool_is_tight(const ductile_allocator *a) {
    return atomic_load_explicit(&a->sizes.is_tight, memory_order_relaxed);
}

/* ASLEEP blocks are in the address map too. */
static inline uint64_t dpool_live_blocks_locked(const ductile_allocator *a) {
    return a->map.count - a->counts.asleep_blocks;
}

static inline void dpool_lock_both(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    dti_lock_acquire(&a->index_lock);
}

static inline void dpool_unlock_both(ductile_allocator *a) {
    dti_lock_release(&a->index_lock);
    dti_lock_release(&a->grow_lock);
}

/* Locks the grow lock, and lets the driver calls of this thread pass beside any capture. */
static inline dvmm_capture_mode dpool_grow_lock(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    return dvmm_capture_relax(a->driver);
}

static inline void dpool_grow_unlock(ductile_allocator *a, dvmm_capture_mode mode) {
    dvmm_capture_restore(a->driver, mode);
    dti_lock_release(&a->grow_lock);
}

#endif
