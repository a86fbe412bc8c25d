/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/gpu_waits.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/age.h"
#include "pool/blocks/transitions.h"
#include "pool/streams/marks.h"

#include "vmm/base/align.h"
#include "vmm/captures.h"

enum { QUERIES_PER_HOLD = 32 }; /* markers queried between two holds of the index lock */

/* ---- Adding -------------------------------------------------------------------------------- */

bool dpool_wait_is_possible(const dpool_use *uses) {
    uint32_t n = 0;
    while (uses != NULL && uses->marker != NULL && n < DPOOL_MOST_WAITS) {
        uses = uses->next;
        n++;
    }
    return uses == NULL;
}

void dpool_wait_add_locked(ductile_allocator *a, dpool_use *uses) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = uses->block;
    dpool_leave_pending_locked(a, b);
    uses->addr = b->addr;
    uses->end = dpool_end(b);
    dpool_span_add_locked(a, uses);
    (void)dpool_make_free_locked(a, b);
}

/* ---- Waiting on the GPU -------------------------------------------------------------------- */

/* The spans up to an address that one stream has to wait for. Holds their markers. */
typedef struct due {
    dvmm_marker *markers[DPOOL_MOST_WAITS];
    uint32_t n;
    ductile_addr upto;
} due;

static uint32_t count_due(const dpool_use *s) {
    uint32_t n = 0;
    for (; s != NULL; s = s->next) {
        n += !s->is_done;
    }
    return n;
}

static void hold_markers(due *d, const dpool_use *s) {
    for (; s != NULL; s = s->next) {
        if (!s->is_done) {
            dvmm_marker_hold(s->marker);
            d->markers[d->n++] = s->marker;
        }
    }
}

static bool collect(ductile_allocator *a, const dpool_block *b, due *d) {
    *d = (due){.upto = b->addr};
    dti_lock_acquire(&a->index_lock);
    const dpool_use *s = dpool_span_find_in_locked(a, b->addr, dpool_end(b));
    bool found = s != NULL;
    while (s != NULL && d->n + count_due(s) <= DPOOL_MOST_WAITS) {
        hold_markers(d, s);
        d->upto = s->end;
        s = dpool_span_find_in_locked(a, s->end, dpool_end(b));
    }
    dti_lock_release(&a->index_lock);
    return found;
}

static ductile_status wait_for_each(ductile_allocator *a, const dpool_arena *arena, const due *d) {
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < d->n && status == DUCTILE_OK; i++) {
        status = dvmm_marker_wait_on(&a->markers, arena->stream, d->markers[i]);
    }
    for (uint32_t i = 0; i < d->n; i++) {
        dvmm_marker_drop(&a->markers, d->markers[i]);
    }
    return status;
}

/* The stream has just waited, so a mark that proves the block comes later: one of the stream alone,
 * recorded before, knows nothing of the work that it waited for. */
static void make_young(const ductile_allocator *a, dpool_block *b) {
    if (b->state == DPOOL_FREE || b->state == DPOOL_BUSY) {
        dpool_make_young_locked(a, b);
    }
}

/* A span may reach over the ends of the block that is handed out. */
static void make_young_around(const ductile_allocator *a, dpool_block *b, const dpool_use *s) {
    make_young(a, b);
    for (dpool_block *at = b->next; at != NULL && at->addr < s->end; at = at->next) {
        make_young(a, at);
    }
    for (dpool_block *at = b->prev; at != NULL && dpool_end(at) > s->addr; at = at->prev) {
        make_young(a, at);
    }
}

/* Removes the spans of b up to an address from the map; linked by `left`. */
static dpool_use *take_waited(ductile_allocator *a, dpool_block *b, ductile_addr upto) {
    dpool_use *gone = NULL;
    dti_lock_acquire(&a->index_lock);
    ductile_addr to = dti_min(upto, dpool_end(b));
    for (dpool_use *s = dpool_span_find_in_locked(a, b->addr, to); s != NULL;
         s = dpool_span_find_in_locked(a, b->addr, to)) {
        dpool_span_take_out_locked(a, s);
        make_young_around(a, b, s);
        dpool_want_mark_locked(a); /* though nothing was freed */
        s->left = gone;
        gone = s;
    }
    dti_lock_release(&a->index_lock);
    return gone;
}

static void drop_spans(ductile_allocator *a, dpool_use *gone) {
    while (gone != NULL) {
        dpool_use *next = gone->left;
        dpool_uses_drop(a, gone);
        gone = next;
    }
}

static ductile_status wait_for_all(ductile_allocator *a, dpool_block *b) {
    due d;
    while (collect(a, b, &d)) {
        DTI_TRY(wait_for_each(a, b->region->arena, &d));
        drop_spans(a, take_waited(a, b, d.upto));
    }
    return DUCTILE_OK;
}

ductile_status dpool_wait_on_gpu(ductile_allocator *a, dpool_block *b) {
    if (dpool_waits_are_none(a)) {
        return DUCTILE_OK;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = wait_for_all(a, b);
    dvmm_capture_restore(a->driver, mode);
    return status;
}

dpool_block *dpool_wait_before_return(ductile_allocator *a, dpool_block *b) {
    if (dpool_waits_are_none(a)) {
        return b;
    }
    ductile_status status = dpool_wait_on_gpu(a, b);
    if (status != DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        dpool_unserve_locked(a, b);
        dti_lock_release(&a->index_lock);
    }
    return status == DUCTILE_OK ? b : NULL;
}

static dpool_block *smallest_without_wait(const ductile_allocator *a, const dpool_arena *arena,
                                          uint64_t size) {
    dpool_block *best = NULL;
    dpool_block *b = dpool_index_below(&arena->index, NULL);
    for (; b != NULL && b->size >= size; b = dpool_index_below(&arena->index, b)) {
        best = dpool_wait_is_due_locked(a, b->addr, b->addr + size) ? best : b;
    }
    return best;
}

dpool_block *dpool_alloc_without_waits_locked(ductile_allocator *a, dpool_arena *arena,
                                              uint64_t size, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = NULL;
    if (a->nodes.n_spare >= 2 && dpool_map_has_room(&a->map)) {
        b = smallest_without_wait(a, arena, size);
    }
    if (b != NULL) {
        b = dpool_carve_free_locked(a, b, b->addr, b->addr + size);
        dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
        dpool_make_live_locked(a, b, requested);
    }
    return b;
}

/* ---- Progress, as the host sees it --------------------------------------------------------- */

/* Markers to query, with the spans they were found in: another thread may remove those spans. */
typedef struct questions {
    dvmm_marker *markers[QUERIES_PER_HOLD];
    ductile_addr spans[QUERIES_PER_HOLD];
    ductile_stream streams[QUERIES_PER_HOLD];
    uint32_t n;
} questions;

/* Continues where the last poll ended. False at the end of the map; the next poll starts over. */
static bool ask_some(ductile_allocator *a, questions *q) {
    q->n = 0;
    dti_lock_acquire(&a->index_lock);
    const dpool_use *s = dpool_span_find_locked(a, a->waits.polled_to);
    for (; s != NULL && q->n + count_due(s) <= QUERIES_PER_HOLD;
         s = dpool_span_find_locked(a, s->end)) {
        for (const dpool_use *use = s; use != NULL; use = use->next) {
            if (!use->is_done) {
                dvmm_marker_hold(use->marker);
                q->markers[q->n] = use->marker;
                q->streams[q->n] = use->stream;
                q->spans[q->n++] = s->addr;
            }
        }
        a->waits.polled_to = s->end;
    }
    if (s == NULL) {
        a->waits.polled_to = 0;
    }
    dti_lock_release(&a->index_lock);
    return s != NULL;
}

/* Records that the marker is done, and drops it, so that old spans keep no events. */
static bool record_done_locked(const ductile_allocator *a, ductile_addr addr,
                               const dvmm_marker *m) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *use = dpool_span_find_locked(a, addr);
    if (use == NULL || use->addr != addr) {
        return false;
    }
    while (use != NULL && (use->is_done || use->marker != m)) {
        use = use->next;
    }
    if (use != NULL) {
        use->is_done = true;
        use->marker = NULL;
    }
    return use != NULL;
}

void dpool_wait_take_answer(ductile_allocator *a, dvmm_marker *m, ductile_addr span) {
    dti_lock_acquire(&a->index_lock);
    bool noted = record_done_locked(a, span, m);
    dti_lock_release(&a->index_lock);
    if (noted) {
        dvmm_marker_drop(&a->markers, m);
    }
}

/* Queries each marker; once a stream is found at work, its other markers are skipped. */
static void answer(ductile_allocator *a, const questions *q) {
    ductile_stream at_work[QUERIES_PER_HOLD];
    uint32_t n_at_work = 0;
    for (uint32_t i = 0; i < q->n; i++) {
        bool is_known = false;
        for (uint32_t k = 0; k < n_at_work && !is_known; k++) {
            is_known = at_work[k] == q->streams[i];
        }
        if (!is_known && dvmm_marker_query(&a->markers, q->markers[i]) == DUCTILE_OK) {
            dpool_wait_take_answer(a, q->markers[i], q->spans[i]);
        } else if (!is_known) {
            at_work[n_at_work++] = q->streams[i];
        }
        dvmm_marker_drop(&a->markers, q->markers[i]);
    }
}

void dpool_wait_poll(ductile_allocator *a, uint32_t most) {
    questions q;
    bool is_more = !dpool_waits_are_none(a);
    if (most == UINT32_MAX) {
        dti_lock_acquire(&a->index_lock);
        a->waits.polled_to = 0;
        dti_lock_release(&a->index_lock);
    }
    for (uint32_t n = 0; n < most && is_more; n += QUERIES_PER_HOLD) {
        is_more = ask_some(a, &q);
        answer(a, &q);
    }
}

/* ---- The end ------------------------------------------------------------------------------- */

void dpool_waits_fini(ductile_allocator *a) {
    for (dpool_use *s = a->waits.root; s != NULL; s = a->waits.root) {
        dti_lock_acquire(&a->index_lock);
        dpool_span_take_out_locked(a, s);
        dpool_uses_drop_locked(a, s);
        dti_lock_release(&a->index_lock);
    }
}
