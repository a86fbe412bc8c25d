/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/quiesce.h"

#include "pool/blocks/region.h"
#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/pending.h"
#include "pool/streams/per_stream.h"
#include "pool/streams/stream_use.h"

#include "vmm/base/align.h"

#include <stdlib.h>

/* Something could not be waited for: why? */
static ductile_status what_is_wrong(const ductile_allocator *a) {
    ductile_status status = dvmm_usable(a->driver);
    return status == DUCTILE_OK ? DUCTILE_ERR_DRIVER : status;
}

/* For the marker, if there is one and all went well `before`. */
static ductile_status wait_and_drop(ductile_allocator *a, dvmm_marker *m, ductile_status before) {
    ductile_status status = before;
    if (m != NULL) {
        status = before == DUCTILE_OK ? dvmm_marker_wait(&a->markers, m) : before;
        dvmm_marker_drop(&a->markers, m);
    }
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
    const dpool_use *uses = arena->pending_first;
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

static void take_both(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    dti_lock_acquire(&a->index_lock);
}

static void open_both(ductile_allocator *a) {
    dti_lock_release(&a->index_lock);
    dti_lock_release(&a->grow_lock);
}

uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes) {
    awaited w;
    w.of.n = 0;
    w.bytes = 0;
    take_both(a);
    choose_locked(a, own, bytes, &w);
    open_both(a);
    bool any = false;
    for (uint32_t i = 0; i < w.of.n; i++) {
        any |= wait_and_drop(a, w.of.all[i].latest, DUCTILE_OK) == DUCTILE_OK;
    }
    return any ? dti_max(w.bytes, 1) : 0; /* 1: more streams than fit, of one block */
}

uint64_t dpool_count_pending_marks(ductile_allocator *a) {
    uint64_t n = 0;
    take_both(a);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_use *u = arena->pending_first; u != NULL; u = u->pending_next) {
            for (const dpool_use *use = u; use != NULL; use = use->next) {
                n += use->marker != NULL;
            }
        }
    }
    open_both(a);
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

/* ---- How far arenas had come before a wait ------------------------------------------------- */

/* Taken before a wait without locks: after the wait, exactly the work up to these points is known
 * done (U8). The arenas in it cannot disappear. */
typedef struct wait_point {
    dpool_arena *arena;
    uint64_t epoch;
    uint64_t seq;
    dseg_idle idle; /* no proof: was not, or could not be, waited for */
    uint64_t life;  /* of its pool without references then: no graph will start in it; else 0 */
} wait_point;

typedef struct wait_points {
    wait_point *all;
    uint32_t n;
} wait_points;

static ductile_status take_wait_points(ductile_allocator *a, wait_points *p) {
    *p = (wait_points){NULL, 0};
    uint64_t room = 0;
    dti_lock_acquire(&a->index_lock);
    while (p->all == NULL || room < a->counts.arenas) { /* other threads add arenas, at the front */
        room = a->counts.arenas + 1;
        dti_lock_release(&a->index_lock);
        free(p->all);
        p->all = calloc(room, sizeof *p->all);
        if (p->all == NULL) {
            return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        }
        dti_lock_acquire(&a->index_lock);
    }
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        arena->alloc_epoch++; /* later frees get an epoch that this wait does not cover */
        arena->n_waiters++;
        p->all[p->n++] = (wait_point){.arena = arena,
                                      .epoch = arena->alloc_epoch,
                                      .seq = arena->marker_seq,
                                      .life = dpool_released_life(arena)};
    }
    dti_lock_release(&a->index_lock);
    return DUCTILE_OK;
}

/* Also for recorded streams, and for graphs, unless the pool is held again. */
static void record_device_locked(const ductile_allocator *a, const wait_point *p) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = p->arena;
    arena->context_epoch = dti_max(arena->context_epoch, p->epoch);
    if (p->life != 0 && dpool_released_life(arena) == p->life) {
        arena->pool->awaits_context = false;
    }
}

/* Records as done what the wait points hold, where there is proof. */
static void record_wait_points(ductile_allocator *a, const wait_points *p, bool of_device) {
    dti_lock_acquire(&a->index_lock);
    for (uint32_t i = 0; i < p->n; i++) {
        const wait_point *at = &p->all[i];
        dpool_arena *arena = at->arena;
        if (!dseg_is_proven(at->idle)) {
            continue;
        }
        arena->proven_by = at->idle;
        arena->proven_epoch = dti_max(arena->proven_epoch, at->epoch);
        arena->done_seq = dti_max(arena->done_seq, at->seq);
        if (of_device) {
            record_device_locked(a, at);
        }
    }
    dti_lock_release(&a->index_lock);
}

static void drop_wait_points(ductile_allocator *a, wait_points *p) {
    dti_lock_acquire(&a->index_lock);
    for (uint32_t i = 0; i < p->n; i++) {
        p->all[i].arena->n_waiters--;
    }
    dti_lock_release(&a->index_lock);
    free(p->all);
}

/* ---- The whole device ---------------------------------------------------------------------- */

/* A wait for the whole device breaks every capture in it, whatever mode the thread is in. */
static bool any_is_captured(ductile_allocator *a, const wait_points *p) {
    bool is_captured = false;
    for (uint32_t i = 0; i < p->n && !is_captured; i++) {
        dpool_arena *arena = p->all[i].arena;
        if (dpool_stream_ref_begin(a, arena)) {
            is_captured = dvmm_is_capturing(a->driver, arena->stream);
            dpool_stream_ref_end(a, arena);
        }
    }
    return is_captured;
}

static ductile_status wait_and_record(ductile_allocator *a, wait_points *p, dseg_idle *idle) {
    if (any_is_captured(a, p)) {
        return DUCTILE_ERR_CAPTURING;
    }
    if (dseg_sync_device(&a->markers, idle) != DUCTILE_OK) {
        return what_is_wrong(a);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        p->all[i].idle = *idle;
    }
    record_wait_points(a, p, true);
    dpool_wait_poll(a, UINT32_MAX);
    return DUCTILE_OK;
}

ductile_status dpool_wait_device(ductile_allocator *a, dseg_idle *idle) {
    if (!dpool_context_wait_begin(a)) {
        return DUCTILE_ERR_CAPTURING;
    }
    dseg_idle proof = {0};
    wait_points p;
    ductile_status status = take_wait_points(a, &p);
    status = status == DUCTILE_OK ? wait_and_record(a, &p, &proof) : what_is_wrong(a);
    drop_wait_points(a, &p);
    dpool_context_wait_end(a);
    if (idle != NULL) {
        *idle = proof;
    }
    return status;
}

/* ---- Arenas' own streams ------------------------------------------------------------------- */

bool dpool_is_proven_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b->epoch < dpool_proven_epoch(b->region->arena) &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

static bool has_unproven_closed_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_block *b = dpool_is_frozen(arena) ? NULL : arena->closed.first;
    while (b != NULL && dpool_is_proven_locked(a, b)) {
        b = b->list_next;
    }
    return b != NULL;
}

bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (arena->pending_first != NULL || has_unproven_closed_locked(a, arena)) {
        return true;
    }
    const dpool_block *b = dpool_is_frozen(arena) ? NULL : dpool_index_below(&arena->index, NULL);
    while (b != NULL && b->size >= a->granule && dpool_is_proven_locked(a, b)) {
        b = dpool_index_below(&arena->index, b);
    }
    return b != NULL && b->size >= a->granule;
}

static bool is_worth_a_wait(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool is = arena->retiring.count > 0 || dpool_awaits_proof_locked(a, arena);
    dti_lock_release(&a->index_lock);
    return is;
}

/* The newest marker of an arena whose stream must not be passed to the driver any more. A poll
 * reads what it proves. */
static void wait_for_last_mark(ductile_allocator *a, const dpool_arena *arena) {
    dvmm_marker *m = NULL;
    dti_lock_acquire(&a->index_lock);
    if (arena->n_marks > 0) {
        m = arena->ring[arena->n_marks - 1].marker;
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    (void)wait_and_drop(a, m, DUCTILE_OK);
}

static ductile_status wait_for_new_marker(ductile_allocator *a, ductile_stream stream,
                                          dseg_idle *proof) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, stream, &m);
    if (status == DUCTILE_OK) {
        status = dvmm_marker_wait(&a->markers, m);
        *proof = dseg_idle_by_marker(m);
        dvmm_marker_drop(&a->markers, m);
    }
    return status;
}

/* ERR_CAPTURING when it is being captured. No capture of another thread in a pool of this allocator
 * is broken, even if it begins just now. */
static ductile_status wait_for_stream(ductile_allocator *a, ductile_stream stream,
                                      dseg_idle *proof) {
    if (!dpool_stream_wait_begin(a)) {
        return wait_for_new_marker(a, stream, proof);
    }
    ductile_status status = dvmm_is_capturing(a->driver, stream)
                                ? DUCTILE_ERR_CAPTURING
                                : dseg_sync(&a->store, stream, proof);
    dpool_stream_wait_end(a);
    return status;
}

/* at->idle stays without proof where the stream could not be waited for. */
static ductile_status wait_for_arena(ductile_allocator *a, wait_point *at, bool has_live) {
    ductile_status status = DUCTILE_ERR_CAPTURING;
    if (dpool_stream_ref_begin(a, at->arena)) {
        status = wait_for_stream(a, at->arena->stream, &at->idle);
        dpool_stream_ref_end(a, at->arena);
    } else if (!has_live) {
        wait_for_last_mark(a, at->arena);
    }
    return status;
}

/* With live blocks, the thread must wait for all streams, and a stream that cannot be waited for is
 * an error. */
static ductile_status wait_for_streams(ductile_allocator *a, const dpool_scope *s, bool has_live) {
    wait_points p;
    ductile_status status = take_wait_points(a, &p);
    for (uint32_t i = 0; i < p.n && status == DUCTILE_OK; i++) {
        wait_point *at = &p.all[i];
        if (dpool_is_in(s, at->arena) && (has_live || is_worth_a_wait(a, at->arena))) {
            ductile_status waited = wait_for_arena(a, at, has_live);
            status = has_live ? waited : DUCTILE_OK;
        }
    }
    if (status == DUCTILE_OK) {
        record_wait_points(a, &p, false);
    }
    drop_wait_points(a, &p);
    return status;
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
    bool is_in_use = b->state == DPOOL_LIVE || b->state == DPOOL_PAUSED;
    return is_in_use ? b->uses != NULL : b->state == DPOOL_PENDING;
}

/* The markers of a PENDING block in transit belong to the thread that records them. The block is in
 * no list yet, and the caller waits again. */
static void record_uses(round *r, const dpool_block *b) {
    bool is_reachable = has_uses(b) && !(b->state == DPOOL_PENDING && dpool_is_in_transit(b->uses));
    for (const dpool_use *use = is_reachable ? b->uses : NULL; use != NULL; use = use->next) {
        record_use(r, use);
    }
}

static void find_streams(ductile_allocator *a, const dpool_scope *s, round *r) {
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        for (const dpool_region *g = dpool_is_in(s, arena) ? arena->regions : NULL; g != NULL;
             g = g->next) {
            for (const dpool_block *b = g->first; b != NULL; b = b->next) {
                record_uses(r, b);
            }
        }
    }
    hold_markers_locked(a, &r->of);
    dti_lock_release(&a->index_lock);
}

static ductile_status mark(ductile_allocator *a, dpool_per_stream *s) {
    dvmm_marker *m = NULL;
    ductile_status status = dvmm_marker_record(&a->markers, s->stream, &m);
    if (status == DUCTILE_OK) {
        if (s->latest != NULL) {
            dvmm_marker_drop(&a->markers, s->latest);
        }
        s->latest = m;
    }
    return status;
}

/* Under the grow lock no stream gets done: those that are found can be named (U7). */
static ductile_status mark_streams(ductile_allocator *a, const dpool_scope *s, round *r,
                                   bool *has_peers) {
    ductile_status status = DUCTILE_OK;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    *has_peers = a->store.n_devices > 1;
    if (*has_peers) {
        dpool_mark_unmarked(a, NULL, true);
        find_streams(a, s, r);
    }
    for (uint32_t i = 0; i < r->of.n && status == DUCTILE_OK; i++) {
        status = r->of.all[i].wants_marker ? mark(a, &r->of.all[i]) : DUCTILE_OK;
    }
    dpool_grow_unlock(a, mode);
    return status;
}

ductile_status dpool_wait_recorded(ductile_allocator *a, const dpool_scope *s) {
    bool has_peers = false;
    bool is_more = true;
    ductile_status status = DUCTILE_OK;
    round r = {.highest = NULL};
    while (is_more && status == DUCTILE_OK) {
        r.of.n = 0;
        r.highest = NULL;
        status = mark_streams(a, s, &r, &has_peers);
        for (uint32_t i = 0; i < r.of.n; i++) {
            status = wait_and_drop(a, r.of.all[i].latest, status);
        }
        is_more = r.highest != NULL;
        r.after = is_more ? *r.highest : r.after;
    }
    bool any = false;
    if (status == DUCTILE_OK && has_peers && dpool_wait_on_host(a, s, &any) != DUCTILE_OK) {
        status = what_is_wrong(a);
    }
    return status;
}

/* ---- Before memory goes -------------------------------------------------------------------- */

bool dpool_awaits_device(ductile_allocator *a, const dpool_scope *s) {
    bool is = false;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !is; arena = arena->next) {
        is = dpool_is_in(s, arena) && dpool_released_life(arena) != 0 &&
             arena->pool->awaits_context && arena->mapped_bytes > 0;
    }
    dti_lock_release(&a->index_lock);
    return is;
}

/* Streams cannot prove what graphs did with a pool that no reference holds any more. */
ductile_status dpool_quiesce_free(ductile_allocator *a, const dpool_scope *s) {
    bool any = false;
    wait_for_pending(a);
    (void)dpool_wait_on_host(a, &(dpool_scope){.is_all = true}, &any);
    if (dpool_awaits_device(a, s) && dpool_wait_device(a, NULL) == DUCTILE_OK) {
        return DUCTILE_OK;
    }
    return wait_for_streams(a, s, false);
}

static bool has_uses_locked(const ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        for (const dpool_block *b = r->first; b != NULL; b = b->next) {
            if (has_uses(b)) {
                return true;
            }
        }
    }
    return false;
}

/* While a capture is under way, the thread waits for the streams of the pool one by one. That
 * proves nothing about other streams, so no graph may use the pool and no other stream be recorded.
 */
static ductile_status wait_beside_capture(ductile_allocator *a, const dpool_scope *s) {
    dti_lock_acquire(&a->index_lock);
    bool needs_all = s->pool->kind == DUCTILE_POOL_CAPTURE || has_uses_locked(a, s->pool);
    dti_lock_release(&a->index_lock);
    return needs_all ? DUCTILE_ERR_CAPTURING : wait_for_streams(a, s, true);
}

ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool) {
    const dpool_scope s = {.pool = pool};
    ductile_status status = dpool_wait_recorded(a, &s);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = dpool_wait_device(a, NULL);
    return status == DUCTILE_ERR_CAPTURING ? wait_beside_capture(a, &s) : status;
}
