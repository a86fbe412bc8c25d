/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/attempt.h"

#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/dedicated.h"
#include "pool/growth/drop_empty.h"
#include "pool/growth/give_back.h"
#include "pool/growth/homes.h"
#include "pool/growth/maintenance.h"
#include "pool/growth/plan.h"
#include "pool/growth/sizes.h"
#include "pool/growth/spill.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/progress.h"

#include "vmm/base/align.h"

/* Granules unmapped in one call, and spans with waits polled: a bounded stall, but never less than
 * the call may retire, or retiring addresses would pile up and push the arena ever higher. */
enum { MOST_PER_CALL = 64 };

static bool search_again(ductile_allocator *a, dpool_request *r) {
    dti_lock_acquire(&a->index_lock);
    r->block = dpool_alloc_from_free_locked(a, r->arena, r->size, r->requested);
    dti_lock_release(&a->index_lock);
    if (r->block != NULL && dpool_wait_before_return(a, r->block) == NULL) {
        /* The stream cannot wait: perhaps another block needs no wait. */
        dti_lock_acquire(&a->index_lock);
        r->block = dpool_alloc_without_waits_locked(a, r->arena, r->size, r->requested);
        dti_lock_release(&a->index_lock);
    }
    return r->block != NULL;
}

/* ---- Where memory comes from ---------------------------------------------------------------- */

typedef struct attempt {
    ductile_allocator *a;
    const dpool_request *r;
    dpool_plan *p;
} attempt;

/* Whatever else is true of it. */
static bool never_spills(const ductile_allocator *a, const dpool_request *r) {
    return r->is_alone || r->units != NULL || a->store.n_devices > 1 || dpool_had_graphs(r->arena);
}

static uint64_t most_held(const ductile_allocator *a, const dpool_request *r) {
    uint64_t most = never_spills(a, r) ? UINT64_MAX : dpool_most_beside_small(a, r->requested);
    return r->is_soft ? dti_min(a->soft_limit, most) : most;
}

static bool moves_own(const attempt *t) {
    return t->r->reach == DPOOL_REACH_FREE || t->r->reach == DPOOL_REACH_POOLS;
}

static bool moves_others(const attempt *t) {
    return t->r->reach != DPOOL_REACH_NEW && dpool_may_cross(t->a);
}

static bool waits_for_others(const attempt *t) {
    return moves_own(t) && t->a->options.reuse == DUCTILE_REUSE_WAIT;
}

static bool has_room_to_spare(const attempt *t) {
    uint64_t bytes = dpool_plan_missing(t->p) * t->a->granule;
    return dpool_should_create_locked(t->a, t->r->size, bytes, t->p->max_held);
}

static bool is_for_graphs(const attempt *t) {
    return dpool_had_graphs(t->r->arena);
}

/* What goes to a graph's pool does not come back as long as it lives: it would be held besides. */
static bool creates_first(const attempt *t) {
    return !is_for_graphs(t) && has_room_to_spare(t);
}

/* A stream that is captured cannot wait, and a plan that fails for it leaves own memory unused. */
static bool creates_unwaited(const attempt *t) {
    return is_for_graphs(t) && has_room_to_spare(t);
}

static void take_own(const attempt *t) {
    dpool_plan_take_own_locked(t->a, t->p);
}

static bool asks_pools(const attempt *t) {
    return t->r->from_pools || t->r->reach == DPOOL_REACH_POOLS;
}

static void take_proven(const attempt *t) {
    dpool_plan_take_others_locked(t->a, t->p, false, asks_pools(t));
}

static void take_behind_wait(const attempt *t) {
    dpool_plan_take_others_locked(t->a, t->p, true, asks_pools(t));
}

static void create(const attempt *t) {
    t->p->created = dpool_plan_missing(t->p);
}

/* From the least disturbing on. A source gives what is missing, as far as it can; the handle cache
 * serves every request first. */
static const struct source {
    bool (*applies)(const attempt *t); /* NULL: always */
    void (*take)(const attempt *t);
} sources[] = {
    {creates_first, create},              /* moving memory to and fro costs more */
    {moves_own, take_own},                /* free memory of the stream itself */
    {moves_others, take_proven},          /* free memory of other streams that is proven done */
    {creates_unwaited, create},           /* where a wait may be impossible */
    {waits_for_others, take_behind_wait}, /* and what is not, if the stream waits on the GPU */
    {NULL, create},                       /* up to the limit, or the request lacks memory */
};

enum { N_SOURCES = sizeof sources / sizeof sources[0] };

static bool moves_at_once(const ductile_allocator *a) {
    return a->options.reuse != DUCTILE_REUSE_NEVER;
}

static dpool_reach most_reach(ductile_allocator *a) {
    if (a->options.reuse == DUCTILE_REUSE_NEVER) {
        return DPOOL_REACH_NEW;
    }
    return dpool_may_cross(a) && dpool_has_pools(a) ? DPOOL_REACH_POOLS : DPOOL_REACH_FREE;
}

/* Is there another plan to try after a failure? First the same with smaller handles, then one that
 * reaches further; in the end one for a stream that cannot wait now. */
static bool reach_further(ductile_allocator *a, dpool_request *r, const dpool_plan *p,
                          ductile_status *status) {
    if (p->was_refused && dpool_sizes_refused(a)) {
        return true;
    }
    if (*status == DUCTILE_ERR_OUT_OF_MEMORY && r->reach < most_reach(a)) {
        r->reach++;
        return true;
    }
    if (r->reach == DPOOL_REACH_AROUND || !p->wait_failed) {
        return false;
    }
    *status = dvmm_usable(a->driver);
    r->could_not_wait = true;
    r->reach = DPOOL_REACH_AROUND;
    return *status == DUCTILE_OK;
}

bool dpool_all_may_move(const ductile_allocator *a, const dpool_request *r) {
    return dpool_may_cross(a) && !r->is_alone && /* one that is has no donors */
           !dpool_has_large_handles(a);          /* larger handles may fit no gap */
}

/* ---- A plan -------------------------------------------------------------------------------- */

static ductile_status try_range(ductile_allocator *a, const dpool_request *r) {
    if (r->is_range) {
        return dpool_region_add_exact(a, r->arena, r->size, 0);
    }
    return r->is_alone || r->spills ? dpool_dedicated_add(a, r->arena, r->size)
                                    : dpool_region_add(a, r->arena, r->size);
}

ductile_status dpool_add_range(ductile_allocator *a, const dpool_request *r) {
    ductile_status status = try_range(a, r);
    if (status == DUCTILE_ERR_OUT_OF_ADDRESSES) {
        dpool_poll_all(a, UINT32_MAX);
        (void)dpool_unmap_unused(a, DPOOL_UNUSED_IDLE, UINT64_MAX);
        dpool_drop_empty(a, true);
        status = try_range(a, r);
    }
    return status;
}

/* The rest of a plan whose window is BUSY. */
static ductile_status find_sources_locked(const attempt *t) {
    DTI_ASSERT_HELD(&t->a->index_lock);
    for (int i = 0; i < N_SOURCES && dpool_plan_missing(t->p) > 0; i++) {
        if (sources[i].applies == NULL || sources[i].applies(t)) {
            sources[i].take(t);
        }
    }
    return dpool_plan_end_locked(t->a, t->p);
}

static ductile_status plan_at_locked(const attempt *t, const dpool_place *place) {
    DTI_ASSERT_HELD(&t->a->index_lock);
    const dpool_request *r = t->r;
    dpool_plan_begin_locked(t->a, t->p, r->arena, place, r->size, most_held(t->a, r));
    return find_sources_locked(t);
}

/* Repeats until there are enough nodes and addresses. Then all that the plan needs is BUSY. */
static ductile_status make_plan(const attempt *t) {
    ductile_allocator *a = t->a;
    const dpool_request *r = t->r;
    uint64_t n_nodes = dpool_plan_nodes(a, r->size);
    for (;;) {
        DTI_TRY(dpool_reserve_room(a, n_nodes));
        ductile_status status = DUCTILE_OK;
        if (moves_own(t)) {
            dpool_prove_own(a, r->arena);
        }
        dti_lock_acquire(&a->index_lock);
        bool has_nodes = a->nodes.n_spare >= n_nodes; /* hits of other threads may take them */
        dpool_place place = r->reach == DPOOL_REACH_AROUND
                                ? dpool_place_in_gap_locked(a, r->arena, r->size)
                                : dpool_place_choose_locked(a, r->arena, r->size);
        bool can_plan = has_nodes && place.block != NULL;
        if (can_plan) {
            status = plan_at_locked(t, &place);
        }
        dti_lock_release(&a->index_lock);
        if (can_plan) {
            return status;
        }
        status = place.block == NULL ? dpool_add_range(a, r) : DUCTILE_OK;
        if (status != DUCTILE_OK) {
            return status;
        }
    }
}

static void end_plan(ductile_allocator *a, dpool_request *r, dpool_plan *p, ductile_status status) {
    dti_lock_acquire(&a->index_lock);
    if (status == DUCTILE_OK) {
        a->counts.recycled_handles += p->n_moved;
        r->block = dpool_plan_commit_locked(a, p, r->requested);
    } else {
        dpool_plan_abort_locked(a, p);
    }
    if (r->arena->blocks.gaps.count > r->arena->compaction.gaps_tolerated) {
        dpool_arena_want_compaction(r->arena);
    }
    dti_lock_release(&a->index_lock);
}

/* ---- Units ---------------------------------------------------------------------------------- */

/* Some units are in the plan of a thread that runs map callbacks now; it will end. */
static void wait_for_plan_of_other(ductile_allocator *a) {
    dti_lock_release(&a->grow_lock);
    dpool_wait_briefly();
    dti_lock_acquire(&a->grow_lock);
}

/* Can a plan serve them, as they are? */
static ductile_status look_at_units_locked(const ductile_allocator *a, dpool_request *r) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t bytes[DPOOL_STATES];
    dpool_units_sum_locked(a, r->units, bytes);
    uint64_t usable = bytes[DPOOL_LIVE] + bytes[DPOOL_FREE] + bytes[DPOOL_GAP] + bytes[DPOOL_BUSY] +
                      bytes[DPOOL_PENDING];
    if (usable < dpool_units_bytes(r->units)) {
        return DUCTILE_ERR_DRIVER; /* the addresses of the others are lost */
    }
    if (bytes[DPOOL_BUSY] > 0) {
        return DUCTILE_ERR_BUSY;
    }
    r->awaits_pending = bytes[DPOOL_PENDING] > 0;
    r->missing = r->needed = bytes[DPOOL_PENDING];
    return r->awaits_pending ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK;
}

/* Repeats until there are enough nodes, and no other thread's plan is in the way. */
static ductile_status make_plan_for_units(const attempt *t, dpool_request *r) {
    ductile_allocator *a = t->a;
    uint64_t n_units = dpool_count_units(r->units);
    uint64_t n_nodes = dpool_plan_nodes(a, dpool_units_bytes(r->units)) + n_units;
    ductile_status status = DUCTILE_ERR_BUSY;
    while (status == DUCTILE_ERR_BUSY) {
        DTI_TRY(dpool_reserve_places(a, n_nodes, n_units));
        dti_lock_acquire(&a->index_lock);
        status = look_at_units_locked(a, r);
        bool waits = status == DUCTILE_ERR_BUSY;
        if (status == DUCTILE_OK && a->nodes.n_spare < n_nodes) {
            status = DUCTILE_ERR_BUSY; /* hits of other threads took them */
        }
        if (status == DUCTILE_OK) {
            dpool_plan_begin_units_locked(a, t->p, r->units, most_held(a, r));
            status = find_sources_locked(t);
        }
        dti_lock_release(&a->index_lock);
        if (waits) {
            wait_for_plan_of_other(a);
        }
    }
    return status;
}

/* As the option `zero` wants it, while no other thread finds them. */
static ductile_status zero_parts(ductile_allocator *a, const dpool_plan *p) {
    ductile_status status = DUCTILE_OK;
    uint32_t n = a->options.zero != 0 ? p->n_parts : 0;
    for (uint32_t i = 0; i < n && status == DUCTILE_OK; i++) {
        const dpool_block *b = p->parts[i];
        status = dseg_zero(&a->store, b->addr, b->size, p->arena->stream);
    }
    return status;
}

/* The plan makes units FREE, and they become LIVE at once, if the address map has room. */
static ductile_status end_plan_for_units(ductile_allocator *a, dpool_request *r, dpool_plan *p,
                                         ductile_status status) {
    ductile_status zeroed = status == DUCTILE_OK ? zero_parts(a, p) : DUCTILE_OK;
    dti_lock_acquire(&a->index_lock);
    if (status == DUCTILE_OK) {
        a->counts.recycled_handles += p->n_moved;
        (void)dpool_plan_commit_locked(a, p, 0);
        r->is_served = zeroed == DUCTILE_OK && dpool_units_take_locked(a, r->units);
    } else {
        dpool_plan_abort_locked(a, p);
    }
    dti_lock_release(&a->index_lock);
    return status == DUCTILE_OK ? zeroed : status;
}

/* What no request has taken since it was decommitted. */
static bool take_units(ductile_allocator *a, dpool_request *r) {
    if (a->options.zero == 0) {
        dti_lock_acquire(&a->index_lock);
        r->is_served = dpool_units_take_locked(a, r->units);
        dti_lock_release(&a->index_lock);
    }
    return r->is_served;
}

/* One handle. The whole cache makes room for it. */
static ductile_status make_dedicated(ductile_allocator *a, dpool_request *r) {
    const dvmm_store_totals *t = &a->store.totals;
    uint64_t after = t->held_bytes - t->cached_bytes + r->size;
    r->needed = after;
    r->missing = dpool_above_limits(a, after, most_held(a, r));
    if (r->missing > 0) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    r->missing = r->size; /* if the device refuses */
    DTI_TRY(dpool_add_range(a, r));
    return dpool_dedicated_fill(a, r->arena->blocks.regions, most_held(a, r), r->requested,
                                &r->block);
}

static ductile_status make_spilled(ductile_allocator *a, dpool_request *r) {
    dpool_spill s = dpool_spill_prepare(a, r->size, r->refused);
    r->missing = (s.n_granules - s.n_device) * a->granule;
    ductile_status status = s.lacks_host > 0 ? DUCTILE_ERR_OUT_OF_MEMORY : dpool_add_range(a, r);
    if (status == DUCTILE_OK) {
        status = dpool_spill_fill(a, r->arena->blocks.regions, &s, r->requested, &r->block);
    }
    r->lacks_host = s.lacks_host;
    r->refused += s.n_refused;
    return status;
}

/* ---- One attempt --------------------------------------------------------------------------- */

/* The arena stays while map callbacks run, even if it holds nothing yet. */
static void hold_arena(ductile_allocator *a, dpool_arena *arena, int change) {
    dti_lock_acquire(&a->index_lock);
    arena->users.n_waiters += (uint32_t)change;
    dti_lock_release(&a->index_lock);
}

static ductile_status prepare(ductile_allocator *a, dpool_request *r, dpool_plan **p) {
    if (r->units == NULL) {
        DTI_TRY(dpool_arena_get(a, r->pool, r->stream, &r->arena));
    }
    hold_arena(a, r->arena, 1);
    *p = dpool_plan_take(a, r->units != NULL ? dpool_units_bytes(r->units) : r->size);
    return *p != NULL ? dpool_reserve_room(a, 2) : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

/* Memory that a graph uses must be kept for it, in a pool that the program has opened: not in the
 * default pool, nor in what stands in for it while it sleeps. */
static bool keeps_for_nobody(ductile_allocator *a, const dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    bool stands_in = pool == a->bypass && pool->n_routes == 0 && pool->kind == DUCTILE_POOL_PLAIN;
    dti_lock_release(&a->index_lock);
    return stands_in || dpool_is_default(pool);
}

/* Marks all that a plan needs BUSY under the index lock. The driver is called without it, so that
 * hits continue; then the blocks get their final states. */
static ductile_status plan_and_grow(ductile_allocator *a, dpool_request *r, dpool_plan *p) {
    ductile_status status = DUCTILE_OK;
    r->reach = moves_at_once(a) ? DPOOL_REACH_FREE : DPOOL_REACH_NEW;
    do {
        const attempt t = {a, r, p};
        status = r->units != NULL ? make_plan_for_units(&t, r) : make_plan(&t);
        if (status == DUCTILE_OK) {
            status = dpool_plan_execute(a, p);
            if (r->units != NULL) {
                status = end_plan_for_units(a, r, p, status);
            } else {
                end_plan(a, r, p, status);
            }
        }
    } while (status != DUCTILE_OK && !r->awaits_pending && reach_further(a, r, p, &status));
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && !r->awaits_pending) {
        r->missing = p->lacks;
        r->needed = p->needs;
    }
    return status;
}

/* Where hits of other threads took the places that were reserved for the units, they are FREE. */
static ductile_status attempt_units(ductile_allocator *a, dpool_request *r, dpool_plan *p) {
    /* a graph would fill them with zeros again at each launch */
    bool would_record = a->options.zero != 0 && dvmm_is_surely_capturing(a->driver, r->stream);
    ductile_status status = would_record ? DUCTILE_ERR_CAPTURING : DUCTILE_OK;
    while (status == DUCTILE_OK && !r->is_served && !take_units(a, r)) {
        status = plan_and_grow(a, r, p);
    }
    return status;
}

ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_plan *p = NULL;
    r->arena = r->units != NULL ? r->units->range->arena : NULL;
    r->awaits_pending = false;
    ductile_status status = prepare(a, r, &p);
    if (status != DUCTILE_OK) {
        goto done;
    }

    /* Other threads held the lock before, and the GPU has made progress: search again. */
    dpool_tidy(a, r->arena, r->stream, MOST_PER_CALL);
    if (r->units != NULL) { /* the program keeps what its graphs use */
        status = attempt_units(a, r, p);
        goto done;
    }
    if (!r->is_alone && search_again(a, r)) {
        goto done;
    }
    if (keeps_for_nobody(a, r->pool) && dvmm_is_surely_capturing(a->driver, r->stream)) {
        status = DUCTILE_ERR_CAPTURING;
        goto done;
    }
    if (r->is_alone) {
        status = make_dedicated(a, r);
        goto done;
    }
    if (r->spills) {
        status = make_spilled(a, r);
        goto done;
    }
    if ((dpool_go_home(a, r->arena) && search_again(a, r)) ||
        (moves_at_once(a) && dpool_open_place(a, r->arena, r->size) && search_again(a, r))) {
        goto done;
    }
    uint64_t may_retire = r->size / a->granule + 2;
    dpool_reclaim_own(a, r->arena, (uint32_t)dti_max(MOST_PER_CALL, may_retire));

    status = plan_and_grow(a, r, p);
done:
    if (p != NULL) {
        dpool_plan_give(a, p);
    }
    if (r->arena != NULL) {
        hold_arena(a, r->arena, -1);
    }
    return status;
}
