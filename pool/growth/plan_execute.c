/* SPDX-License-Identifier: Apache-2.0 */
/* Carrying a plan out: waits and marker, then the driver calls of segments/grow.h. */
#include "pool/base/map_callbacks.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/announce.h"
#include "pool/growth/plan.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/progress.h"

/* The stream waits for other streams' work on what it gets or moves. */
static ductile_status make_own_waits(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < p->n_own_donors && status == DUCTILE_OK; i++) {
        if (p->donations[i].state == DSEG_MAY_MOVE) {
            status = dpool_wait_on_gpu(a, p->donors[i]);
        }
    }
    uint64_t seen = 0;
    for (dpool_block *b = p->body; seen < p->body_bytes && status == DUCTILE_OK; b = b->next) {
        seen += b->size;
        status = dpool_wait_on_gpu(a, b);
    }
    return status;
}

static bool moves_own(const dpool_plan *p) {
    for (uint32_t i = 0; i < p->n_own_donors; i++) {
        if (p->donations[i].state == DSEG_MAY_MOVE) {
            return true;
        }
    }
    return false;
}

static ductile_status grow(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    dseg_growth g = {.seg = p->region->seg,
                     .pieces = p->pieces,
                     .n_pieces = p->n_pieces,
                     .donors = p->donations,
                     .n_donors = p->n_donors,
                     .max_created = a->max_handle_granules,
                     .one_handle = p->one_handle,
                     .handles = p->handles,
                     .max_handles = p->max_handles};
    ductile_status status = dseg_grow(&g);
    p->n_handles = g.n_handles;
    p->n_moved = g.n_moved;
    p->lacks = g.granules_lacked * a->granule;
    return status;
}

static ductile_status execute(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    /* Waits and the marker come before the maps (U5), so that undoing them never depends on either:
     * donors are FREE, so all work that used them was issued before now. */
    ductile_status status = dpool_plan_make_waits(a);
    if (status == DUCTILE_OK && !dpool_waits_are_none(a)) {
        status = make_own_waits(a);
    }
    p->wait_failed = status != DUCTILE_OK;
    if (status == DUCTILE_OK && moves_own(p)) {
        status = dpool_mark(a, p->arena, &p->seq);
        p->mark_failed = status != DUCTILE_OK;
    }
    return status == DUCTILE_OK ? grow(a) : status;
}

ductile_status dpool_plan_execute(ductile_allocator *a) {
    if (!dpool_announces(a)) {
        return execute(a);
    }
    dpool_announce_plan_begin(a);
    ductile_status status = execute(a);
    dpool_announce_plan_end(a, status == DUCTILE_OK);
    return status;
}
