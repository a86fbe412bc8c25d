/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/host_waits.h"

#include "pool/blocks/proofs.h"
#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/pending.h"
#include "pool/streams/per_stream.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

ductile_status dpool_what_is_wrong(const ductile_allocator *a) {
    DTI_TRY(dvmm_usable(a->driver));
    return DUCTILE_ERR_DRIVER;
}

ductile_status dpool_wait_and_drop(ductile_allocator *a, dvmm_marker *m, ductile_status before) {
    bool waits = m != NULL && before == DUCTILE_OK;
    ductile_status status = waits ? dvmm_marker_wait(&a->markers, m) : before;
    dvmm_marker_drop(&a->markers, m);
    return status;
}

/* ---- Pending memory ------------------------------------------------------------------------ */

typedef struct awaited {
    dpool_stream_list of;
    uint64_t bytes; /* of the blocks covered */
} awaited;

/* False: no room for its streams. */
static bool record_block(awaited *w, const dpool_use *uses) {
    bool any = false;
    for (const dpool_use *use = uses; use != NULL; use = use->next) {
        if (use->marker == NULL || dvmm_marker_is_done(use->marker)) {
            continue;
        }
        any = true;
        dpool_per_stream *at = dpool_find_stream(&w->of, use);
        if (at == NULL) {
            return false;
        }
        dpool_record_undone(at, use);
    }
    w->bytes += any ? uses->block->size : 0;
    return true;
}

static bool record_arena(awaited *w, const dpool_arena *arena, uint64_t bytes) {
    const dpool_use *uses = arena->pending.list.first;
    while (uses != NULL && w->bytes < bytes && record_block(w, uses)) {
        uses = uses->pending_next;
    }
    return uses == NULL;
}

/* Covers the memory of the requester first: it needs no further proof. A trim may have dropped the
 * arena since the last attempt, so `own` is only compared. */
static void choose_locked(const ductile_allocator *a, const dpool_arena *own, uint64_t bytes,
                          awaited *w) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool goes_on = true;
    for (int pass = 0; pass < 2; pass++) {
        for (const dpool_arena *arena = a->arenas; goes_on && arena != NULL; arena = arena->next) {
            goes_on = (arena == own) != (pass == 0) || record_arena(w, arena, bytes);
        }
    }
    dpool_hold_markers_locked(a, &w->of);
}

uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes) {
    awaited w;
    w.of.n = 0;
    w.bytes = 0;
    dpool_lock_both(a);
    choose_locked(a, own, bytes, &w);
    dpool_unlock_both(a);
    bool any = false;
    for (uint32_t i = 0; i < w.of.n; i++) {
        any |= dpool_wait_and_drop(a, w.of.all[i].latest, DUCTILE_OK) == DUCTILE_OK;
    }
    return any ? dti_max(w.bytes, 1) : 0; /* 1: more streams than fit, of one block */
}

uint64_t dpool_count_pending_marks(ductile_allocator *a) {
    uint64_t n = 0;
    dpool_lock_both(a);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_use *u = arena->pending.list.first; u != NULL; u = u->pending_next) {
            for (const dpool_use *use = u; use != NULL; use = use->next) {
                n += use->marker != NULL;
            }
        }
    }
    dpool_unlock_both(a);
    return n;
}

static void poll_pending(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_poll_pending_all(a, arena);
    }
    dti_lock_release(&a->grow_lock);
}

/* Each wait covers at least one marker, so as many waits as there are markers now suffice for the
 * blocks that are pending now. Blocks that other threads free meanwhile belong to the next wait. */
void dpool_wait_for_pending(ductile_allocator *a) {
    uint64_t n = dpool_count_pending_marks(a);
    while (n > 0 && dpool_wait_oldest(a, NULL, UINT64_MAX) > 0) {
        poll_pending(a);
        n--;
    }
}

void dpool_mark_what_captures_left(ductile_allocator *a) {
    if (atomic_load(&a->has_unmarked)) {
        dvmm_capture_mode mode = dpool_grow_lock(a);
        dpool_mark_unmarked(a, NULL, true);
        dpool_grow_unlock(a, mode);
    }
}

/* ---- Spans with waits ----------------------------------------------------------------------- */

static bool lies_in(const ductile_allocator *a, const dpool_private_pool *of, ductile_addr addr) {
    const dpool_region *region = dseg_set_find(&a->segments, addr)->owner;
    return dpool_is_in(of, region->arena);
}

/* Holds the first due marker from *at on, and stores the address of its span; NULL when there is
 * none. Goes by address, so that it passes each done span once. */
static dvmm_marker *hold_next_due(ductile_allocator *a, const dpool_private_pool *of,
                                  ductile_addr *at) {
    dvmm_marker *m = NULL;
    dti_lock_acquire(&a->index_lock);
    const dpool_use *use = dpool_wait_find_due_locked(a, *at, UINT64_MAX);
    while (use != NULL && !lies_in(a, of, use->addr)) {
        use = dpool_wait_find_due_locked(a, use->end, UINT64_MAX);
    }
    if (use != NULL) {
        *at = use->addr;
        while (use->is_done) {
            use = use->next;
        }
        m = use->marker;
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    return m;
}

ductile_status dpool_wait_on_host(ductile_allocator *a, const dpool_private_pool *of, bool *any) {
    ductile_status status = DUCTILE_OK;
    ductile_addr at = 0;
    dvmm_marker *m;
    while (status == DUCTILE_OK && (m = hold_next_due(a, of, &at)) != NULL) {
        status = dvmm_marker_wait(&a->markers, m);
        if (status == DUCTILE_OK) {
            dpool_wait_take_answer(a, m, at);
            *any = true;
        }
        dvmm_marker_drop(&a->markers, m);
    }
    return status;
}

/* ---- Marks of the context ------------------------------------------------------------------- */

/* Other marks may leave the list meanwhile, and this one, too. */
static ductile_status wait_and_accept(ductile_allocator *a, const dpool_mark *mark) {
    ductile_status status = dvmm_marker_wait(&a->markers, mark->marker);
    if (status == DUCTILE_OK) {
        dpool_accept_mark(a, mark);
    }
    dvmm_marker_drop(&a->markers, mark->marker);
    return status;
}

ductile_status dpool_wait_for_context_mark(ductile_allocator *a) {
    dpool_mark mark = {NULL, 0};
    DTI_TRY(dpool_mark_context(a, &mark));
    return wait_and_accept(a, &mark);
}

bool dpool_wait_for_newest_mark(ductile_allocator *a) {
    dpool_mark mark = {NULL, 0};
    dti_lock_acquire(&a->index_lock);
    if (a->marks.n > 0) {
        mark = a->marks.all[a->marks.n - 1];
        dvmm_marker_hold(mark.marker);
    }
    dti_lock_release(&a->index_lock);
    return mark.marker != NULL && wait_and_accept(a, &mark) == DUCTILE_OK;
}

/* ---- Retiring addresses --------------------------------------------------------------------- */

void dpool_wait_retired(ductile_allocator *a, struct dpool_private_pool *pool,
                        ductile_stream stream) {
    if (!dpool_retires_in_order(a)) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    dpool_arena *arena = dpool_arena_find_locked(a, pool, stream);
    if (arena != NULL) {
        arena->users.n_waiters++;
    }
    dti_lock_release(&a->index_lock);
    if (arena == NULL) {
        return;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    (void)dpool_record_mark(a, arena);
    dti_lock_acquire(&a->index_lock);
    dvmm_marker *m = dpool_hold_marker_of_surplus_locked(a, arena);
    arena->users.n_waiters--;
    dti_lock_release(&a->index_lock);
    if (m != NULL && dvmm_marker_query(&a->markers, m) != DUCTILE_OK) {
        (void)dvmm_marker_wait(&a->markers, m);
    }
    dvmm_marker_drop(&a->markers, m);
    dvmm_capture_restore(a->driver, mode);
}

/* ---- Arenas, one after another -------------------------------------------------------------- */

/* The arena after this one, the first after NULL, NULL after the last. It cannot disappear until
 * the next is held. */
static dpool_arena *hold_next(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    dpool_arena *next = arena != NULL ? arena->next : a->arenas;
    if (next != NULL) {
        next->users.n_waiters++;
    }
    if (arena != NULL) {
        arena->users.n_waiters--;
    }
    dti_lock_release(&a->index_lock);
    return next;
}

/* ---- The whole device ---------------------------------------------------------------------- */

static bool is_captured(ductile_allocator *a, dpool_arena *arena) {
    bool is = false;
    if (dpool_stream_ref_begin(a, arena)) {
        is = dvmm_is_capturing(a->driver, arena->stream);
        dpool_stream_ref_end(a, arena);
    }
    return is;
}

/* A wait for the whole device breaks every capture in it, whatever mode the thread is in. */
static bool any_is_captured(ductile_allocator *a) {
    bool any = false;
    for (dpool_arena *arena = hold_next(a, NULL); arena != NULL; arena = hold_next(a, arena)) {
        any = any || is_captured(a, arena);
    }
    return any;
}

/* Proves all FREE memory of streams of our context, whatever stream used it. */
static ductile_status wait_for_device(ductile_allocator *a) {
    if (!dpool_context_wait_begin(a)) {
        return DUCTILE_ERR_CAPTURING;
    }
    dpool_proof proof = {.age = dpool_advance_clock(a)};
    ductile_status status = DUCTILE_ERR_CAPTURING;
    if (!any_is_captured(a)) {
        status = dseg_sync_device(&a->markers, &proof.idle) == DUCTILE_OK ? DUCTILE_OK
                                                                          : dpool_what_is_wrong(a);
    }
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        dpool_raise_proof(&a->proven, proof);
        dti_lock_release(&a->index_lock);
    }
    dpool_context_wait_end(a);
    return status;
}

ductile_status dpool_wait_for_context(ductile_allocator *a) {
    ductile_status status = dpool_wait_for_context_mark(a);
    return status == DUCTILE_OK ? status : wait_for_device(a);
}

/* ---- Arenas' own streams ------------------------------------------------------------------- */

static bool is_worth_a_wait(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool is = dpool_has_old_addresses(arena) || dpool_awaits_proof_locked(a, arena);
    dti_lock_release(&a->index_lock);
    return is;
}

/* For an arena whose stream must not be passed to the driver any more. Its mark covers all work of
 * a foreign stream that is gone; a poll may have read it. Else ERR_CAPTURING. */
static ductile_status wait_for_own_mark(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    dvmm_marker *m = arena->proofs.own_mark.marker;
    bool is_last = arena->is_silent || (arena->is_gone && arena->is_foreign && m != NULL);
    if (m != NULL) {
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    ductile_status status = dpool_wait_and_drop(a, m, DUCTILE_OK);
    if (m != NULL && status == DUCTILE_OK) {
        dti_lock_acquire(&a->grow_lock);
        dpool_poll_marks(a);
        dti_lock_release(&a->grow_lock);
    }
    return is_last ? status : DUCTILE_ERR_CAPTURING;
}

static ductile_status wait_for_new_marker(ductile_allocator *a, ductile_stream stream,
                                          dseg_stream_idle *proof) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, stream, &m);
    if (status == DUCTILE_OK) {
        status = dvmm_marker_wait(&a->markers, m);
        *proof = dseg_stream_idle_by_marker(m);
        dvmm_marker_drop(&a->markers, m);
    }
    return status;
}

/* ERR_CAPTURING when it is being captured. No capture of another thread in a pool of this allocator
 * is broken, even if it begins just now. */
static ductile_status wait_for_stream(ductile_allocator *a, ductile_stream stream,
                                      dseg_stream_idle *proof) {
    if (!dpool_stream_wait_begin(a)) {
        return wait_for_new_marker(a, stream, proof);
    }
    ductile_status status = dvmm_is_capturing(a->driver, stream)
                                ? DUCTILE_ERR_CAPTURING
                                : dseg_sync(&a->store, stream, proof);
    dpool_stream_wait_end(a);
    return status;
}

/*
 * What a wait for its stream proves for an arena, when it began at the age `began`. Where that
 * stream was joined by then, all. Where the program may still order it behind other streams' work,
 * only a proof for the context covers that work, which covers a stream of the context too. On
 * memory of a foreign stream both together prove what was freed before either: foreign streams
 * other than its own are joined before the free (docs/contract.md, rule 4).
 */
static uint64_t proven_by_stream_locked(const ductile_allocator *a, const dpool_arena *arena,
                                        uint64_t joined, uint64_t began) {
    DTI_ASSERT_HELD(&a->index_lock);
    return arena->is_foreign ? dti_max(joined, dti_min(began, a->proven.age)) : joined;
}

/* Hits tell no one that they were made, but are counted. If there were any since the last look,
 * what was freed before that look is joined. Returns the age up to which the arena is. */
static uint64_t look_for_joins_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->calls.n > arena->proofs.looked_calls) {
        arena->proofs.joined_age = dti_max(arena->proofs.joined_age, arena->proofs.looked_age);
        arena->proofs.looked_age = ++a->age;
        arena->proofs.looked_calls = arena->calls.n;
    }
    return arena->proofs.joined_age;
}

/* What the stream was ordered behind is known before the wait. */
static ductile_status wait_for_arena(ductile_allocator *a, dpool_arena *arena) {
    uint64_t began = dpool_advance_clock(a);
    dseg_stream_idle idle;
    if (!dpool_stream_ref_begin(a, arena)) {
        return wait_for_own_mark(a, arena);
    }
    dti_lock_acquire(&a->index_lock);
    uint64_t joined = look_for_joins_locked(a, arena);
    dti_lock_release(&a->index_lock);
    ductile_status status = wait_for_stream(a, arena->stream, &idle);
    dpool_stream_ref_end(a, arena);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        uint64_t age = proven_by_stream_locked(a, arena, joined, began);
        dpool_raise_proof(&arena->proofs.own, (dpool_proof){age, dseg_idle_if_joined(idle)});
        dti_lock_release(&a->index_lock);
    }
    return status;
}

ductile_status dpool_wait_for_streams(ductile_allocator *a, const dpool_stream_choice *c) {
    ductile_status status = DUCTILE_OK;
    for (dpool_arena *arena = hold_next(a, NULL); arena != NULL; arena = hold_next(a, arena)) {
        bool is_meant = dpool_is_in(c->of, arena) && (arena->is_foreign || !c->only_foreign);
        if (status == DUCTILE_OK && is_meant && (c->has_live || is_worth_a_wait(a, arena))) {
            ductile_status waited = wait_for_arena(a, arena);
            status = c->has_live ? waited : DUCTILE_OK;
        }
    }
    return status;
}

static void report_proof(ductile_allocator *a, dseg_idle *idle) {
    if (idle != NULL) {
        dti_lock_acquire(&a->index_lock);
        *idle = a->proven.idle;
        dti_lock_release(&a->index_lock);
    }
}

ductile_status dpool_wait_for_all_work(ductile_allocator *a, dseg_idle *idle) {
    ductile_status status = dpool_wait_for_context(a);
    if (status == DUCTILE_OK) {
        const dpool_stream_choice foreign = {.only_foreign = true};
        bool any = false;
        (void)dpool_wait_for_streams(a, &foreign);
        dpool_wait_poll(a, UINT32_MAX);
        (void)dpool_wait_on_host(a, NULL, &any); /* other contexts' and GPUs' streams */
        report_proof(a, idle);
    }
    return status == DUCTILE_OK || status == DUCTILE_ERR_CAPTURING ? status
                                                                   : dpool_what_is_wrong(a);
}

bool dpool_any_is_worth_a_wait(ductile_allocator *a, const dpool_private_pool *of) {
    bool any = false;
    for (dpool_arena *arena = hold_next(a, NULL); arena != NULL; arena = hold_next(a, arena)) {
        any = any || (dpool_is_in(of, arena) && is_worth_a_wait(a, arena));
    }
    return any;
}
