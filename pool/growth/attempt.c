/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/attempt.h"

#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/dedicated.h"
#include "pool/growth/plan.h"
#include "pool/growth/sizes.h"
#include "pool/growth/unused.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

/* Granules unmapped in one call, and spans with waits polled: a bounded stall, but never less than
 * the call may retire, or retiring addresses would pile up and push the arena ever higher. */

enum { MOST_PER_CALL = 64 };

/* ---- What is there already ------------------------------------------------------------------ */

/* Reads the progress of other streams, unmaps a bounded part of their retiring addresses and of
 * what streams and pools have left that are gone. */
static void poll_all(ductile_allocator *a, const dpool_request *r) {
    dpool_sizes_look(a);
    (void)dpool_record_mark(a, r->arena);
    dpool_mark_unmarked(a, r->stream, false);
    dpool_poll_all(a, MOST_PER_CALL);
    if (!dpool_retires_in_order(a)) { /* else not at a time that the GPU chooses */
        (void)dpool_unused_reclaim(a, DPOOL_UNUSED_GONE, MOST_PER_CALL);
    }
    dpool_unused_drop(a, false);
}

static bool search_again(ductile_allocator *a, dpool_request *r) {
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

/* ---- A plan -------------------------------------------------------------------------------- */

/* Gives the ranges of idle streams back when addresses are short. */
static ductile_status add_range(ductile_allocator *a, const dpool_request *r) {
    ductile_status status = dpool_region_add(a, r->arena, r->size, r->is_dedicated);
    if (status == DUCTILE_ERR_OUT_OF_ADDRESSES) {
        dpool_poll_all(a, UINT32_MAX);
        (void)dpool_unused_reclaim(a, DPOOL_UNUSED_IDLE, UINT64_MAX);
        dpool_unused_drop(a, true);
        status = dpool_region_add(a, r->arena, r->size, r->is_dedicated);
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
        (void)dpool_record_mark(a, arena);
        dpool_poll_marks(a);
    }
}

/* Repeats until there are enough nodes and addresses. Then all that the plan needs is BUSY. */
static ductile_status make_plan(ductile_allocator *a, const dpool_request *r, dpool_plan *p,
                                const dpool_sources *sources) {
    uint64_t n_nodes = dpool_plan_nodes(a, r->size);
    for (;;) {
        ductile_status status = dpool_reserve_room(a, n_nodes);
        if (status != DUCTILE_OK) {
            return status;
        }
        if (sources->own) {
            dpool_prove_own(a, r->arena);
        }
        dti_lock_acquire(&a->index_lock);
        bool has_nodes = a->nodes.n_spare >= n_nodes; /* hits of other threads may take them */
        dpool_place place = r->in_gap ? dpool_place_in_gap_locked(a, r->arena, r->size)
                                      : dpool_place_choose_locked(a, r->arena, r->size);
        bool can_plan = has_nodes && place.block != NULL;
        if (can_plan) {
            status = dpool_plan_request_locked(a, p, r->arena, &place, r->size, sources);
        }
        dti_lock_release(&a->index_lock);
        if (can_plan) {
            return status;
        }
        status = place.block == NULL ? add_range(a, r) : DUCTILE_OK;
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
    if (r->arena->gaps.count > r->arena->gaps_tolerated) {
        dpool_arena_want_compaction(r->arena);
    }
    dti_lock_release(&a->index_lock);
}

/* ---- Where memory may come from ------------------------------------------------------------- */

enum { MOST_WAYS = 3 };

/* The ways to get memory, from the least disturbing to the last before the request is refused or
 * the host waits. */
typedef struct ways {
    dpool_sources all[MOST_WAYS];
    unsigned n;
    unsigned at;
    bool is_last; /* nothing comes after it */
} ways;

static ways list_ways(ductile_allocator *a, const dpool_request *r) {
    const ductile_options *o = &a->options;
    dpool_sources s = {.max_held = r->is_soft ? a->soft_limit : UINT64_MAX};
    ways w = {.n = 0};
    if (o->recycle != DUCTILE_RECYCLE_READY) {
        w.all[w.n++] = s;
    }
    if (o->recycle == DUCTILE_RECYCLE_NEVER) {
        return w;
    }
    s.own = true;
    s.other_streams = o->cross_stream_reuse != DUCTILE_CROSS_STREAM_OFF;
    s.behind_wait = o->cross_stream_reuse == DUCTILE_CROSS_STREAM_WAIT;
    s.pools = r->from_pools;
    w.all[w.n++] = s;
    if (s.other_streams && dpool_has_pools(a)) {
        s.pools = true;
        w.all[w.n++] = s;
    }
    return w;
}

/* Is there another way after a failure? The first is the same with smaller handles. The last way is
 * for a stream that cannot wait now: its own memory stays where it is, but proven memory of other
 * streams can move, and new memory can be created. */
static bool find_next_way(ductile_allocator *a, dpool_request *r, const dpool_plan *p, ways *w,
                          ductile_status *status) {
    if (p->was_refused && dpool_sizes_refused(a)) {
        return true;
    }
    if (*status == DUCTILE_ERR_OUT_OF_MEMORY && w->at + 1 < w->n) {
        w->at++;
        return true;
    }
    if (w->is_last || !p->wait_failed) {
        return false;
    }
    *status = dvmm_usable(a->driver);
    r->in_gap = r->could_not_wait = p->wait_failed;
    w->is_last = true;
    w->at = w->n - 1;
    dpool_sources *s = &w->all[w->at];
    s->own = false;
    s->pools = r->from_pools;
    s->behind_wait = false;
    return *status == DUCTILE_OK;
}

/* The bytes that the limit lacks for a handle of that size, when the whole cache makes room. */
static uint64_t lacking_for_one(const ductile_allocator *a, uint64_t size, uint64_t max_held) {
    const dvmm_store_totals *t = &a->store.totals;
    uint64_t after = t->held_bytes - t->cached_bytes + size;
    uint64_t most = dti_min(max_held, a->store.limit_bytes);
    return after > most ? after - most : 0;
}

static ductile_status make_dedicated(ductile_allocator *a, dpool_request *r) {
    uint64_t max_held = r->is_soft ? a->soft_limit : UINT64_MAX;
    r->missing = lacking_for_one(a, r->size, max_held);
    if (r->missing > 0) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    r->missing = r->size; /* if the device refuses */
    ductile_status status = add_range(a, r);
    return status == DUCTILE_OK
               ? dpool_dedicated_fill(a, r->arena->regions, max_held, r->requested, &r->block)
               : status;
}

/* ---- One attempt --------------------------------------------------------------------------- */

/* The arena stays while map callbacks run, even if it holds nothing yet. */
static void hold_arena(ductile_allocator *a, dpool_arena *arena, int change) {
    dti_lock_acquire(&a->index_lock);
    arena->n_waiters += (uint32_t)change;
    dti_lock_release(&a->index_lock);
}

static ductile_status prepare(ductile_allocator *a, dpool_request *r, dpool_plan **p) {
    ductile_status status = dpool_arena_get(a, r->pool, r->stream, &r->arena);
    if (status != DUCTILE_OK) {
        return status;
    }
    hold_arena(a, r->arena, 1);
    *p = dpool_plan_take(a, r->size);
    return *p != NULL ? dpool_reserve_room(a, 2) : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r) {
    DTI_ASSERT_HELD(&a->grow_lock);
    dpool_plan *p = NULL;
    r->arena = NULL;
    ductile_status status = prepare(a, r, &p);
    if (status != DUCTILE_OK) {
        goto done;
    }

    /* Other threads held the lock before, and the GPU has made progress: search again. */
    poll_all(a, r);
    if (!r->is_dedicated && search_again(a, r)) {
        goto done;
    }
    if (r->pool == NULL && dvmm_is_surely_capturing(a->driver, r->stream)) {
        status =
            DUCTILE_ERR_CAPTURING; /* memory that a graph uses must be kept for it, in a pool */
        goto done;
    }
    if (r->is_dedicated) {
        status = make_dedicated(a, r);
        goto done;
    }
    uint64_t may_retire = r->size / a->granule + 2;
    dpool_reclaim_own(a, r->arena, (uint32_t)dti_max(MOST_PER_CALL, may_retire));

    /* Marks all that a plan needs BUSY under the index lock. The driver is called without it, so
     * that hits continue; then the blocks get their final states. */
    ways w = list_ways(a, r);
    r->in_gap = false;
    do {
        status = make_plan(a, r, p, &w.all[w.at]);
        if (status == DUCTILE_OK) {
            status = dpool_plan_execute(a, p);
            end_plan(a, r, p, status);
        }
    } while (status != DUCTILE_OK && find_next_way(a, r, p, &w, &status));
    r->missing = status == DUCTILE_ERR_OUT_OF_MEMORY ? p->lacks : r->missing;
done:
    if (p != NULL) {
        dpool_plan_give(a, p);
    }
    if (r->arena != NULL) {
        hold_arena(a, r->arena, -1);
    }
    return status;
}
