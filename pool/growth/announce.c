/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/announce.h"

#include "pool/blocks/region.h"

#include "vmm/base/align.h"

static void tell_block(ductile_allocator *a, ductile_map_change change, const dpool_block *b) {
    uint32_t first = dseg_granule(b->region->seg, b->addr);
    dpool_notify_granules(a, change, b->region, first, (uint32_t)(b->size / a->granule));
}

/* ---- Without the grow lock ----------------------------------------------------------------- */

/* What the grow lock's holder takes along when it opens the lock in the middle. */
typedef struct luggage {
    dpool_plan *plan;
    uint64_t cap; /* what is held may not grow above it; UINT64_MAX: the limit */
} luggage;

static luggage open_slow(ductile_allocator *a) {
    dvmm_handle_store *store = &a->store;
    luggage l = {a->plan, store->limit_bytes < a->counts.limit ? store->limit_bytes : UINT64_MAX};
    a->plan = NULL;
    store->limit_bytes = a->counts.limit;
    dti_lock_release(&a->grow_lock);
    return l;
}

static void take_slow(ductile_allocator *a, luggage l) {
    dti_lock_acquire(&a->grow_lock);
    dpool_plan_fini(a); /* somebody else's, who is through with it */
    a->plan = l.plan;
    a->store.limit_bytes = dti_min(l.cap, a->counts.limit);
}

static void begin(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    a->n_announcing++;
    dti_lock_release(&a->index_lock);
}

/* With the grow lock held until what is BUSY is published. */
static void end(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    a->n_announcing--;
    dti_lock_release(&a->index_lock);
}

void dpool_announce_leaving(ductile_allocator *a, const dpool_block *b) {
    begin(a);
    luggage l = open_slow(a);
    tell_block(a, DUCTILE_MAP_LEAVING, b);
    take_slow(a, l);
    end(a);
}

/* ---- Plans --------------------------------------------------------------------------------- */

void dpool_announce_plan_begin(ductile_allocator *a) {
    begin(a);
    if (a->plan->n_donors == 0) {
        return;
    }
    luggage l = open_slow(a);
    for (uint32_t i = 0; i < l.plan->n_donors; i++) {
        tell_block(a, DUCTILE_MAP_LEAVING, l.plan->donors[i]);
    }
    take_slow(a, l);
}

static void tell_pieces(ductile_allocator *a, const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        dpool_notify_granules(a, DUCTILE_MAP_MAPPED, p->region, p->pieces[i].first,
                              p->pieces[i].n_granules);
    }
}

/* What was unmapped has left, even when the plan then failed. */
static bool has_left(dseg_donation donation, bool is_done) {
    return donation == DSEG_UNMAPPED || donation == DSEG_STUCK ||
           (is_done && donation == DSEG_MOVED);
}

/* Donors whose memory stayed where it is. */
static void tell_kept_donors(ductile_allocator *a, const dpool_plan *p, bool is_done) {
    for (uint32_t i = 0; i < p->n_donors; i++) {
        if (!has_left(p->donations[i].state, is_done)) {
            tell_block(a, DUCTILE_MAP_MAPPED, p->donors[i]);
        }
    }
}

void dpool_announce_plan_end(ductile_allocator *a, bool is_done) {
    if (is_done || a->plan->n_donors > 0) {
        luggage l = open_slow(a);
        tell_kept_donors(a, l.plan, is_done);
        if (is_done) {
            tell_pieces(a, l.plan);
        }
        take_slow(a, l);
    }
    end(a);
}
