/* SPDX-License-Identifier: Apache-2.0 */
/* Taking memory of streams still at work: for which of their markers the receiving stream waits. */
#include "pool/blocks/arena.h"
#include "pool/growth/plan.h"

#include "vmm/base/align.h"

/* Below which epoch blocks of the arena have a marker behind them, done or not. The same on every
 * run, whatever the GPU has done: a marker that leaves the ring because it is done is proven. */
static uint64_t marked_epoch(const dpool_arena *arena) {
    uint64_t newest = arena->n_marks > 0 ? arena->ring[arena->n_marks - 1].epoch : 0;
    return dti_max(newest, arena->proven_epoch);
}

uint64_t dpool_takeable_epoch_locked(const ductile_allocator *a, const dpool_arena *from,
                                     unsigned sources) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t proven = dpool_proven_epoch(from);
    bool may_wait = (sources & DPOOL_UNPROVEN_DONORS) != 0 && dpool_is_provable(from);
    return may_wait && a->plan->n_waits < DPOOL_PLAN_WAITS ? marked_epoch(from) : proven;
}

static dpool_plan_wait *wait_on(dpool_plan *p, const dpool_arena *arena) {
    for (uint32_t i = 0; i < p->n_waits; i++) {
        if (p->waits[i].arena == arena) {
            return &p->waits[i];
        }
    }
    dpool_plan_wait *w = &p->waits[p->n_waits++];
    *w = (dpool_plan_wait){.arena = arena};
    return w;
}

void dpool_plan_note_epoch_locked(ductile_allocator *a, const dpool_arena *from, uint64_t epoch) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (epoch < dpool_proven_epoch(from)) {
        return;
    }
    uint32_t i = 0;
    while (from->ring[i].epoch <= epoch) {
        i++;
    }
    dpool_plan_wait *w = wait_on(a->plan, from);
    if (w->seq < from->ring[i].seq) {
        if (w->marker != NULL) {
            dvmm_marker_drop(&a->markers, w->marker); /* the ring holds it, too */
        }
        w->seq = from->ring[i].seq;
        w->marker = from->ring[i].marker;
        dvmm_marker_hold(w->marker);
    }
}

uint64_t dpool_plan_seq_of(const dpool_plan *p, const dpool_arena *from) {
    if (from == p->arena) {
        return p->seq;
    }
    for (uint32_t i = 0; i < p->n_waits; i++) {
        if (p->waits[i].arena == from) {
            return p->waits[i].seq;
        }
    }
    return 0;
}

ductile_status dpool_plan_make_waits(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < p->n_waits && status == DUCTILE_OK; i++) {
        status = dvmm_marker_wait_on(&a->markers, p->arena->stream, p->waits[i].marker);
    }
    dpool_plan_drop_markers(a);
    return status;
}

void dpool_plan_drop_markers(ductile_allocator *a) {
    for (uint32_t i = 0; i < a->plan->n_waits; i++) {
        if (a->plan->waits[i].marker != NULL) {
            dvmm_marker_drop(&a->markers, a->plan->waits[i].marker);
            a->plan->waits[i].marker = NULL;
        }
    }
}
