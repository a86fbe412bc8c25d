/* SPDX-License-Identifier: Apache-2.0 */
/* Executes a plan: the GPU waits, then the driver calls of segments/grow.h. Then
 * commits or aborts it. */
#include "pool/base/map_callbacks.h"
#include "pool/blocks/age.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/announce.h"
#include "pool/growth/plan.h"
#include "pool/growth/sizes.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/progress.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/check.h"

/* ---- Execute ------------------------------------------------------------------------------- */

static void drop_wait(ductile_allocator *a, dpool_plan *p) {
    dvmm_marker_drop(&a->markers, p->wait);
    p->wait = NULL;
}

static ductile_status wait_for_others(ductile_allocator *a, dpool_plan *p) {
    ductile_status status = DUCTILE_OK;
    if (p->wait != NULL) {
        status = dvmm_marker_wait_on(&a->markers, p->arena->stream, p->wait);
    }
    drop_wait(a, p);
    return status;
}

/* Makes the stream wait for the work of other streams on the memory that it gets or moves. */
static ductile_status make_own_waits(ductile_allocator *a, dpool_plan *p) {
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
    for (uint32_t i = 0; i < p->n_parts && status == DUCTILE_OK; i++) {
        status = dpool_wait_on_gpu(a, p->parts[i]);
    }
    return status;
}

/* Nothing can be created before what is held above a limit has gone back. */
static void note_refusal(const ductile_allocator *a, dpool_plan *p, uint64_t bytes_lacked) {
    uint64_t held = a->store.totals.held_bytes;
    bool is_limited = dpool_above_limits(a, held + bytes_lacked, p->max_held) > 0;
    p->was_refused = !is_limited; /* else perhaps by a limit */
    p->needs = held + bytes_lacked;
    p->lacks = bytes_lacked + dpool_above_limits(a, held, p->max_held);
}

/* A unit comes and goes whole: the fewer handles, the sooner. */
static uint32_t most_granules(ductile_allocator *a, const dpool_plan *p) {
    const dpool_private_pool *pool = p->arena->pool;
    if (p->arena->is_elastic) {
        return (uint32_t)dti_min(p->region->seg->unit_granules, a->sizes.most_granules);
    }
    return dpool_has_tag(a, pool) ? dpool_granules_in_block(a, pool, p->body_bytes)
                                  : dpool_handle_granules(a, p->created);
}

/* Units and what has a tag do not: however many move, larger handles elsewhere make none fewer. */
static bool goes_by_shares(ductile_allocator *a, const dpool_plan *p) {
    return !p->arena->is_elastic && !dpool_has_tag(a, p->arena->pool);
}

static ductile_status grow(ductile_allocator *a, dpool_plan *p) {
    dseg_growth g = {.seg = p->region->seg,
                     .pieces = p->pieces,
                     .n_pieces = p->n_pieces,
                     .donors = p->donations,
                     .n_donors = p->n_donors,
                     .max_created = most_granules(a, p),
                     .max_held = p->max_held,
                     .handles = p->handles,
                     .max_handles = p->room};
    ductile_status status = dseg_grow(&g);
    p->n_handles = g.n_handles;
    p->n_moved = g.n_moved;
    for (uint32_t i = 0; i < g.n_handles; i++) { /* none after a failure */
        dpool_sizes_note(a, g.handles[i]->n_granules);
    }
    if (goes_by_shares(a, p)) {
        dpool_sizes_count_moves(a, g.n_handles);
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        note_refusal(a, p, g.granules_lacked * a->granule);
    }
    return status;
}

static ductile_status execute(ductile_allocator *a, dpool_plan *p) {
    /* The waits come before the maps (U5), so that undoing maps never depends on them. */
    ductile_status status = wait_for_others(a, p);
    if (status == DUCTILE_OK && !dpool_waits_are_none(a)) {
        status = make_own_waits(a, p);
    }
    p->wait_failed = status != DUCTILE_OK;
    return status == DUCTILE_OK ? grow(a, p) : status;
}

ductile_status dpool_plan_execute(ductile_allocator *a, dpool_plan *p) {
    if (!dpool_announces(a)) {
        return execute(a, p);
    }
    dpool_announce_plan_begin(a, p);
    ductile_status status = execute(a, p);
    dpool_announce_plan_end(a, p, status == DUCTILE_OK);
    return status;
}

/* ---- Commit -------------------------------------------------------------------------------- */

static void retire_donor(ductile_allocator *a, const dpool_plan *p, dpool_block *b) {
    dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
    dpool_count_mapped_locked(a, b->region->arena, -(int64_t)b->size);
    dpool_retire_locked(a, b, b->region->arena == p->arena);
}

static void finish_donors(ductile_allocator *a, dpool_plan *p, bool is_done) {
    for (uint32_t i = 0; i < p->n_donors; i++) {
        dpool_block *b = p->donors[i];
        dseg_donation donation = p->donations[i].state;
        if (donation == DSEG_UNMAPPED || donation == DSEG_STUCK) {
            dpool_mapped_to_gap_locked(a, b,
                                       donation == DSEG_STUCK ? DUCTILE_ERR_DRIVER : DUCTILE_OK);
        } else if (is_done && donation == DSEG_MOVED) {
            retire_donor(a, p, b);
        } else {
            (void)dpool_make_free_locked(a, b);
        }
    }
}

static void unite_body(ductile_allocator *a, dpool_plan *p) {
    while (p->body->size < p->body_bytes) {
        dpool_absorb_next(&a->nodes, p->body);
    }
    DTI_ASSERT(p->body->size == p->body_bytes);
}

static bool is_part_of_granule(const ductile_allocator *a, const dpool_block *surplus) {
    return surplus == NULL || surplus->size < a->granule;
}

/* As young as the own donors that moved: a compaction's surplus is all of it their memory. Donors
 * of other streams give to requests alone. */
static void free_surplus(ductile_allocator *a, dpool_plan *p, dpool_block *b) {
    if (b != NULL) {
        b->age = p->age & DPOOL_AGE_MASK;
        b->is_mixed = false;
        (void)dpool_make_free_locked(a, b);
    }
}

static bool is_of_piece(const dpool_plan *p, const dpool_block *b, uint32_t *next_piece) {
    bool is = *next_piece < p->n_pieces &&
              b->addr == dseg_addr(p->region->seg, p->pieces[*next_piece].first);
    *next_piece += is;
    return is;
}

/* What they got may have been freed just before, and is proven by a wait on the GPU at best. */
static void free_parts(ductile_allocator *a, const dpool_plan *p) {
    uint32_t next_piece = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        dpool_block *b = p->parts[i];
        if (is_of_piece(p, b, &next_piece)) {
            dpool_make_young_locked(a, b);
        }
        (void)dpool_make_free_locked(a, b);
    }
}

dpool_block *dpool_plan_commit_locked(ductile_allocator *a, dpool_plan *p, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (uint32_t i = 0; i < p->n_own_donors; i++) {
        if (p->donations[i].state != DSEG_MOVED) {
            continue;
        }
        p->age = dti_max(p->age, p->donors[i]->age); /* waits may have raised it */
    }
    dpool_count_mapped_locked(a, p->arena, (int64_t)(p->n_granules * a->granule));
    finish_donors(a, p, true);
    /* so that it leaves its stream only together with the body, which will be freed later */
    DTI_ASSERT(p->body == NULL ||
               (is_part_of_granule(a, p->head) && is_part_of_granule(a, p->rest)));
    if (p->body != NULL) {
        unite_body(a, p);
        dpool_make_live_locked(a, p->body, requested);
    }
    free_surplus(a, p, p->head);
    free_surplus(a, p, p->rest);
    free_parts(a, p);
    dpool_count_span_locked(a, p->region);
    return p->body;
}

static bool is_quarantined(const dpool_plan *p, const dseg_piece *piece) {
    dseg_span all = {piece->first, piece->first + piece->n_granules};
    return dseg_has_state(p->region->seg, all, DSEG_QUARANTINED);
}

static void restore(ductile_allocator *a, dpool_plan *p, dpool_block *b, uint32_t *next_piece) {
    const dseg_piece *piece = &p->pieces[*next_piece];
    if (!is_of_piece(p, b, next_piece)) {
        (void)dpool_make_free_locked(a, b);
        return;
    }
    if (is_quarantined(p, piece)) {
        b->state = DPOOL_QUARANTINED;
    } else {
        (void)dpool_make_gap_locked(a, b);
    }
}

/* The surplus and the body were cut inside granules: makes one block of each piece again. */
static dpool_block *mend_window(ductile_allocator *a, dpool_plan *p, ductile_addr *end) {
    dpool_block *first = p->head != NULL ? p->head : p->body;
    *end = p->body != NULL ? p->body->addr + p->body_bytes : dpool_end(first);
    if (p->rest != NULL) {
        *end = dpool_end(p->rest);
        dpool_absorb_next(&a->nodes, p->rest->prev);
    }
    if (p->head != NULL && p->body != NULL) {
        dpool_absorb_next(&a->nodes, p->head);
    }
    return first;
}

/* A granule that is lost costs its unit, and not all that were to be committed with it; but where
 * hits of other threads took the nodes that are needed to divide them, all of them. */
static void restore_units(ductile_allocator *a, dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    for (dpool_block *rest = b; rest != NULL; b = rest) {
        dseg_span all = dseg_granules_in(seg, b->addr, dpool_end(b));
        uint32_t until = dseg_state_until(seg, all);
        bool divides = until < all.end && a->nodes.n_spare > 0;
        rest = divides ? dpool_cut(&a->nodes, b, dseg_addr(seg, until)) : NULL;
        if (dseg_has_state(seg, all, DSEG_QUARANTINED) &&
            (!divides || dseg_state_at(seg, all.first) == DSEG_QUARANTINED)) {
            b->state = DPOOL_QUARANTINED;
        } else {
            (void)dpool_make_gap_locked(a, b);
        }
    }
}

static void restore_parts(ductile_allocator *a, const dpool_plan *p) {
    uint32_t next_piece = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        if (is_of_piece(p, p->parts[i], &next_piece)) {
            restore_units(a, p->parts[i]);
        } else {
            (void)dpool_make_free_locked(a, p->parts[i]);
        }
    }
}

void dpool_plan_abort_locked(ductile_allocator *a, dpool_plan *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    drop_wait(a, p); /* no wait is needed */
    finish_donors(a, p, false);
    restore_parts(a, p);
    if (p->region != NULL) {
        dpool_count_span_locked(a, p->region); /* granules that were not undone are in it */
    }
    if (p->head == NULL && p->body == NULL) {
        return;
    }
    ductile_addr end = 0;
    uint32_t next_piece = 0;
    dpool_block *b = mend_window(a, p, &end);
    while (b != NULL) {
        dpool_block *next = dpool_end(b) < end ? b->next : NULL;
        restore(a, p, b, &next_piece);
        b = next;
    }
}
