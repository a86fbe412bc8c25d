/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/attempt.h"

#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/placement.h"
#include "pool/growth/plan.h"
#include "pool/sharing/dedicated.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

/* Granules unmapped in one call: a bounded stall, but never less than the call may retire, or
 * retiring addresses would pile up and push the arena ever higher. */
enum { RECLAIM_PER_CALL = 64 };

/* Markers of spans with waits that one call asks about. */
enum { WAITS_PER_CALL = 64 };

/* ---- Growing ------------------------------------------------------------------------------- */

static bool serve(ductile_allocator *a, dpool_request *r) {
    if (r->one_handle) {
        dti_lock_acquire(&a->index_lock);
        r->block = dpool_serve_one_handle_locked(a, r->arena, r->size, r->requested);
        dti_lock_release(&a->index_lock);
        return r->block != NULL;
    }
    dti_lock_acquire(&a->index_lock);
    r->block = dpool_alloc_from_free_locked(a, r->arena, r->size, r->requested);
    dti_lock_release(&a->index_lock);
    if (r->block != NULL && dpool_wait_hand_out(a, r->block) == NULL) {
        dti_lock_acquire(
            &a->index_lock); /* the stream cannot wait: perhaps another block needs no wait */
        r->block = dpool_wait_serve_around_locked(a, r->arena, r->size, r->requested);
        dti_lock_release(&a->index_lock);
    }
    return r->block != NULL;
}

/* The plan is made: carries it out and publishes or cancels. */
static ductile_status carry_out(ductile_allocator *a, dpool_request *r) {
    dpool_region *region = a->plan->region;
    ductile_status status = dpool_plan_execute(a);
    dti_lock_acquire(&a->index_lock);
    if (status == DUCTILE_OK) {
        a->counts.recycled_handles += a->plan->n_moved;
        r->block = dpool_plan_publish_locked(a, r->requested);
    } else {
        dpool_plan_cancel_locked(a);
    }
    if (r->arena->gaps.count > r->arena->gaps_tolerated) {
        dpool_arena_want_heal(r->arena);
    }
    dpool_count_span_locked(a, region);
    dti_lock_release(&a->index_lock);
    return status;
}

typedef enum planned { PLANNED, PLAN_LACKS_RANGE, PLAN_LACKS_NODES, PLAN_LACKS_MEMORY } planned;

static planned plan_locked(ductile_allocator *a, dpool_request *r, unsigned sources) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (a->nodes.n_spare < dpool_plan_nodes(a, r->size)) {
        return PLAN_LACKS_NODES; /* hits of other threads took them */
    }
    dpool_place place = r->in_gap ? dpool_place_in_gap_locked(a, r->arena, r->size)
                                  : dpool_place_choose_locked(a, r->arena, r->size);
    if (place.block == NULL) {
        return PLAN_LACKS_RANGE;
    }
    ductile_status status = dpool_plan_request_locked(a, r->arena, &place, r->size, sources);
    return status == DUCTILE_OK ? PLANNED : PLAN_LACKS_MEMORY;
}

/* Ranges with nothing in them go back when addresses are short. */
static ductile_status add_range(ductile_allocator *a, dpool_request *r) {
    ductile_status status = dpool_region_add(a, r->arena, r->size);
    if (status == DUCTILE_ERR_OUT_OF_ADDRESSES) {
        for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
            dpool_regions_release_empty(a, arena, 0);
        }
        status = dpool_region_add(a, r->arena, r->size);
    }
    return status;
}

static bool has_free_granule(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    const dpool_block *largest = dpool_index_below(&arena->index, NULL);
    bool has = largest != NULL && largest->size >= a->granule;
    dti_lock_release(&a->index_lock);
    return has;
}

void dpool_prove_own(ductile_allocator *a, dpool_arena *arena) {
    if (dpool_may_exchange(a) && has_free_granule(a, arena)) {
        (void)dpool_mark(a, arena, NULL);
        dpool_poll_marks(a, arena);
    }
}

static ductile_status grow_from(ductile_allocator *a, dpool_request *r, unsigned sources) {
    for (;;) {
        ductile_status status = dpool_reserve_room(a, dpool_plan_nodes(a, r->size));
        if (status != DUCTILE_OK) {
            return status;
        }
        if ((sources & DPOOL_OWN_DONORS) != 0) {
            dpool_prove_own(a, r->arena);
        }
        dti_lock_acquire(&a->index_lock);
        planned how = plan_locked(a, r, sources);
        dti_lock_release(&a->index_lock);
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

/* What is taken before anything is refused or waited for on the host. */
static unsigned last_donors(const ductile_allocator *a, unsigned sources) {
    bool waits = a->options.cross_stream_reuse == DUCTILE_CROSS_STREAM_WAIT;
    return sources | (waits ? DPOOL_UNPROVEN_DONORS : 0);
}

static ductile_status grow_by_policy(ductile_allocator *a, dpool_request *r, unsigned foreign) {
    unsigned all = DPOOL_OWN_DONORS | foreign;
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
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && last_donors(a, all) != all) {
        all = last_donors(a, all);
        status = grow_from(a, r, all);
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && dpool_has_pools(a) && foreign_donors(a) != 0) {
        status = grow_from(a, r, all | DPOOL_POOL_DONORS);
    }
    return status;
}

/* A stream that cannot be marked, or cannot wait, just now: its own memory stays where it is, or as
 * it is. What others have proven done can move, and new memory can come. */
static ductile_status grow(ductile_allocator *a, dpool_request *r) {
    unsigned foreign = foreign_donors(a) | (r->from_pools ? DPOOL_POOL_DONORS : 0);
    r->in_gap = r->one_handle;
    if (r->one_handle) {
        return grow_from(a, r, DPOOL_ONE_HANDLE);
    }
    ductile_status status = grow_by_policy(a, r, foreign);
    if (status == DUCTILE_OK || !(a->plan->mark_failed || a->plan->wait_failed)) {
        return status;
    }
    status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK) {
        return status;
    }
    r->in_gap = r->could_not_wait = a->plan->wait_failed;
    return grow_from(a, r, foreign);
}

/* ---- One attempt, under the grow lock ------------------------------------------------------ */

/* Reads what others have reached, unmaps a bounded part of what they gave away, and lets go of
 * arenas whose stream is gone once they hold nothing. The list changes under the grow lock only. */
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

static ductile_status attempt(ductile_allocator *a, dpool_request *r) {
    ductile_status status = dpool_arena_get(a, r->pool, r->stream, &r->arena);
    if (status == DUCTILE_OK) {
        status = dpool_plan_reserve(a, r->size);
    }
    if (status == DUCTILE_OK) {
        status = dpool_reserve_room(a, 2);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_mark_unmarked(a, r->stream, false);
    poll_all(a);
    dpool_wait_poll(a, WAITS_PER_CALL);
    if (serve(a, r)) {
        return DUCTILE_OK;
    }
    if (r->pool == NULL && dvmm_is_surely_capturing(a->driver, r->stream)) {
        return DUCTILE_ERR_CAPTURING; /* what a graph uses must be kept for it, in a pool */
    }
    uint64_t may_retire = r->size / a->granule + 2;
    dpool_reclaim_own(a, r->arena, (uint32_t)dti_max(RECLAIM_PER_CALL, may_retire));
    status = grow(a, r);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        r->missing = a->plan->lacks;
    }
    return status;
}

ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r) {
    uint64_t hard = a->store.limit_bytes;
    a->store.limit_bytes = r->is_soft ? dti_min(hard, a->soft_limit) : hard;
    ductile_status status = attempt(a, r);
    a->store.limit_bytes = a->counts.limit; /* may have changed while the plan was announced */
    return status;
}
