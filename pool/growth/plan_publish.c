/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a plan that was carried out, and of one that was not. */
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/plan.h"
#include "pool/streams/progress.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/check.h"

static void retire_donor(ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
    dpool_retire_locked(a, b, dpool_plan_seq_of(a->plan, arena));
    arena->mapped_bytes -= b->size;
    a->counts.mapped -= b->size;
}

static void settle_unmapped(ductile_allocator *a, dpool_block *b, dseg_donation donation) {
    dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
    b->region->arena->mapped_bytes -= b->size;
    a->counts.mapped -= b->size;
    dpool_settle_unmapped_locked(a, b, donation == DSEG_STUCK ? DUCTILE_ERR_DRIVER : DUCTILE_OK);
}

static void settle_donors(ductile_allocator *a, bool published) {
    dpool_plan *p = a->plan;
    for (uint32_t i = 0; i < p->n_donors; i++) {
        dpool_block *b = p->donors[i];
        dseg_donation donation = p->donations[i].state;
        if (donation == DSEG_UNMAPPED || donation == DSEG_STUCK) {
            settle_unmapped(a, b, donation);
        } else if (published && donation == DSEG_MOVED) {
            retire_donor(a, b);
        } else {
            (void)dpool_make_free_locked(a, b);
        }
    }
}

static void unite_body(ductile_allocator *a) {
    dpool_plan *p = a->plan;
    while (p->body->size < p->body_bytes) {
        dpool_absorb_next(&a->nodes, p->body);
    }
    DTI_ASSERT(p->body->size == p->body_bytes);
}

static void free_surplus(ductile_allocator *a, dpool_block *b) {
    if (b != NULL) {
        dpool_set_epoch(b, a->plan->epoch);
        (void)dpool_make_free_locked(a, b);
    }
}

dpool_block *dpool_plan_publish_locked(ductile_allocator *a, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_plan *p = a->plan;
    uint64_t bytes = p->n_granules * a->granule;
    for (uint32_t i = 0; i < p->n_own_donors; i++) {
        if (p->donations[i].state != DSEG_MOVED) {
            continue;
        }
        p->epoch = dti_max(p->epoch, p->donors[i]->epoch); /* waits have raised them */
    }
    if (p->n_waits > 0) { /* proven by a marker behind the wait only */
        p->epoch = p->arena->alloc_epoch;
    }
    p->arena->mapped_bytes += bytes;
    a->counts.mapped += bytes;
    settle_donors(a, true);
    if (p->body != NULL) {
        unite_body(a);
        dpool_make_live_locked(a, p->body, requested);
    }
    free_surplus(a, p->lead);
    free_surplus(a, p->rest);
    return p->body;
}

static bool is_quarantined(const dpool_plan *p, const dseg_piece *piece) {
    dseg_span all = {piece->first, piece->first + piece->n_granules};
    return dseg_has_state(p->region->seg, all, DSEG_QUARANTINED);
}

static void restore(ductile_allocator *a, dpool_block *b, uint32_t *next_piece) {
    dpool_plan *p = a->plan;
    const dseg_piece *piece = &p->pieces[*next_piece];
    bool is_piece = *next_piece < p->n_pieces && b->addr == dseg_addr(p->region->seg, piece->first);
    if (!is_piece) {
        (void)dpool_make_free_locked(a, b);
        return;
    }
    (*next_piece)++;
    if (is_quarantined(p, piece)) {
        b->state = DPOOL_QUARANTINED;
    } else {
        (void)dpool_make_gap_locked(a, b);
    }
}

/* Surplus and body were cut apart inside granules: one block for each piece again. */
static dpool_block *mend_window(ductile_allocator *a, ductile_addr *end) {
    dpool_plan *p = a->plan;
    dpool_block *first = p->lead != NULL ? p->lead : p->body;
    *end = p->body != NULL ? p->body->addr + p->body_bytes : dpool_end(first);
    if (p->rest != NULL) {
        *end = dpool_end(p->rest);
        dpool_absorb_next(&a->nodes, p->rest->prev);
    }
    if (p->lead != NULL && p->body != NULL) {
        dpool_absorb_next(&a->nodes, p->lead);
    }
    return first;
}

void dpool_plan_cancel_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_plan *p = a->plan;
    settle_donors(a, false);
    if (p->lead == NULL && p->body == NULL) {
        return;
    }
    ductile_addr end = 0;
    uint32_t next_piece = 0;
    dpool_block *b = mend_window(a, &end);
    while (b != NULL) {
        dpool_block *next = dpool_end(b) < end ? b->next : NULL;
        restore(a, b, &next_piece);
        b = next;
    }
}
