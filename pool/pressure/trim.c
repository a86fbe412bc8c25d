/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/trim.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/growth/announce.h"
#include "pool/sharing/import.h"
#include "pool/streams/gpu_waits.h"
#include "pool/streams/pending.h"
#include "pool/streams/progress.h"

#include "segments/granules.h"
#include "vmm/base/align.h"

#include <stdint.h>
#include <stdlib.h>

static uint64_t held(const ductile_allocator *a) {
    return a->store.totals.held_bytes - a->store.totals.lost_bytes;
}

/* What a trim is about: everything, or one pool (NULL: what is in none). Memory goes until at most
 * `keep` is held; the cache goes first, but for `spared` of it. */
typedef struct scope {
    bool is_all;
    const dpool_private_pool *pool;
    uint64_t keep;
    uint64_t spared;
} scope;

/* What has to go yet. */
static uint64_t surplus(const ductile_allocator *a, const scope *s) {
    return held(a) > s->keep ? held(a) - s->keep : 0;
}

static ductile_status release_surplus(ductile_allocator *a, const scope *s) {
    uint64_t cached = a->store.totals.cached_bytes;
    uint64_t most = cached > s->spared ? cached - s->spared : 0;
    return dvmm_store_shrink_cache(&a->store, cached - dti_min(most, surplus(a, s)));
}

static bool is_in(const scope *s, const dpool_arena *arena) {
    return s->is_all || arena->pool == s->pool;
}

static ductile_status first_error(ductile_status before, ductile_status now) {
    return before == DUCTILE_OK ? now : before;
}

/* ---- Candidates: proven free blocks, top addresses first, under the grow lock --------------- */

enum {
    VISITS_PER_HOLD = 128,   /* blocks looked at in one hold of the index lock      */
    GRANULES_PER_HOLD = 512, /* taken in one hold, and unmapped before the next   */
    ROOM = 64                /* two nodes are needed; hits of others take some too */
};

/* A block as it was when it was found. Hits go on meanwhile, so it is looked at again when it is
 * taken; its node stays readable whatever became of it. */
typedef struct candidate {
    ductile_addr addr;
    dpool_block *block;
} candidate;

/* Owner: one walk. */
typedef struct candidates {
    candidate *all;
    size_t n;
    size_t room;
} candidates;

static bool is_proven(const ductile_allocator *a, const dpool_arena *arena, const dpool_block *b) {
    return b->size >= a->granule && b->epoch < dpool_proven_epoch(arena) &&
           !dpool_wait_is_due_locked(a, b->addr, dpool_end(b));
}

static bool make_room(candidates *c) {
    if (c->room - c->n >= VISITS_PER_HOLD) {
        return true;
    }
    size_t room = 2 * c->room + VISITS_PER_HOLD;
    candidate *all = realloc(c->all, room * sizeof *all);
    if (all == NULL) {
        return false;
    }
    c->all = all;
    c->room = room;
    return true;
}

/* Looks at the next blocks downwards in size; `last` is a copy of the one looked at before, of size
 * 0 at the start. False when no block of a granule is left. */
static bool find_more_locked(const ductile_allocator *a, const dpool_arena *arena,
                             dpool_block *last, candidates *c) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = NULL;
    for (uint32_t i = 0; i < VISITS_PER_HOLD; i++) {
        b = dpool_index_below(&arena->index, last->size == 0 ? NULL : last);
        if (b == NULL || b->size < a->granule) {
            return false;
        }
        *last = *b;
        if (is_proven(a, arena, b)) {
            c->all[c->n++] = (candidate){b->addr, b};
        }
    }
    return true;
}

static int by_address_downwards(const void *left, const void *right) {
    ductile_addr l = ((const candidate *)left)->addr;
    ductile_addr r = ((const candidate *)right)->addr;
    return (l < r) - (l > r);
}

/* Without host memory for all of them, those found so far will do. */
static ductile_status find_candidates(ductile_allocator *a, const dpool_arena *arena,
                                      candidates *c) {
    dpool_block last = {.size = 0};
    ductile_status status = DUCTILE_OK;
    bool is_more = true;
    while (is_more && status == DUCTILE_OK) {
        if (!make_room(c)) {
            status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
            break;
        }
        dti_lock_acquire(&a->index_lock);
        is_more = find_more_locked(a, arena, &last, c);
        dti_lock_release(&a->index_lock);
    }
    if (c->n > 1) {
        qsort(c->all, c->n, sizeof *c->all, by_address_downwards);
    }
    return status;
}

/* ---- Giving back, under the grow lock ------------------------------------------------------- */

/*
 * The topmost run of handles in b whose memory can go back: of `most` bytes, or one handle more
 * when that does not come out even. Handles that have another address, retiring or quarantined, or
 * that are pinned (U10), are left where they are.
 */
static dseg_span topmost_run(const ductile_allocator *a, const dpool_block *b, uint64_t most) {
    const dseg_segment *seg = b->region->seg;
    return dseg_topmost_run(seg, dseg_granules_in(seg, b->addr, dpool_end(b)),
                            dti_round_up(most, a->granule) / a->granule);
}

/* Takes up to `most` bytes from the top of a candidate, if it still is one; the rest of it below
 * stays the same block. NULL when there is nothing to take. */
static dpool_block *take_from_locked(ductile_allocator *a, const dpool_arena *arena,
                                     const candidate *c, uint64_t most, dseg_idle *idle) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = c->block;
    if (a->nodes.n_spare < 2 || !dpool_index_holds(&arena->index, b) || b->addr != c->addr ||
        !is_proven(a, arena, b)) {
        return NULL;
    }
    *idle = arena->proven_by;
    dseg_span run = topmost_run(a, b, dti_min(most, GRANULES_PER_HOLD * a->granule));
    return dseg_is_empty(run) ? NULL
                              : dpool_carve_free_locked(a, b, dseg_addr(b->region->seg, run.first),
                                                        dseg_addr(b->region->seg, run.end));
}

static ductile_status give_back_block(ductile_allocator *a, dpool_block *b, dseg_idle idle) {
    dseg_segment *seg = b->region->seg;
    uint32_t n = (uint32_t)(b->size / a->granule);
    ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), n, idle);
    dti_lock_acquire(&a->index_lock);
    dpool_mapped_to_gap_locked(a, b, status);
    dti_lock_release(&a->index_lock);
    return status;
}

static ductile_status give_back_candidate(ductile_allocator *a, const dpool_arena *arena,
                                          const scope *s, const candidate *c) {
    ductile_status first = DUCTILE_OK;
    while (surplus(a, s) > 0) {
        ductile_status status = dpool_reserve_room(a, ROOM);
        if (status != DUCTILE_OK) {
            return first_error(first, status);
        }
        dseg_idle idle;
        dti_lock_acquire(&a->index_lock);
        dpool_block *b = take_from_locked(a, arena, c, surplus(a, s), &idle);
        dti_lock_release(&a->index_lock);
        if (b == NULL) {
            break;
        }
        if (dpool_announces(a)) {
            dpool_announce_leaving(a, b);
        }
        first = first_error(first, give_back_block(a, b, idle));
        first = first_error(first, release_surplus(a, s));
    }
    return first;
}

static ductile_status give_back_proven(ductile_allocator *a, const dpool_arena *arena,
                                       const scope *s) {
    if (surplus(a, s) == 0) {
        return DUCTILE_OK;
    }
    candidates c = {NULL, 0, 0};
    ductile_status first = find_candidates(a, arena, &c);
    for (size_t i = 0; i < c.n && surplus(a, s) > 0; i++) {
        first = first_error(first, give_back_candidate(a, arena, s, &c.all[i]));
    }
    free(c.all);
    return first;
}

static ductile_status give_back_all_proven(ductile_allocator *a, const scope *s) {
    ductile_status first = release_surplus(a, s);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (is_in(s, arena)) {
            first = first_error(first, give_back_proven(a, arena, s));
        }
    }
    return first;
}

static void poll_everything(ductile_allocator *a) {
    (void)dpool_imports_poll(a);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_poll(a, arena, UINT32_MAX);
    }
    dpool_wait_poll(a, UINT32_MAX);
}

static void drop_empty_ranges(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        dpool_regions_release_empty(a, arena, 0);
        dpool_arena_drop_if_empty(a, arena);
    }
}

/* ---- Waiting, without locks ---------------------------------------------------------------- */

static bool has_unproven(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool unproven = arena->retiring.count > 0 || arena->pending_first != NULL;
    const dpool_block *b = dpool_index_below(&arena->index, NULL);
    while (!unproven && b != NULL && b->size >= a->granule && !dpool_is_frozen(arena)) {
        unproven = b->epoch >= dpool_proven_epoch(arena);
        b = dpool_index_below(&arena->index, b);
    }
    dti_lock_release(&a->index_lock);
    return unproven;
}

/* The newest marker of an arena whose stream must not be named any more. */
static void wait_for_last_mark(ductile_allocator *a, dpool_arena *arena) {
    dvmm_marker *m = NULL;
    dti_lock_acquire(&a->index_lock);
    if (arena->n_marks > 0) {
        m = arena->ring[arena->n_marks - 1].marker;
        dvmm_marker_hold(m);
    }
    dti_lock_release(&a->index_lock);
    if (m != NULL) {
        (void)dvmm_marker_wait(&a->markers, m);
        dvmm_marker_drop(&a->markers, m);
    }
}

/* *idle stays without proof where the stream could not be waited for; what a marker proved instead
 * is read by polling. */
static void wait_for_arena(ductile_allocator *a, dpool_arena *arena, dseg_idle *idle) {
    if (!dpool_stream_ref_begin(a, arena)) {
        wait_for_last_mark(a, arena);
        return;
    }
    (void)dpool_sync_arena(a, arena, idle);
    dpool_stream_ref_end(a, arena);
}

/* Streams cannot prove what graphs did with a pool that nobody holds any more. */
static bool needs_context(ductile_allocator *a, const scope *s) {
    bool needs = false;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !needs; arena = arena->next) {
        needs = is_in(s, arena) && dpool_released_life(arena) != 0 && arena->pool->awaits_context &&
                arena->mapped_bytes > 0;
    }
    dti_lock_release(&a->index_lock);
    return needs;
}

static ductile_status wait_for_streams(ductile_allocator *a, const scope *s) {
    dpool_wait_point snapshot;
    ductile_status status = dpool_wait_point_take(a, &snapshot);
    if (status != DUCTILE_OK) {
        return status;
    }
    for (uint32_t i = 0; i < snapshot.n; i++) {
        dpool_wait_mark *mark = &snapshot.marks[i];
        if (is_in(s, mark->arena) && has_unproven(a, mark->arena)) {
            wait_for_arena(a, mark->arena, &mark->idle);
        }
    }
    dpool_wait_point_reached(a, &snapshot, false);
    dpool_wait_point_drop(a, &snapshot);
    return DUCTILE_OK;
}

static void poll_all_pending(ductile_allocator *a) {
    dti_lock_acquire(&a->grow_lock);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_poll_pending_all(a, arena);
    }
    dti_lock_release(&a->grow_lock);
}

/* Each wait is for one marker or more, so as many waits as there are markers now are enough for
 * what is pending now. Other threads may go on freeing: theirs belong to the next trim. */
static void wait_for_pending(ductile_allocator *a) {
    uint64_t n = dpool_count_pending_marks(a);
    while (n > 0 && dpool_wait_oldest(a, NULL, UINT64_MAX) > 0) {
        poll_all_pending(a);
        n--;
    }
}

/* In relaxed mode, or the waits would break other threads' captures. */
static ductile_status wait_for_work(ductile_allocator *a, const scope *s) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    wait_for_pending(a);
    ductile_addr waited_to = 0;
    while (dpool_wait_on_host(a, &waited_to, UINT64_MAX)) {
    }
    ductile_status status = DUCTILE_OK;
    bool captured = false;
    if (!needs_context(a, s) || !dpool_wait_context(a, &captured, NULL)) {
        status = wait_for_streams(a, s);
    }
    dvmm_capture_restore(a->driver, mode);
    return status;
}

/* What can go back without waiting does. */
static ductile_status give_back_now(ductile_allocator *a, const scope *s, bool *enough) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    poll_everything(a);
    ductile_status status = give_back_all_proven(a, s);
    drop_empty_ranges(a);
    *enough = surplus(a, s) == 0;
    dpool_grow_unlock(a, mode);
    return status;
}

static ductile_status give_back_waiting(ductile_allocator *a, const scope *s) {
    bool enough = false;
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY;
    }
    ductile_status status = give_back_now(a, s, &enough);
    if (enough || status != DUCTILE_OK) {
        return status;
    }
    status = wait_for_work(a, s);
    return status == DUCTILE_OK ? give_back_now(a, s, &enough) : status;
}

/* A query or a wait that meets a lost device says only that nothing is known. */
static ductile_status or_what_is_wrong(const ductile_allocator *a, ductile_status status) {
    return first_error(status, dvmm_usable(a->driver));
}

ductile_status dpool_trim(ductile_allocator *a, uint64_t keep) {
    const scope all = {.is_all = true, .keep = keep};
    return or_what_is_wrong(a, give_back_waiting(a, &all));
}

/* The totals that others read, as of now. */
static uint64_t mapped_now(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t mapped = a->counts.mapped;
    dti_lock_release(&a->index_lock);
    return mapped;
}

ductile_status dpool_trim_pool(ductile_allocator *a, const dpool_private_pool *pool) {
    const scope one = {.pool = pool, .spared = dvmm_store_read(&a->store).cached_bytes};
    return or_what_is_wrong(a, give_back_waiting(a, &one));
}

bool dpool_give_back(ductile_allocator *a, uint64_t bytes, bool may_wait) {
    uint64_t mapped_before = mapped_now(a);
    dvmm_store_totals before = dvmm_store_read(&a->store);
    uint64_t held_before = before.held_bytes - before.lost_bytes;
    const scope s = {.is_all = true,
                     .keep = held_before > bytes ? held_before - bytes : 0,
                     .spared = before.cached_bytes};
    bool enough = false;
    (void)(may_wait ? give_back_waiting(a, &s) : give_back_now(a, &s, &enough));
    return mapped_now(a) < mapped_before;
}
