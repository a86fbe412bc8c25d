/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/quiesce.h"

#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/streams/host_waits.h"
#include "pool/streams/per_stream.h"
#include "pool/streams/progress.h"
#include "pool/streams/stream_use.h"

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
    dpool_hold_markers_locked(a, &r->of);
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
 * Waits for the present work of every stream recorded on a block that is LIVE, ASLEEP, PENDING or
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
            status = dpool_wait_and_drop(a, r.of.all[i].latest, status);
        }
        is_more = r.highest != NULL;
        r.after = is_more ? *r.highest : r.after;
    }
    bool any = false;
    if (status == DUCTILE_OK && has_peers && dpool_wait_on_host(a, of, &any) != DUCTILE_OK) {
        status = dpool_what_is_wrong(a);
    }
    return status;
}

/* ---- Before memory goes -------------------------------------------------------------------- */

void dpool_quiesce_free(ductile_allocator *a, const dpool_private_pool *of) {
    bool any = false;
    dpool_mark_what_captures_left(a);
    dpool_wait_for_pending(a);
    (void)dpool_wait_on_host(a, NULL, &any);
    if (dpool_any_is_worth_a_wait(a, of)) {
        bool is_proven = dpool_wait_for_context(a) == DUCTILE_OK;
        (void)dpool_wait_for_streams(a,
                                     &(dpool_stream_choice){.of = of, .only_foreign = is_proven});
    }
}

ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool,
                                  dseg_idle *idle) {
    const dpool_stream_choice foreign = {.of = pool, .has_live = true, .only_foreign = true};
    dpool_mark_what_captures_left(a);
    ductile_status status = wait_recorded(a, pool);
    dpool_wait_for_pending(a); /* of a GPU that has lost access since, too */
    status = status == DUCTILE_OK ? dpool_wait_for_all_work(a, idle) : status;
    return status == DUCTILE_OK ? dpool_wait_for_streams(a, &foreign) : status;
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
        arena->proofs.joined_age = age;
    }
    dti_lock_release(&a->index_lock);
}

/* All streams are done, each proven by a wait of its own: the proof of any stands for them. */
static ductile_status wait_for_each_stream(ductile_allocator *a, dseg_idle *idle) {
    const dpool_stream_choice all = {.has_live = true};
    join_all(a);
    dpool_quiesce_free(a, NULL);
    dti_lock_acquire(&a->grow_lock);
    dpool_poll_all(a, UINT32_MAX); /* what was pending has no uses any more */
    dti_lock_release(&a->grow_lock);
    if (needs_device(a)) {
        return DUCTILE_ERR_CAPTURING;
    }
    ductile_status status = dpool_wait_for_streams(a, &all);
    if (status == DUCTILE_OK) {
        DTI_ASSERT(a->arenas != NULL); /* whose memory is mapped: there are no imports */
        *idle = a->arenas->proofs.own.idle;
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

/* Live blocks may be in use. */
static ductile_status wait_for_foreign(ductile_allocator *a) {
    const dpool_stream_choice all = {.has_live = true, .only_foreign = true};
    return dpool_wait_for_streams(a, &all) == DUCTILE_OK ? DUCTILE_OK : dpool_what_is_wrong(a);
}

/* A wait for the device covers no other GPU, and no other context. */
ductile_status dpool_quiesce_all(ductile_allocator *a, dseg_idle *idle) {
    ductile_status status = wait_recorded(a, NULL);
    status = status == DUCTILE_OK ? wait_for_foreign(a) : status;
    return status == DUCTILE_OK ? wait_for_whole_device(a, idle) : status;
}
