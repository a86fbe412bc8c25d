/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: which requests go to them, and what may happen to their memory.
 *
 * A pool is a set of arenas, one for each stream that asked. Requests find their pool through
 * routes, which ductile_pool_begin makes: the newest route whose filter accepts the request. What
 * no route accepts belongs to the default pool, which exists as long as the allocator and has no
 * references.
 * Filters are called without any lock; a route stays linked while a thread is inside its filter.
 *
 *     kind      references   its memory
 *     CAPTURE   held         stays as it is: never moved, given away or proven (G1)
 *     CAPTURE   none         as memory of the default pool that was freed when it was released
 *     PLAIN     held         is compacted inside; serves others under pressure
 *     PLAIN     none         serves all streams; the default pool is of this kind
 *
 * Guarded by the index lock; filters run without it.
 */
#ifndef DUCTILE_POOL_BLOCKS_PRIVATE_POOL_H
#define DUCTILE_POOL_BLOCKS_PRIVATE_POOL_H

#include "pool/base/allocator.h"
#include "vmm/host_copy.h"

#include <ductile_pools.h>

typedef struct dpool_private_pool {
    ductile_pool_id id;
    ductile_pool_kind kind;
    uint64_t refs;
    uint64_t n_routes;        /* open this often */
    uint64_t n_arenas;        /* arenas of this pool */
    uint64_t n_users;         /* calls under way that refer to it without a lock */
    uint64_t released_age;    /* a->age when its last reference was dropped, or its sleep ended:
                                 graphs may have used its memory until then, on any stream */
    ductile_pool_state phase; /* see phase.h */
    bool is_unbacked;         /* see phase.h */
    bool is_claimed; /* by a call that puts it to sleep or wakes it, to the end of the call: its
                        phase changes before */
    dseg_idle idle;  /* while it sleeps: proof for all work on its memory */
    dvmm_host_copy host_copy;    /* contents while it sleeps, or retained; owned by the thread that
                                    claimed the pool */
    char tag[DUCTILE_TAG_BYTES]; /* "": none */
    ductile_contents policy;     /* for a sleep that leaves it to the pool */
    ductile_contents contents;   /* unless AWAKE: what the sleep promised */
    bool retains; /* WAKING, AWAKE, FALLING_ASLEEP: host_copy stays, for the blocks that are marked
                     so */
    bool has_captured; /* a stream under capture has requested memory of it: replays read what a
                          capture has written once */
    struct dpool_private_pool *next_in_set; /* owned by the thread that claimed the pool */
    struct dpool_private_pool *next;
} dpool_private_pool;

typedef struct dpool_route {
    dpool_private_pool *pool;
    ductile_pool_filter filter; /* NULL: requests of `thread` */
    void *user;
    uint64_t thread;   /* the thread that began it */
    uint32_t n_inside; /* threads in the filter */
    bool has_ended;
    struct dpool_route *next; /* older */
} dpool_route;

static inline bool dpool_is_default(const dpool_private_pool *pool) {
    return pool->id.first == 0 && pool->id.second == 0;
}

static inline bool dpool_is_held(const dpool_private_pool *pool) {
    return pool->refs > 0 || pool->n_routes > 0;
}

/* No request will come to it any more, unless it is opened again. */
static inline bool dpool_is_released(const dpool_private_pool *pool) {
    return !dpool_is_held(pool) && !dpool_is_default(pool);
}

/* Takes a reference to the pool. A new pool uses `spare`, which then becomes NULL. */
dpool_private_pool *dpool_retain_pool_locked(ductile_allocator *a, ductile_pool_id id,
                                             dpool_private_pool **spare);

/* Unlinks a pool without references and returns it, for the caller to free without the lock; NULL
 * when it still has some. */
dpool_private_pool *dpool_unlink_unused_pool_locked(ductile_allocator *a, dpool_private_pool *pool);

bool dpool_is_same_pool(ductile_pool_id a, ductile_pool_id b);

/* The pool of that name, which stays until dpool_unpin; NULL when there is none. No lock held. */
dpool_private_pool *dpool_pin_pool(ductile_allocator *a, ductile_pool_id id);

/* Drops the pin that this, or dpool_pool_of, left. No lock held. */
void dpool_unpin(ductile_allocator *a, dpool_private_pool *pool);

/* The pool of that name, NULL when there is none. Index lock held. */
dpool_private_pool *dpool_find_pool_locked(const ductile_allocator *a, ductile_pool_id id);

/* Are there any private pools? No lock held. */
bool dpool_has_pools(ductile_allocator *a);

/* Between begin and end no capture pool of this allocator is opened, and no capture of the process
 * begins, as far as it is announced. begin returns false when one is open or under way. No lock
 * held. */
bool dpool_context_wait_begin(ductile_allocator *a);
void dpool_context_wait_end(ductile_allocator *a);

/* No pool is opened between begin and end. begin returns false when one is open. No lock held. */
bool dpool_stream_wait_begin(ductile_allocator *a);
void dpool_stream_wait_end(ductile_allocator *a);

/* Counts an arena out of its pool. Returns the pool when nothing needs it any more, for the caller
 * to free without the lock; else NULL. Index lock held. */
dpool_private_pool *dpool_leave_pool_locked(ductile_allocator *a, dpool_private_pool *pool);

/* Sleeps briefly between two polls of another thread. */
void dpool_wait_briefly(void);

/* Frees a pool that was unlinked; NULL: does nothing. Index lock not held. */
void dpool_free_pool(dpool_private_pool *pool);

#endif
