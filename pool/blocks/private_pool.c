/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/private_pool.h"

#include "vmm/base/array.h"
#include "vmm/captures.h"

#include <stdlib.h>
#include <time.h>

bool dpool_is_same_pool(ductile_pool_id a, ductile_pool_id b) {
    return a.first == b.first && a.second == b.second;
}

void dpool_wait_briefly(void) {
    const struct timespec moment = {.tv_nsec = 20000};
    (void)nanosleep(&moment, NULL);
}

dpool_private_pool *dpool_find_pool_locked(const ductile_allocator *a, ductile_pool_id id) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = a->pools;
    while (pool != NULL && !dpool_is_same_pool(pool->id, id)) {
        pool = pool->next;
    }
    return pool;
}

bool dpool_has_pools(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    bool has_any = a->pools != a->default_pool;
    dti_lock_release(&a->index_lock);
    return has_any;
}

dpool_private_pool *dpool_retain_pool_locked(ductile_allocator *a, ductile_pool_id id,
                                             dpool_private_pool **spare) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL) {
        pool = *spare;
        *spare = NULL;
        pool->id = id;
        pool->next = a->pools;
        a->pools = pool;
        a->counts.table_host_bytes += sizeof *pool;
    }
    if (!dpool_is_held(pool)) {
        pool->kind = DUCTILE_POOL_CAPTURE;
    }
    pool->refs++;
    return pool;
}

dpool_private_pool *dpool_unlink_unused_pool_locked(ductile_allocator *a,
                                                    dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!dpool_is_released(pool) || pool->n_arenas > 0 || pool->n_users > 0) {
        return NULL;
    }
    DTI_UNLINK(a->pools, pool, next);
    a->counts.table_host_bytes -= sizeof *pool;
    return pool;
}

void dpool_free_pool(dpool_private_pool *pool) {
    if (pool != NULL) {
        dvmm_host_copy_drop(&pool->host_copy);
        free(pool);
    }
}

dpool_private_pool *dpool_leave_pool_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->n_arenas--;
    return dpool_unlink_unused_pool_locked(a, pool);
}

dpool_private_pool *dpool_pin_pool(ductile_allocator *a, ductile_pool_id id) {
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool != NULL) {
        pool->n_users++;
    }
    dti_lock_release(&a->index_lock);
    return pool;
}

void dpool_unpin(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    pool->n_users--;
    dpool_private_pool *gone = dpool_unlink_unused_pool_locked(a, pool);
    dti_lock_release(&a->index_lock);
    dpool_free_pool(gone);
}

static bool are_announced(const ductile_allocator *a) {
    int captures = atomic_load_explicit(&a->captures, memory_order_relaxed);
    return captures == DUCTILE_CAPTURES_ANNOUNCED;
}

/* Is a pool open that may stand for a capture? An open plain pool may become a capture pool at its
 * next request. Where captures are announced by calls alone, an open pool says nothing. */
static bool is_capturing_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_route *first = are_announced(a) ? NULL : a->routes;
    for (const dpool_route *route = first; route != NULL; route = route->next) {
        if (!route->has_ended && route->pool->kind == DUCTILE_POOL_CAPTURE) {
            return true;
        }
    }
    return false;
}

/* Open pools that this allocator has announced; under the lock none of them goes, and those of
 * others are all that is announced beyond. Where captures are announced by calls alone, no pool
 * counts. */
static uint64_t possible_captures_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t n = 0;
    for (const dpool_route *route = a->routes; route != NULL; route = route->next) {
        n++;
    }
    return are_announced(a) ? UINT64_MAX : n;
}

bool dpool_context_wait_begin(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    bool can = !is_capturing_locked(a) && dvmm_captures_hold_beside(possible_captures_locked(a));
    a->n_context_waits += can;
    dti_lock_release(&a->index_lock);
    return can;
}

void dpool_context_wait_end(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    a->n_context_waits--;
    dti_lock_release(&a->index_lock);
    dvmm_captures_release(false);
}

/* While a pool is open, a capture may begin at any time;
 * then a thread may only wait for a marker. */
bool dpool_stream_wait_begin(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    bool can = a->routes == NULL;
    a->n_stream_waits += can;
    dti_lock_release(&a->index_lock);
    return can;
}

void dpool_stream_wait_end(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    a->n_stream_waits--;
    dti_lock_release(&a->index_lock);
}
