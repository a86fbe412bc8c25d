/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/quiesce.h"

#include "pool/blocks/age.h"
#include "pool/blocks/region.h"
#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/marks.h"
#include "pool/streams/pending.h"
#include "pool/streams/per_stream.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

/* Something could not be waited for: why? */
static ductile_status what_is_wrong(const ductile_allocator *a) {
    DTI_TRY(dvmm_usable(a->driver));
    return DUCTILE_ERR_DRIVER;
}

/* For the marker, if there is one and all went well `before`. */
static ductile_status wait_and_drop(ductile_allocator *a, dvmm_marker *m, ductile_status before) {
    bool waits = m != NULL && before == DUCTILE_OK;
    ductile_status status = waits ? dvmm_marker_wait(&a->markers, m) : before;
    dvmm_marker_drop(&a->markers, m);
    return status;
}

static void hold_markers_locked(const ductile_allocator *a, const dpool_stream_list *l) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->all[i].latest != NULL) {
            dvmm_marker_hold(l->all[i].latest);
        }
    }
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
    const dpool_use *uses = arena->pending.first;
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
    hold_markers_locked(a, &w->of);
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
        any |= wait_and_drop(a, w.of.all[i].latest, DUCTILE_OK) == DUCTILE_OK;
    }
    return any ? dti_max(w.bytes, 1) : 0; /* 1: more streams than fit, of one block */
}

uint64_t dpool_count_pending_marks(ductile_allocator *a) {
    uint64_t n = 0;
    dpool_lock_both(a);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_use *u = arena->pending.first; u != NULL; u = u->pending_next) {
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
static void wait_for_pending(ductile_allocator *a) {
    uint64_t n = dpool_count_pending_marks(a);
    while (n > 0 && dpool_wait_oldest(a, NULL, UINT64_MAX) > 0) {
        poll_pending(a);
        n--;
    }
}

/* ---- Arenas, one after another -------------------------------------------------------------- */

/* The arena after this one, the first after NULL, NULL after the last. It cannot disappear until
 * the next is held. */
static dpool_arena *hold_next(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    dpool_arena *next = arena != NULL ? arena->next : a->arenas;
    if (next != NULL) {
        next->n_waiters++;
    }
    if (arena != NULL) {
        arena->n_waiters--;
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
                                                                          : what_is_wrong(a);
    }
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        dpool_raise_proof(&a->proven, proof);
        dti_lock_release(&a->index_lock);
    }
    dpool_context_wait_end(a);
    return status;
}

/* The same by a context marker, which disturbs less, where one may be recorded. */
static ductile_status wait_for_context(ductile_allocator *a) {
    ductile_status status = dpool_wait_for_context_mark(a);
    return status == DUCTILE_OK ? status : wait_for_device(a);
}

/* ---- Arenas' own streams ------------------------------------------------------------------- */

bool dpool_is_proven_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b->age < dpool_proof_to_return(a, b->region->arena).age &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

dseg_span dpool_proven_part_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dseg_span all = dseg_granules_in(b->region->seg, b->addr, dpool_end(b));
    bool is_due = dseg_is_empty(all) || dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
    return is_due ? (dseg_span){all.first, all.first}
                  : dpool_older_part(b, all, dpool_proof_to_return(a, b->region->arena).age);
}

bool dpool_awaits_leaving_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_block *b = dpool_is_frozen(arena) ? NULL : arena->leaving.first;
    while (b != NULL && (dpool_is_proven_locked(a, b) || !dseg_can_go(b->region->seg, 0))) {
        b = b->list_next;
    }
    return b != NULL;
}

/* May its memory serve other streams (U2)? */
static bool may_leave_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b->age < dpool_proof_to_leave(a, b->region->arena).age &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->pending.first != NULL || dpool_awaits_leaving_locked(a, arena)) {
        return true;
    }
    const dpool_block *b = dpool_is_frozen(arena) ? NULL : dpool_index_below(&arena->index, NULL);
    while (b != NULL && b->size >= a->granule && may_leave_locked(a, b)) {
        b = dpool_index_below(&arena->index, b);
    }
    return b != NULL && b->size >= a->granule;
}

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
    dvmm_marker *m = arena->own_mark.marker;
    bool is_last = arena->is_silent || (arena->is_gone && arena->is_foreign && m != NULL);
    if (m != NULL) {
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    ductile_status status = wait_and_drop(a, m, DUCTILE_OK);
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
    if (arena->n_calls > arena->looked_calls) {
        arena->joined_age = dti_max(arena->joined_age, arena->looked_age);
        arena->looked_age = ++a->age;
        arena->looked_calls = arena->n_calls;
    }
    return arena->joined_age;
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
        dpool_raise_proof(&arena->own_proven, (dpool_proof){age, dseg_idle_if_joined(idle)});
        dti_lock_release(&a->index_lock);
    }
    return status;
}

/* Which streams are waited for one by one. */
typedef struct stream_choice {
    const dpool_private_pool *of; /* NULL: all pools */
    bool has_live;     /* all, because live blocks are in use; else where it may prove something */
    bool only_foreign; /* those of other contexts */
} stream_choice;

/* Where live blocks are in use, a stream that cannot be waited for is an error. */
static ductile_status wait_for_streams(ductile_allocator *a, const stream_choice *c) {
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
    ductile_status status = wait_for_context(a);
    if (status == DUCTILE_OK) {
        const stream_choice foreign = {.only_foreign = true};
        bool any = false;
        (void)wait_for_streams(a, &foreign);
        dpool_wait_poll(a, UINT32_MAX);
        (void)dpool_wait_on_host(a, NULL, &any); /* other contexts' and GPUs' streams */
        report_proof(a, idle);
    }
    return status == DUCTILE_OK || status == DUCTILE_ERR_CAPTURING ? status : what_is_wrong(a);
}

/* Live blocks may be in use. */
static ductile_status wait_for_foreign(ductile_allocator *a) {
    const stream_choice all = {.has_live = true, .only_foreign = true};
    return wait_for_streams(a, &all) == DUCTILE_OK ? DUCTILE_OK : what_is_wrong(a);
}

/* ---- Recorded streams of blocks in use ------------------------------------------------------ */

/* One round waits for the lowest streams above `after`. Rounds need no memory, however many streams
 * there are, and leave none out. */
typedef struct round {
    dpool_stream_list of;
    dpool_per_stream after; /* of the round before; NULL, which is not waited for: the first one */
    dpool_per_stream *highest; /* of the list, when there are more; else NULL */
} round;

static bool is_above(const dpool_per_stream *l, const dpool_per_stream *r) {
    if (l->stream != r->stream) {
        return (uintptr_t)l->stream > (uintptr_t)r->stream;
    }
    return l->thread != r->thread ? l->thread > r->thread : l->is_gone && !r->is_gone;
}

/* Is the work of the use not done, and perhaps not covered by the wait for the device? Default
 * streams always belong to this device. */
static bool needs_wait(const dpool_use *use) {
    if (dpool_canonical_stream(use->stream) == NULL || dpool_thread_of(use->stream) != 0) {
        return false;
    }
    return use->marker != NULL ? !dvmm_marker_is_done(use->marker) : !use->is_gone;
}

static dpool_per_stream *find_highest(dpool_stream_list *l) {
    dpool_per_stream *highest = &l->all[0];
    for (uint32_t i = 1; i < l->n; i++) {
        highest = is_above(&l->all[i], highest) ? &l->all[i] : highest;
    }
    return highest;
}

/* When there is no room for the stream, the highest stream is left to a later round. */
static dpool_per_stream *leave_out_highest(round *r, const dpool_per_stream *s) {
    dpool_per_stream *at = find_highest(&r->of);
    bool is_lower = is_above(at, s);
    if (is_lower) {
        *at = *s;
    }
    r->highest = find_highest(&r->of);
    return is_lower ? at : NULL;
}

static void record_use(round *r, const dpool_use *use) {
    if (!needs_wait(use)) {
        return;
    }
    const dpool_per_stream s = dpool_stream_of_use(use);
    if (!is_above(&s, &r->after) || (r->highest != NULL && is_above(&s, r->highest))) {
        return;
    }
    dpool_per_stream *at = dpool_find_stream(&r->of, use);
    at = at != NULL ? at : leave_out_highest(r, &s);
    if (at != NULL && use->marker != NULL) {
        dpool_record_undone(at, use);
    } else if (at != NULL) {
        at->wants_marker = true;
    }
}

static bool has_uses(const dpool_block *b) {
    return dpool_has_request(b) && b->uses != NULL;
}

/* The markers of a PENDING block in transit belong to the thread that records them. The block is in
 * no list yet, and the caller waits again. */
static void record_uses(round *r, const dpool_block *b) {
    bool is_reachable = has_uses(b) && !(b->state == DPOOL_PENDING && dpool_is_in_transit(b->uses));
    for (const dpool_use *use = is_reachable ? b->uses : NULL; use != NULL; use = use->next) {
        record_use(r, use);
    }
}

static void find_streams(ductile_allocator *a, const dpool_private_pool *of, round *r) {
    dti_lock_acquire(&a->index_lock);
    for (const dpool_block *b = dpool_next_block(a, of, NULL); b != NULL;
         b = dpool_next_block(a, of, b)) {
        record_uses(r, b);
    }
    hold_markers_locked(a, &r->of);
    dti_lock_release(&a->index_lock);
}

static ductile_status mark(ductile_allocator *a, dpool_per_stream *s) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, s->stream, &m);
    if (status == DUCTILE_OK) {
        dvmm_marker_drop(&a->markers, s->latest);
        s->latest = m;
    }
    return status;
}

/* Under the grow lock no stream gets done: those that are found can be named (U7). */
static ductile_status mark_streams(ductile_allocator *a, const dpool_private_pool *of, round *r,
                                   bool *has_peers) {
    ductile_status status = DUCTILE_OK;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    *has_peers = a->store.n_devices > 1;
    if (*has_peers) {
        dpool_mark_unmarked(a, NULL, true);
        find_streams(a, of, r);
    }
    for (uint32_t i = 0; i < r->of.n && status == DUCTILE_OK; i++) {
        status = r->of.all[i].wants_marker ? mark(a, &r->of.all[i]) : DUCTILE_OK;
    }
    dpool_grow_unlock(a, mode);
    return status;
}

/*
 * Waits for the present work of every stream recorded on a block that is LIVE, PAUSED, PENDING or
 * behind a span with waits. A wait for the device does not cover work of another GPU, whose streams
 * may be recorded once it has access. So when a peer has access, the host records a marker on each
 * such stream and waits for it (U12); otherwise this returns at once. The wait for the device
 * covers default streams, which belong to this device, and streams that are gone without a last
 * marker (U1). ERR_CAPTURING, ERR_DRIVER, ... when a stream cannot be marked or waited for. Linear
 * in blocks and uses.
 */
static ductile_status wait_recorded(ductile_allocator *a, const dpool_private_pool *of) {
    bool has_peers = false;
    bool is_more = true;
    ductile_status status = DUCTILE_OK;
    round r = {.highest = NULL};
    while (is_more && status == DUCTILE_OK) {
        r.of.n = 0;
        r.highest = NULL;
        status = mark_streams(a, of, &r, &has_peers);
        for (uint32_t i = 0; i < r.of.n; i++) {
            status = wait_and_drop(a, r.of.all[i].latest, status);
        }
        is_more = r.highest != NULL;
        r.after = is_more ? *r.highest : r.after;
    }
    bool any = false;
    if (status == DUCTILE_OK && has_peers && dpool_wait_on_host(a, of, &any) != DUCTILE_OK) {
        status = what_is_wrong(a);
    }
    return status;
}

/* ---- Before memory goes -------------------------------------------------------------------- */

bool dpool_awaits_device(ductile_allocator *a) {
    bool is = false;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !is; arena = arena->next) {
        is = dpool_has_graphs(a, arena) && !dpool_is_held(arena->pool) && arena->mapped_bytes > 0;
    }
    dti_lock_release(&a->index_lock);
    return is;
}

static bool any_is_worth_a_wait(ductile_allocator *a, const dpool_private_pool *of) {
    bool any = false;
    for (dpool_arena *arena = hold_next(a, NULL); arena != NULL; arena = hold_next(a, arena)) {
        any = any || (dpool_is_in(of, arena) && is_worth_a_wait(a, arena));
    }
    return any;
}

void dpool_mark_what_captures_left(ductile_allocator *a) {
    if (atomic_load(&a->has_unmarked)) {
        dvmm_capture_mode mode = dpool_grow_lock(a);
        dpool_mark_unmarked(a, NULL, true);
        dpool_grow_unlock(a, mode);
    }
}

void dpool_quiesce_free(ductile_allocator *a, const dpool_private_pool *of) {
    bool any = false;
    dpool_mark_what_captures_left(a);
    wait_for_pending(a);
    (void)dpool_wait_on_host(a, NULL, &any);
    if (any_is_worth_a_wait(a, of)) {
        bool is_proven = wait_for_context(a) == DUCTILE_OK;
        (void)wait_for_streams(a, &(stream_choice){.of = of, .only_foreign = is_proven});
    }
}

ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool,
                                  dseg_idle *idle) {
    const stream_choice foreign = {.of = pool, .has_live = true, .only_foreign = true};
    dpool_mark_what_captures_left(a);
    ductile_status status = wait_recorded(a, pool);
    wait_for_pending(a); /* of a GPU that has lost access since, too */
    status = status == DUCTILE_OK ? dpool_wait_for_all_work(a, idle) : status;
    return status == DUCTILE_OK ? wait_for_streams(a, &foreign) : status;
}

/* ---- Before all of it goes ----------------------------------------------------------------- */

/* May work of other streams than their own use the memory: graphs, recorded uses, or imports? */
static bool needs_device(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    bool any = a->imports.count > 0;
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        any |= dpool_had_graphs(arena);
    }
    const dpool_block *b = any ? NULL : dpool_next_block(a, NULL, NULL);
    while (b != NULL && !has_uses(b)) {
        b = dpool_next_block(a, NULL, b);
    }
    dti_lock_release(&a->index_lock);
    return any || b != NULL;
}

/* The end of the allocator counts as an allocation on each of its streams (docs/contract.md, rule
 * 3). */
static void join_all(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t age = ++a->age;
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        arena->joined_age = age;
    }
    dti_lock_release(&a->index_lock);
}

/* All streams are done, each proven by a wait of its own: the proof of any stands for them. */
static ductile_status wait_for_each_stream(ductile_allocator *a, dseg_idle *idle) {
    const stream_choice all = {.has_live = true};
    join_all(a);
    dpool_quiesce_free(a, NULL);
    dti_lock_acquire(&a->grow_lock);
    dpool_poll_all(a, UINT32_MAX); /* what was pending has no uses any more */
    dti_lock_release(&a->grow_lock);
    if (needs_device(a)) {
        return DUCTILE_ERR_CAPTURING;
    }
    ductile_status status = wait_for_streams(a, &all);
    if (status == DUCTILE_OK) {
        DTI_ASSERT(a->arenas != NULL); /* whose memory is mapped: there are no imports */
        *idle = a->arenas->own_proven.idle;
    }
    return status;
}

static ductile_status wait_for_whole_device(ductile_allocator *a, dseg_idle *idle) {
    if (!dpool_context_wait_begin(a)) {
        return wait_for_each_stream(a, idle);
    }
    ductile_status status = dseg_sync_device(&a->markers, idle);
    dpool_context_wait_end(a);
    return status;
}

/* A wait for the device covers no other GPU, and no other context. */
ductile_status dpool_quiesce_all(ductile_allocator *a, dseg_idle *idle) {
    ductile_status status = wait_recorded(a, NULL);
    status = status == DUCTILE_OK ? wait_for_foreign(a) : status;
    return status == DUCTILE_OK ? wait_for_whole_device(a, idle) : status;
}
