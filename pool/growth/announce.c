/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/announce.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/region.h"

#include "vmm/base/align.h"

static void notify_block(ductile_allocator *a, ductile_map_change change, const dpool_block *b) {
    uint32_t first = dseg_granule(b->region->seg, b->addr);
    dpool_notify_granules(a, change, b->region, first, (uint32_t)(b->size / a->granule));
}

/* ---- Without the grow lock ----------------------------------------------------------------- */

/* Called with the grow lock held; the caller keeps it until the BUSY blocks have another state. */
static void count_announcing(ductile_allocator *a, int change) {
    dti_lock_acquire(&a->index_lock);
    a->n_announcing += (uint32_t)change;
    dti_lock_release(&a->index_lock);
}

void dpool_announce_block(ductile_allocator *a, ductile_map_change change, const dpool_block *b) {
    if (dpool_announces(a)) {
        count_announcing(a, 1);
        dti_lock_release(&a->grow_lock);
        notify_block(a, change, b);
        dti_lock_acquire(&a->grow_lock);
        count_announcing(a, -1);
    }
}

/* ---- Plans --------------------------------------------------------------------------------- */

void dpool_announce_plan_begin(ductile_allocator *a, const dpool_plan *p) {
    count_announcing(a, 1);
    if (p->n_donors == 0) {
        return;
    }
    dti_lock_release(&a->grow_lock);
    for (uint32_t i = 0; i < p->n_donors; i++) {
        notify_block(a, DUCTILE_MAP_LEAVING, p->donors[i]);
    }
    dti_lock_acquire(&a->grow_lock);
}

static void notify_pieces(ductile_allocator *a, const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_pieces; i++) {
        dpool_notify_granules(a, DUCTILE_MAP_MAPPED, p->region, p->pieces[i].first,
                              p->pieces[i].n_granules);
    }
}

/* Memory that was unmapped has left, even when the plan then failed. */
static bool has_left(dseg_donation donation, bool is_done) {
    return donation == DSEG_UNMAPPED || donation == DSEG_STUCK ||
           (is_done && donation == DSEG_MOVED);
}

/* Announces donors whose memory stayed where it is. */
static void notify_kept_donors(ductile_allocator *a, const dpool_plan *p, bool is_done) {
    for (uint32_t i = 0; i < p->n_donors; i++) {
        if (!has_left(p->donations[i].state, is_done)) {
            notify_block(a, DUCTILE_MAP_MAPPED, p->donors[i]);
        }
    }
}

void dpool_announce_plan_end(ductile_allocator *a, const dpool_plan *p, bool is_done) {
    if (is_done || p->n_donors > 0) {
        dti_lock_release(&a->grow_lock);
        notify_kept_donors(a, p, is_done);
        if (is_done) {
            notify_pieces(a, p);
        }
        dti_lock_acquire(&a->grow_lock);
    }
    count_announcing(a, -1);
}
