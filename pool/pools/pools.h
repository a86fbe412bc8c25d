/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools: which requests go to them, and what may happen to their memory.
 *
 * A pool is a set of arenas, one for each stream that asked. Requests find their pool through
 * routes, which ductile_pool_begin makes: newest first, the first whose filter says yes. A filter
 * is called without any lock; its route stays linked as long as somebody is inside.
 *
 *     kind      references   its memory
 *     CAPTURE   held         is used as it is: not moved, not given away, proven never (G1)
 *     CAPTURE   none         unproven until the host has waited for the whole device
 *     PLAIN     held         moves and heals inside; serves others under pressure
 *     PLAIN     none         as memory in no pool
 *
 * Guarded by the index lock, but for filters.
 */
#ifndef DUCTILE_POOL_POOLS_POOLS_H
#define DUCTILE_POOL_POOLS_POOLS_H

#include "pool/blocks/arena.h"
#include "vmm/host_copy.h"

/* See pause.h. */
typedef enum dpool_phase {
    DPOOL_RUNNING = 0,
    DPOOL_PAUSING,
    DPOOL_PAUSED_PHASE,
    DPOOL_RESUMING
} dpool_phase;

typedef struct dpool_private {
    ductile_pool_id id;
    ductile_pool_kind kind;
    uint64_t refs;
    uint64_t n_routes;   /* open so often                                   */
    uint64_t n_arenas;   /* that are this pool's                            */
    uint64_t n_users;    /* calls under way that refer to it without a lock */
    uint64_t n_lives;    /* how often a first reference was taken           */
    bool awaits_context; /* graphs may have used its memory, on any stream  */
    dpool_phase phase;
    bool is_bare;     /* no memory behind its blocks, but what the driver would not unmap */
    dvmm_stash stash; /* contents while it is paused; of whoever claimed the pool */
    struct dpool_private *next;
} dpool_private;

typedef struct dpool_route {
    dpool_private *pool;
    ductile_pool_filter filter; /* NULL: requests of `thread` */
    void *user;
    uint64_t thread;   /* that began it */
    uint32_t n_inside; /* threads in the filter */
    bool has_ended;
    struct dpool_route *next; /* older */
} dpool_route;

static inline ductile_pool_id dpool_id_of(const dpool_private *pool) {
    return pool != NULL ? pool->id : (ductile_pool_id){0, 0};
}

static inline bool dpool_is_held(const dpool_private *pool) {
    return pool->refs > 0 || pool->n_routes > 0;
}

/* Live graphs may own all of its memory (G1), or it is paused (G4). Index lock held. */
static inline bool dpool_is_frozen(const dpool_arena *arena) {
    const dpool_private *pool = arena->pool;
    return pool != NULL && (pool->phase != DPOOL_RUNNING ||
                            (pool->kind == DUCTILE_POOL_CAPTURE && dpool_is_held(pool)));
}

/* Its blocks have no memory for now: see pause.h. Index lock held. */
static inline bool dpool_is_bare(const dpool_arena *arena) {
    return arena->pool != NULL && arena->pool->is_bare;
}

/* Can anything of the arena be proven done by its stream's markers? Index lock held. */
static inline bool dpool_is_provable(const dpool_arena *arena) {
    const dpool_private *pool = arena->pool;
    return pool == NULL || (!pool->awaits_context && pool->phase == DPOOL_RUNNING);
}

/* FREE blocks of an epoch below this may leave the arena's stream (U2). Index lock held. */
static inline uint64_t dpool_proven_epoch(const dpool_arena *arena) {
    return dpool_is_provable(arena) ? arena->proven_epoch : 0;
}

/* The life of the arena's pool that nobody holds now; 0 when it is in none, or held. */
static inline uint64_t dpool_released_life(const dpool_arena *arena) {
    return arena->pool != NULL && !dpool_is_held(arena->pool) ? arena->pool->n_lives : 0;
}

/* May FREE memory of the arena, once proven, serve `other`? Index lock held. */
bool dpool_may_serve(const dpool_arena *arena, const dpool_arena *other, bool under_pressure);

/* Which pool a request of this thread belongs to: NULL for none. The pool is pinned: unpin it.
 * ERR_BUSY when it is paused. No lock held; calls filters. */
ductile_status dpool_pool_of(ductile_allocator *a, ductile_stream stream, dpool_private **out);
void dpool_unpin(ductile_allocator *a, dpool_private *pool);

/* The pool of that name, NULL when there is none. Index lock held. */
dpool_private *dpool_find_pool_locked(const ductile_allocator *a, ductile_pool_id id);

/* Are there any pools? No lock held. */
bool dpool_has_pools(ductile_allocator *a);

/* Is a pool open that may stand for a capture? Index lock held. */
bool dpool_is_capturing_locked(const ductile_allocator *a);

/* Between the two no capture pool is opened. False: one is open. No lock held. */
bool dpool_context_wait_begin(ductile_allocator *a);
void dpool_context_wait_end(ductile_allocator *a);

/* Between the two no pool is opened. False: one is open. No lock held. */
bool dpool_stream_wait_begin(ductile_allocator *a);
void dpool_stream_wait_end(ductile_allocator *a);

/* An arena was taken from its pool. Returns what the caller is to free, without the lock: the pool,
 * if nothing needs it any more; or NULL. Index lock held. */
dpool_private *dpool_leave_pool_locked(ductile_allocator *a, dpool_private *pool);

/* The pool's regions one after the other: the first after NULL, NULL after the last. Either lock
 * held. */
dpool_region *dpool_next_region(const ductile_allocator *a, const dpool_private *pool,
                                const dpool_region *before);

/* Between two looks at what another thread will do soon. */
void dpool_pause_briefly(void);

/* Frees a pool that was taken out of the list; NULL: nothing. Index lock not held. */
void dpool_free_pool(dpool_private *pool);

/* Frees all of them. Destroying only. */
void dpool_pools_fini(ductile_allocator *a);

#endif
