/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/progress.h"

#include "pool/blocks/region.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/pending.h"

#include "vmm/base/align.h"

enum { KEPT_SHARE = 32 }; /* of the device's bytes are kept retiring */

/* ---- Markers ------------------------------------------------------------------------------- */

/*
 * A marker gets its number before it is recorded. So when marker s is done, all work is done that
 * was issued before any number up to s was given out. Threads may record in another order than
 * their numbers; a later number still proves the earlier ones, since it was given out later.
 *
 * A full ring keeps the latest markers: a wait for a marker that leaves becomes a wait for the next
 * one. Returns the marker that is no longer needed; NULL when there is none.
 */
static dvmm_marker *insert_mark_locked(const ductile_allocator *a, dpool_arena *arena,
                                       dpool_ring_mark mark) {
    DTI_ASSERT_HELD(&a->index_lock);
    dvmm_marker *left_out = NULL;
    uint32_t at = arena->n_marks;
    while (at > 0 && arena->ring[at - 1].seq > mark.seq) {
        at--;
    }
    if (arena->n_marks == DPOOL_RING) {
        if (at < DPOOL_RING) {
            return mark.marker;
        }
        left_out = arena->ring[--at].marker;
        arena->n_marks--;
    }
    for (uint32_t i = arena->n_marks; i > at; i--) {
        arena->ring[i] = arena->ring[i - 1];
    }
    arena->ring[at] = mark;
    arena->n_marks++;
    return left_out;
}

static bool give_number(ductile_allocator *a, dpool_arena *arena, dpool_ring_mark *mark) {
    dti_lock_acquire(&a->index_lock);
    bool may_be_named = dpool_arena_may_be_named(arena);
    mark->epoch = arena->alloc_epoch;
    mark->seq = ++arena->marker_seq;
    arena->next_mark_at = arena->alloc_epoch + DPOOL_MARK_EVERY;
    dti_lock_release(&a->index_lock);
    return may_be_named;
}

ductile_status dpool_mark(ductile_allocator *a, dpool_arena *arena, uint64_t *seq) {
    dpool_ring_mark mark = {NULL, 0, 0};
    if (!give_number(a, arena, &mark)) {
        return DUCTILE_ERR_CAPTURING;
    }
    ductile_status status = dvmm_marker_record(&a->markers, arena->stream, &mark.marker);
    if (status != DUCTILE_OK) {
        return status;
    }
    dti_lock_acquire(&a->index_lock);
    dvmm_marker *left_out = insert_mark_locked(a, arena, mark);
    dti_lock_release(&a->index_lock);
    if (left_out != NULL) {
        dvmm_marker_drop(&a->markers, left_out);
    }
    if (seq != NULL) {
        *seq = mark.seq;
    }
    return DUCTILE_OK;
}

static uint32_t copy_marks(ductile_allocator *a, dpool_arena *arena, dpool_ring_mark *copy) {
    dti_lock_acquire(&a->index_lock);
    uint32_t n = arena->n_marks;
    for (uint32_t i = 0; i < n; i++) {
        copy[i] = arena->ring[i];
        dvmm_marker_hold(copy[i].marker);
    }
    dti_lock_release(&a->index_lock);
    return n;
}

/* The number of oldest markers that are done. Mostly all are, so the newest is queried first. */
static uint32_t count_done(ductile_allocator *a, const dpool_ring_mark *marks, uint32_t n) {
    if (n > 0 && dvmm_marker_query(&a->markers, marks[n - 1].marker) == DUCTILE_OK) {
        return n;
    }
    uint32_t done = 0;
    while (done < n && dvmm_marker_query(&a->markers, marks[done].marker) == DUCTILE_OK) {
        done++;
    }
    return done;
}

/* Removes the markers up to seq from the ring into `gone`. */
static uint32_t pop_marks_locked(const ductile_allocator *a, dpool_arena *arena, uint64_t seq,
                                 dvmm_marker **gone) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint32_t n = 0;
    while (n < arena->n_marks && arena->ring[n].seq <= seq) {
        gone[n] = arena->ring[n].marker;
        n++;
    }
    for (uint32_t i = n; i < arena->n_marks; i++) {
        arena->ring[i - n] = arena->ring[i];
    }
    arena->n_marks -= n;
    return n;
}

static void accept_mark(ductile_allocator *a, dpool_arena *arena, const dpool_ring_mark *done) {
    dvmm_marker *gone[DPOOL_RING];
    dti_lock_acquire(&a->index_lock);
    arena->done_seq = dti_max(arena->done_seq, done->seq);
    arena->proven_epoch = dti_max(arena->proven_epoch, done->epoch);
    arena->proven_by = dseg_idle_by_marker(done->marker);
    uint32_t n = pop_marks_locked(a, arena, done->seq, gone);
    dti_lock_release(&a->index_lock);
    for (uint32_t i = 0; i < n; i++) {
        dvmm_marker_drop(&a->markers, gone[i]);
    }
}

void dpool_poll_marks(ductile_allocator *a, dpool_arena *arena) {
    dpool_ring_mark marks[DPOOL_RING];
    uint32_t n = copy_marks(a, arena, marks);
    uint32_t n_done = count_done(a, marks, n);
    if (n_done > 0) {
        accept_mark(a, arena, &marks[n_done - 1]);
    }
    for (uint32_t i = 0; i < n; i++) {
        dvmm_marker_drop(&a->markers, marks[i].marker);
    }
}

/* ---- Retiring addresses --------------------------------------------------------------------- */

/*
 * When retiring addresses become gaps again. Normally as soon as their markers are done, a bounded
 * number in each call. But with record_stream:wait, which promises that the held memory does not
 * depend on the progress of the GPU, gaps must not appear at a time that the GPU chooses, since
 * requests are placed in them. There an arena keeps a fixed amount of addresses retiring, the
 * latest ones; its own next slow call unmaps all others, and waits on the host for their marker if
 * it is not done. The amount is so large that only a host far ahead of the GPU waits.
 */

bool dpool_retires_in_order(const ductile_allocator *a) {
    return a->options.record_stream == DUCTILE_RECORD_WAIT;
}

static uint64_t kept_bytes(const ductile_allocator *a, const dpool_arena *arena) {
    bool is_kept = dpool_retires_in_order(a) && !arena->is_gone;
    return is_kept ? dti_max(a->device_bytes / KEPT_SHARE, a->granule) : 0;
}

void dpool_retire_locked(ductile_allocator *a, dpool_block *b, uint64_t seq) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = b->region->arena;
    b->state = DPOOL_RETIRING;
    dpool_set_epoch(b, seq);
    if (dpool_retires_in_order(a)) {
        dpool_list_append(&arena->retiring, b);
    } else {
        dpool_list_insert_by_epoch(&arena->retiring, b);
    }
    arena->retiring_bytes += b->size;
    a->counts.retiring += b->size;
}

static dpool_block *next_retired(ductile_allocator *a, dpool_arena *arena, uint64_t keep,
                                 dseg_idle *idle) {
    dti_lock_acquire(&a->index_lock);
    dpool_block *b = arena->retiring.first;
    bool may_go = b != NULL && arena->retiring_bytes > keep && b->epoch <= arena->done_seq;
    if (may_go) {
        dpool_list_remove(&arena->retiring, b);
        arena->retiring_bytes -= b->size;
        *idle = arena->proven_by;
    }
    dti_lock_release(&a->index_lock);
    return may_go ? b : NULL;
}

static void finish_retired(ductile_allocator *a, dpool_block *b, ductile_status status) {
    dti_lock_acquire(&a->index_lock);
    a->counts.retiring -= b->size;
    dpool_unmapped_to_gap_locked(a, b, status);
    dti_lock_release(&a->index_lock);
}

static void reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most, uint64_t keep) {
    uint32_t n = 0;
    dpool_block *b;
    dseg_idle idle;
    while (n < most && (b = next_retired(a, arena, keep, &idle)) != NULL) {
        dseg_segment *seg = b->region->seg;
        uint32_t granules = (uint32_t)(b->size / a->granule);
        ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), granules, idle);
        n += granules;
        finish_retired(a, b, status);
    }
}

void dpool_reclaim(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    bool is_kept = most != UINT32_MAX && kept_bytes(a, arena) > 0;
    if (!is_kept) {
        reclaim(a, arena, most, 0);
    }
}

void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    uint64_t keep = kept_bytes(a, arena);
    reclaim(a, arena, keep > 0 ? UINT32_MAX : most, keep);
}

/* The marker that covers all retiring addresses above the kept amount; NULL when it is done, or
 * when there is none. */
static dvmm_marker *marker_of_surplus_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t left = arena->retiring_bytes;
    uint64_t keep = kept_bytes(a, arena);
    uint64_t seq = 0;
    for (const dpool_block *b = arena->retiring.first; b != NULL && left > keep; b = b->list_next) {
        seq = dti_max(seq, b->epoch);
        left -= b->size;
    }
    for (uint32_t i = 0; i < arena->n_marks && seq > arena->done_seq; i++) {
        if (arena->ring[i].seq >= seq) {
            return arena->ring[i].marker;
        }
    }
    return NULL;
}

void dpool_wait_retired(ductile_allocator *a, struct dpool_private_pool *pool,
                        ductile_stream stream) {
    if (!dpool_retires_in_order(a)) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    const dpool_arena *arena = dpool_arena_find_locked(a, pool, stream);
    dvmm_marker *m = arena != NULL ? marker_of_surplus_locked(a, arena) : NULL;
    if (m != NULL) {
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    if (m == NULL) {
        return;
    }
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    if (dvmm_marker_query(&a->markers, m) != DUCTILE_OK) {
        (void)dvmm_marker_wait(&a->markers, m);
    }
    dvmm_capture_restore(a->driver, mode);
    dvmm_marker_drop(&a->markers, m);
}

/* ---- All of it ------------------------------------------------------------------------------ */

void dpool_poll(ductile_allocator *a, dpool_arena *arena, uint32_t most) {
    dpool_poll_marks(a, arena);
    dpool_poll_pending_all(a, arena);
    dpool_reclaim(a, arena, most);
}

void dpool_poll_all(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_poll(a, arena, UINT32_MAX);
    }
    dpool_wait_poll(a, UINT32_MAX);
}

void dpool_respect_retain(ductile_allocator *a) {
    if (a->options.retain_bytes != 0) {
        (void)dvmm_store_shrink_cache(&a->store, a->options.retain_bytes);
    }
}
