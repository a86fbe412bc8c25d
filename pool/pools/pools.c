/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pools/pools.h"

#include "pool/base/guards.h"
#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/proofs.h"
#include "pool/pools/asleep.h"
#include "pool/streams/host_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/array.h"
#include "vmm/base/lock.h"
#include "vmm/captures.h"

#include <stdlib.h>

static bool is_default(ductile_pool_id id) {
    return id.first == 0 && id.second == 0;
}

static ductile_status check_call(ductile_allocator *a, ductile_pool_id id) {
    return is_default(id) ? DUCTILE_ERR_INVALID_ARGUMENT : dpool_may_change(a);
}

ductile_status ductile_pool_retain(ductile_allocator *a, ductile_pool_id id) {
    DTI_TRY(check_call(a, id));
    dpool_private_pool *spare = calloc(1, sizeof *spare);
    if (spare == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    (void)dpool_retain_pool_locked(a, id, &spare);
    dti_lock_release(&a->index_lock);
    free(spare);
    return DUCTILE_OK;
}

/* Graphs may have used the memory until now. */
static void record_release_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (!dpool_is_held(pool)) {
        pool->released_age = a->age;
        dpool_want_mark_locked(a);
    }
}

dpool_private_pool *dpool_drop_reference_locked(ductile_allocator *a, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    pool->refs--;
    record_release_locked(a, pool);
    return dpool_unlink_unused_pool_locked(a, pool);
}

ductile_status ductile_pool_release(ductile_allocator *a, ductile_pool_id id) {
    DTI_TRY(check_call(a, id));
    ductile_status status = DUCTILE_OK;
    dpool_private_pool *gone = NULL;
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL || pool->refs == 0) {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    } else {
        gone = dpool_drop_reference_locked(a, pool);
    }
    dti_lock_release(&a->index_lock);
    dpool_free_pool(gone);
    return status;
}

static ductile_status set_kind_locked(ductile_allocator *a, ductile_pool_id id,
                                      ductile_pool_kind kind) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL || !dpool_is_held(pool)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (pool->kind == kind) {
        return DUCTILE_OK;
    }
    if (pool->n_routes > 0 || (kind == DUCTILE_POOL_PLAIN && pool->n_arenas > 0)) {
        return DUCTILE_ERR_BUSY;
    }
    pool->kind = kind;
    return DUCTILE_OK;
}

ductile_status ductile_pool_set_kind(ductile_allocator *a, ductile_pool_id id,
                                     ductile_pool_kind kind) {
    ductile_status status = check_call(a, id);
    if (status == DUCTILE_OK && kind != DUCTILE_POOL_CAPTURE && kind != DUCTILE_POOL_PLAIN) {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    dti_lock_acquire(&a->index_lock);
    status = set_kind_locked(a, id, kind);
    dti_lock_release(&a->index_lock);
    return status;
}

/* ---- Captures ------------------------------------------------------------------------------- */

void ductile_capture_begin(void) {
    dvmm_captures_begin(DVMM_CAPTURE_ANNOUNCED);
}

void ductile_capture_end(void) {
    dvmm_captures_end(DVMM_CAPTURE_ANNOUNCED);
}

ductile_status ductile_set_captures(ductile_allocator *a, ductile_captures captures) {
    ductile_status status = dpool_may_read(a);
    if (status == DUCTILE_OK && (unsigned)captures > DUCTILE_CAPTURES_ANNOUNCED) {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    atomic_store_explicit(&a->captures, (int)captures, memory_order_relaxed);
    return DUCTILE_OK;
}

/* ---- Routes -------------------------------------------------------------------------------- */

static void record_routes_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool has_any = a->routes != NULL || !dpool_is_awake(a->default_pool);
    atomic_store_explicit(&a->has_routes, has_any, memory_order_relaxed);
    atomic_store_explicit(&a->markers.expects_captures, a->routes != NULL, memory_order_release);
}

static void link_route_locked(ductile_allocator *a, dpool_route *route, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    route->pool = pool;
    pool->n_routes++;
    route->next = a->routes;
    a->routes = route;
    record_routes_locked(a);
}

/* False when a wait for the whole context or for a stream is under way, which a capture would
 * break. */
static bool try_to_open_locked(ductile_allocator *a, ductile_pool_id id, dpool_route *route,
                               dpool_private_pool **spare) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *known = dpool_find_pool_locked(a, id);
    bool is_plain = known != NULL && dpool_is_held(known) && known->kind == DUCTILE_POOL_PLAIN;
    if (a->n_stream_waits > 0 || (!is_plain && a->n_context_waits > 0)) {
        return false;
    }
    link_route_locked(a, route, dpool_retain_pool_locked(a, id, spare));
    return true;
}

static void open_route(ductile_allocator *a, ductile_pool_id id, dpool_route *route,
                       dpool_private_pool *spare) {
    bool is_open = false;
    while (!is_open) {
        dti_lock_acquire(&a->index_lock);
        is_open = try_to_open_locked(a, id, route, &spare);
        dti_lock_release(&a->index_lock);
        if (!is_open) {
            dpool_wait_briefly();
        }
    }
    free(spare);
}

/* Proves now what graphs that are gone have left, because that is impossible during the capture: a
 * mark will be done in time, and where none can be recorded, the host waits. */
static void prove_released(ductile_allocator *a) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    bool is_marked = dpool_record_mark(a, NULL) == DUCTILE_OK;
    if (!is_marked && dpool_awaits_device(a)) {
        (void)dpool_wait_for_all_work(a, NULL);
    }
    dvmm_capture_restore(a->driver, mode);
}

ductile_status ductile_pool_begin(ductile_allocator *a, ductile_pool_id id,
                                  ductile_pool_filter filter, void *user) {
    DTI_TRY(check_call(a, id));
    dpool_private_pool *spare = calloc(1, sizeof *spare);
    dpool_route *route = calloc(1, sizeof *route);
    if (spare == NULL || route == NULL) {
        free(spare);
        free(route);
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *route = (dpool_route){.filter = filter, .user = user, .thread = dti_thread_number()};
    prove_released(a);
    dvmm_captures_begin(DVMM_CAPTURE_POSSIBLE);
    open_route(a, id, route, spare);
    return DUCTILE_OK;
}

/* The latest route of this thread to the pool; when it has none, the latest of any thread. */
static dpool_route *route_to_end_locked(const ductile_allocator *a, ductile_pool_id id) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_route *others = NULL;
    for (dpool_route *route = a->routes; route != NULL; route = route->next) {
        if (route->has_ended || !dpool_is_same_pool(route->pool->id, id)) {
            continue;
        }
        if (route->thread == dti_thread_number()) {
            return route;
        }
        others = others == NULL ? route : others;
    }
    return others;
}

static dpool_private_pool *unlink_route_locked(ductile_allocator *a, dpool_route *route) {
    DTI_ASSERT_HELD(&a->index_lock);
    DTI_UNLINK(a->routes, route, next);
    route->pool->n_routes--;
    record_release_locked(a, route->pool);
    record_routes_locked(a);
    return dpool_unlink_unused_pool_locked(a, route->pool);
}

/* A route stays linked while a thread is inside its filter, so that the thread finds the next
 * route. */
static void close_route(ductile_allocator *a, dpool_route *route) {
    bool is_out = false;
    dpool_private_pool *gone = NULL;
    while (!is_out) {
        dti_lock_acquire(&a->index_lock);
        is_out = route->n_inside == 0;
        gone = is_out ? unlink_route_locked(a, route) : NULL;
        dti_lock_release(&a->index_lock);
        if (!is_out) {
            dpool_wait_briefly();
        }
    }
    dvmm_captures_end(DVMM_CAPTURE_POSSIBLE);
    dpool_free_pool(gone);
    free(route);
}

ductile_status ductile_pool_end(ductile_allocator *a, ductile_pool_id id) {
    DTI_TRY(check_call(a, id));
    dti_lock_acquire(&a->index_lock);
    dpool_route *route = route_to_end_locked(a, id);
    if (route != NULL) {
        route->has_ended = true;
    }
    dti_lock_release(&a->index_lock);
    if (route == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    close_route(a, route);
    dpool_mark_what_captures_left(a); /* it has ended */
    return DUCTILE_OK;
}

/* Calls the filter of a route, with the index lock unlocked meanwhile. */
static bool admits(ductile_allocator *a, dpool_route *route, ductile_stream stream) {
    if (route->has_ended || route->filter == NULL) {
        return !route->has_ended && route->thread == dti_thread_number();
    }
    route->n_inside++;
    dti_lock_release(&a->index_lock);
    bool yes = route->filter(route->user, stream) != 0;
    dti_lock_acquire(&a->index_lock);
    route->n_inside--;
    return yes && !route->has_ended;
}

/* A pool that is asked for memory by a stream under capture is a capture pool. */
static void detect_capture(ductile_allocator *a, dpool_private_pool *pool, ductile_stream stream) {
    if (!dvmm_is_capturing(a->driver, stream)) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    pool->kind = DUCTILE_POOL_CAPTURE;
    pool->has_captured = true;
    dti_lock_release(&a->index_lock);
}

static dpool_private_pool *find_route_locked(ductile_allocator *a, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_route *route = a->routes; route != NULL; route = route->next) {
        if (admits(a, route, stream)) {
            return route->pool;
        }
    }
    return NULL;
}

/* What no route accepts. */
static dpool_private_pool *fallback_locked(const ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_bypassed = !dpool_is_awake(a->default_pool) && a->bypass != NULL;
    return is_bypassed ? a->bypass : a->default_pool;
}

ductile_status dpool_pool_of(ductile_allocator *a, uint64_t bytes, ductile_stream stream,
                             dpool_private_pool **out) {
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *routed = find_route_locked(a, stream);
    dpool_private_pool *pool = routed != NULL ? routed : fallback_locked(a);
    bool may_capture = routed != NULL && (pool->kind == DUCTILE_POOL_PLAIN || !pool->has_captured);
    ductile_status status = dpool_admit_locked(a, pool, bytes);
    pool->n_users += status == DUCTILE_OK;
    dti_lock_release(&a->index_lock);
    if (status != DUCTILE_OK) {
        return status;
    }
    if (may_capture) {
        detect_capture(a, pool, stream);
    }
    *out = pool;
    return DUCTILE_OK;
}

/* ---- The default pool ---------------------------------------------------------------------- */

ductile_status dpool_default_pool_make(ductile_allocator *a) {
    a->default_pool = calloc(1, sizeof *a->default_pool);
    if (a->default_pool == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    a->default_pool->kind = DUCTILE_POOL_PLAIN;
    a->pools = a->default_pool;
    return DUCTILE_OK;
}

/* A hit pins no pool, and may have passed has_routes before the sleep began. It stops where
 * maintenance is due. */
void dpool_default_pool_changed_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    record_routes_locked(a);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        arena->calls.maintenance_at =
            arena->pool == a->default_pool ? 0 : arena->calls.maintenance_at;
    }
}

void dpool_routes_fini(ductile_allocator *a) {
    /* in a child, the gate knows nothing of what the parent announced */
    bool is_announced = dvmm_usable(a->driver) != DUCTILE_ERR_FORKED;
    while (a->routes != NULL) {
        dpool_route *route = a->routes;
        a->routes = route->next;
        if (is_announced) {
            dvmm_captures_end(DVMM_CAPTURE_POSSIBLE);
        }
        free(route);
    }
}

void dpool_pools_fini(ductile_allocator *a) {
    dpool_routes_fini(a);
    while (a->pools != NULL) {
        dpool_private_pool *pool = a->pools;
        a->pools = pool->next;
        dpool_free_pool(pool);
    }
}
