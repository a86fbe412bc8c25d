/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/grow.h"

#include "pool/log.h"
#include "pool/place.h"
#include "pool/plan.h"
#include "pool/progress.h"
#include "pool/serve.h"
#include "pool/trim.h"

/* Granules unmapped in one call: a bounded stall, but never less than the call may retire, or
 * retiring addresses would pile up and push the arena ever higher. */
enum { RECLAIM_PER_CALL = 64 };

typedef struct request {
    uint64_t size;
    uint64_t requested;
    ductile_stream stream;
    dpool_arena *arena;
    bool tried_without_cache;
    dpool_block *block; /* the result */
} request;

dvmm_capture_mode dpool_slow_enter(ductile_allocator *a) {
    dti_lock_take(&a->slow);
    return dvmm_capture_relax(a->driver);
}

void dpool_slow_leave(ductile_allocator *a, dvmm_capture_mode mode) {
    dvmm_capture_restore(a->driver, mode);
    dti_lock_open(&a->slow);
}

/* ---- Growing ------------------------------------------------------------------------------- */

static bool serve(ductile_allocator *a, request *r) {
    dti_lock_take(&a->hot);
    r->block = dpool_serve_locked(a, r->arena, r->size, r->requested);
    dti_lock_open(&a->hot);
    return r->block != NULL;
}

static uint64_t count_moved(const dpool_plan *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_handles; i++) {
        n += p->origins[i] == DPOOL_FROM_DONOR;
    }
    return n;
}

/* The plan is made: carries it out and publishes or cancels. */
static ductile_status carry_out(ductile_allocator *a, request *r) {
    dpool_region *region = a->plan->region;
    ductile_status status = dpool_plan_execute(a);
    dti_lock_take(&a->hot);
    if (status == DUCTILE_OK) {
        a->counts.recycled_handles += count_moved(a->plan);
        r->block = dpool_plan_publish_locked(a, r->requested);
    } else {
        dpool_plan_cancel_locked(a);
    }
    r->arena->heal_due |= r->arena->gaps.count > r->arena->gaps_tolerated;
    dpool_publish_locked(a, region);
    dti_lock_open(&a->hot);
    return status;
}

typedef enum planned { PLANNED, PLAN_LACKS_RANGE, PLAN_LACKS_NODES, PLAN_LACKS_MEMORY } planned;

static planned plan_locked(ductile_allocator *a, request *r, unsigned sources) {
    if (a->nodes.n_spare < dpool_plan_nodes(a, r->size)) {
        return PLAN_LACKS_NODES; /* hits of other threads took them */
    }
    dpool_place place = dpool_place_choose_locked(a, r->arena, r->size);
    if (place.block == NULL) {
        return PLAN_LACKS_RANGE;
    }
    ductile_status status = dpool_plan_request_locked(a, r->arena, &place, r->size, sources);
    return status == DUCTILE_OK ? PLANNED : PLAN_LACKS_MEMORY;
}

/* Ranges with nothing in them go back when addresses are short. */
static ductile_status add_range(ductile_allocator *a, request *r) {
    ductile_status status = dpool_region_add(a, r->arena, r->size);
    if (status == DUCTILE_ERR_OUT_OF_ADDRESSES) {
        for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
            dpool_regions_release_empty(a, arena, 0);
        }
        status = dpool_region_add(a, r->arena, r->size);
    }
    return status;
}

static ductile_status grow_from(ductile_allocator *a, request *r, unsigned sources) {
    for (;;) {
        ductile_status status = dpool_reserve_room(a, dpool_plan_nodes(a, r->size));
        if (status != DUCTILE_OK) {
            return status;
        }
        dti_lock_take(&a->hot);
        planned how = plan_locked(a, r, sources);
        dti_lock_open(&a->hot);
        if (how == PLANNED) {
            return carry_out(a, r);
        }
        if (how == PLAN_LACKS_MEMORY) {
            return DUCTILE_ERR_OUT_OF_MEMORY;
        }
        if (how == PLAN_LACKS_RANGE) {
            status = add_range(a, r);
        }
        if (status != DUCTILE_OK) {
            return status;
        }
    }
}

static unsigned foreign_donors(const ductile_allocator *a) {
    return a->options.cross_stream_reuse == DUCTILE_CROSS_STREAM_OFF ? 0 : DPOOL_FOREIGN_DONORS;
}

static ductile_status grow(ductile_allocator *a, request *r) {
    unsigned all = DPOOL_OWN_DONORS | foreign_donors(a);
    if (a->options.recycle == DUCTILE_RECYCLE_NEVER) {
        return grow_from(a, r, 0);
    }
    if (a->options.recycle == DUCTILE_RECYCLE_PRESSURE) {
        ductile_status status = grow_from(a, r, 0);
        if (status != DUCTILE_ERR_OUT_OF_MEMORY) {
            return status;
        }
    }
    ductile_status status = grow_from(a, r, all);
    if (status != DUCTILE_OK && a->plan->mark_failed) {
        /* Own memory cannot move without a marker; what others have proven done can. */
        status = dvmm_usable(a->driver);
        status = status == DUCTILE_OK ? grow_from(a, r, foreign_donors(a)) : status;
    }
    return status;
}

/* ---- One attempt, under the slow lock ------------------------------------------------------ */

/* Reads what others have reached, unmaps a bounded part of what they gave away, and lets go of
 * arenas whose stream is gone once they hold nothing. The list changes under the slow lock only. */
static void poll_all(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        dpool_poll(a, arena, RECLAIM_PER_CALL);
        if (arena->is_gone && arena->mapped_bytes == 0) {
            dpool_regions_release_empty(a, arena, 0);
            dpool_arena_drop_if_empty(a, arena);
        }
    }
}

static ductile_status attempt(ductile_allocator *a, request *r) {
    ductile_status status = dpool_arena_get(a, r->stream, &r->arena);
    if (status == DUCTILE_OK) {
        status = dpool_plan_reserve(a, r->size);
    }
    if (status == DUCTILE_OK) {
        status = dpool_reserve_room(a, 1);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    poll_all(a);
    if (serve(a, r)) {
        return DUCTILE_OK;
    }
    uint64_t may_retire = r->size / a->granule + 2;
    dpool_reclaim(a, r->arena, (uint32_t)dti_max(RECLAIM_PER_CALL, may_retire));
    dpool_collect_garbage(a, r->size);
    status = grow(a, r);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && a->max_handle_granules > 1 &&
        a->store.cached_bytes > 0 && !r->tried_without_cache) {
        r->tried_without_cache = true;
        /* Cached handles may fit no gap and yet count: give them back and try again. */
        (void)dvmm_store_release_cached(&a->store, 0);
        dpool_publish_store(a);
        status = grow(a, r);
    }
    dpool_respect_retain(a);
    return status;
}

/* ---- Pressure, without locks --------------------------------------------------------------- */

/* A wait for the whole context breaks every capture in it, whatever mode the thread is in. */
static bool any_is_captured(ductile_allocator *a, const dpool_snapshot *snapshot) {
    for (uint32_t i = 0; i < snapshot->n; i++) {
        const dpool_arena *arena = snapshot->marks[i].arena;
        if (dpool_arena_is_nameable(arena) && dvmm_is_capturing(a->driver, arena->stream)) {
            return true;
        }
    }
    return false;
}

/* Memory that only a wait can give to the requester: pending, or free and unproven. What is free
 * in its own arena needs no proof. */
static bool holds_hope_locked(const ductile_allocator *a, const dpool_arena *arena,
                              const dpool_arena *own) {
    if (arena->pending_first != NULL || arena == own) {
        return arena->pending_first != NULL;
    }
    const dpool_block *b = dpool_index_below(&arena->index, NULL);
    while (b != NULL && b->size >= a->granule && b->epoch < arena->proven_epoch) {
        b = dpool_index_below(&arena->index, b);
    }
    return b != NULL && b->size >= a->granule;
}

static bool is_there_hope(ductile_allocator *a, const dpool_arena *own) {
    bool hope = false;
    dti_lock_take(&a->hot);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !hope; arena = arena->next) {
        hope = holds_hope_locked(a, arena, own);
    }
    dti_lock_open(&a->hot);
    return hope;
}

/* Waits for all work of the device: afterwards all free memory is proven. Captures that this
 * allocator knows nothing of cannot be asked about, so it is done only where it may help. */
static bool wait_for_context(ductile_allocator *a, const dpool_arena *own) {
    dpool_snapshot snapshot;
    if (!is_there_hope(a, own) || dpool_snapshot_take(a, &snapshot) != DUCTILE_OK) {
        return false;
    }
    bool done = !any_is_captured(a, &snapshot) && dvmm_markers_wait_all(&a->markers) == DUCTILE_OK;
    if (done) {
        dpool_snapshot_settle(a, &snapshot, true);
    }
    dpool_snapshot_drop(a, &snapshot);
    return done;
}

/* Memory that this configuration may not move can still go through the driver: as much of it as
 * is missing goes back, for the next attempt to create anew. False when there is nothing to try. */
static bool pass_through_driver(ductile_allocator *a, uint64_t size, unsigned *tries) {
    bool always_moves = a->options.recycle != DUCTILE_RECYCLE_NEVER &&
                        a->options.cross_stream_reuse != DUCTILE_CROSS_STREAM_OFF &&
                        a->max_handle_granules == 1; /* larger handles may fit no gap */
    if (always_moves || *tries == 2) {
        return false;
    }
    uint64_t missing = size + 2 * a->granule; /* a window may begin and end inside a granule */
    dti_lock_take(&a->hot);
    uint64_t held = a->counts.held;
    dti_lock_open(&a->hot);
    uint64_t keep = held > missing && *tries == 0 ? held - missing : 0;
    (*tries)++;
    return dpool_trim(a, keep) == DUCTILE_OK;
}

/* Waits, without locks, for what a refused request still may hope for. */
typedef struct pressure {
    bool context_waited;
    unsigned trims;
} pressure;

static bool relieve(ductile_allocator *a, const request *r, pressure *p) {
    if (dpool_wait_pending(a)) {
        return true;
    }
    if (!p->context_waited) {
        p->context_waited = true;
        if (wait_for_context(a, r->arena)) {
            return true;
        }
    }
    return pass_through_driver(a, r->size, &p->trims);
}

/* ---- The slow path ------------------------------------------------------------------------- */

static ductile_status attempt_once(ductile_allocator *a, request *r) {
    dvmm_capture_mode mode = dpool_slow_enter(a);
    ductile_status status = attempt(a, r);
    dpool_slow_leave(a, mode);
    return status;
}

/* A request larger than the device is refused before anything is given up for it. */
static bool can_ever_fit(ductile_allocator *a, uint64_t size) {
    dti_lock_take(&a->hot);
    uint64_t most = dti_min(a->counts.limit, a->device_bytes);
    dti_lock_open(&a->hot);
    return size <= most;
}

static uint64_t cached_now(ductile_allocator *a) {
    dti_lock_take(&a->hot);
    uint64_t cached = a->counts.cached;
    dti_lock_open(&a->hot);
    return cached;
}

/* What the attempts created in vain goes back, or a refused request would keep the device full. */
static void give_up(ductile_allocator *a, uint64_t cached_before) {
    dvmm_capture_mode mode = dpool_slow_enter(a);
    (void)dvmm_store_shrink_cache(&a->store, cached_before);
    dpool_publish_store(a);
    dpool_slow_leave(a, mode);
}

/* Waits happen without locks, and beside other threads' captures. */
static bool relieve_relaxed(ductile_allocator *a, const request *r, pressure *p) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    bool relieved = relieve(a, r, p);
    dvmm_capture_restore(a->driver, mode);
    return relieved;
}

static ductile_status attempt_under_pressure(ductile_allocator *a, request *r) {
    pressure p = {false, 0};
    uint64_t cached_before = cached_now(a);
    ductile_status status = attempt_once(a, r);
    while (status == DUCTILE_ERR_OUT_OF_MEMORY && relieve_relaxed(a, r, &p)) {
        status = attempt_once(a, r);
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        give_up(a, cached_before);
    }
    return status;
}

void dpool_refuse(ductile_allocator *a, ductile_status status, uint64_t requested) {
    dti_lock_take(&a->hot);
    a->counts.out_of_memory += status == DUCTILE_ERR_OUT_OF_MEMORY;
    dti_lock_open(&a->hot);
    dpool_log_refusal(a, status, requested);
}

static void count_slow(ductile_allocator *a) {
    dti_lock_take(&a->hot);
    a->counts.slow_allocs++;
    dti_lock_open(&a->hot);
}

ductile_status dpool_alloc_slow(ductile_allocator *a, uint64_t size, uint64_t requested,
                                ductile_stream stream, dpool_block **out) {
    request r = {.size = size, .requested = requested, .stream = stream};
    dpool_forget_failure();
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    if (can_ever_fit(a, size)) {
        status = attempt_under_pressure(a, &r);
    }
    dpool_log_losses(a);
    if (status == DUCTILE_OK) {
        count_slow(a);
    } else {
        dpool_refuse(a, status, requested);
    }
    *out = r.block;
    return status;
}
