/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/trim.h"

#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"
#include "pool/growth/unused.h"
#include "pool/sharing/import.h"
#include "pool/streams/progress.h"
#include "pool/streams/quiesce.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/array.h"

#include <stdint.h>
#include <stdlib.h>

static uint64_t held(const ductile_allocator *a) {
    return a->store.totals.held_bytes - a->store.totals.lost_bytes;
}

/* One trim. It releases memory until at most `keep` bytes are held; the cache goes first, except
 * `spared` bytes of it. */
typedef struct goal {
    dpool_scope of;
    uint64_t keep;
    uint64_t spared;
} goal;

/* The bytes that must still go. */
static uint64_t surplus(const ductile_allocator *a, const goal *g) {
    return held(a) > g->keep ? held(a) - g->keep : 0;
}

static ductile_status release_surplus(ductile_allocator *a, const goal *g) {
    uint64_t cached = a->store.totals.cached_bytes;
    uint64_t most = cached > g->spared ? cached - g->spared : 0;
    return dvmm_store_shrink_cache(&a->store, cached - dti_min(most, surplus(a, g)));
}

static ductile_status first_error(ductile_status before, ductile_status now) {
    return before == DUCTILE_OK ? now : before;
}

/* ---- Candidates: proven free blocks, top addresses first, under the grow lock --------------- */

enum {
    VISITS_PER_HOLD = 128,   /* blocks visited in one hold of the index lock */
    GRANULES_PER_HOLD = 512, /* taken in one hold, and unmapped before the next   */
    ROOM = 64                /* two nodes are needed; hits of other threads take some too */
};

/* A block as it was when it was found. Hits continue meanwhile, so it is checked again when it is
 * taken; its node stays readable. */
typedef struct candidate {
    ductile_addr addr;
    dpool_block *block;
} candidate;

/* Owner: one walk. */
typedef struct candidates {
    candidate *all;
    size_t n;
    uint32_t room;
} candidates;

/* Visits the next blocks downwards in size; `last` is a copy of the last visited block, of size 0
 * at the start. False when no block of a granule is left. */
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
        if (!dseg_is_empty(dpool_proven_part_locked(a, b))) {
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

/* Without host memory for all of them, uses those found so far. */
static ductile_status find_candidates(ductile_allocator *a, const dpool_arena *arena,
                                      candidates *c) {
    dpool_block last = {.size = 0};
    ductile_status status = DUCTILE_OK;
    bool is_more = true;
    while (is_more && status == DUCTILE_OK) {
        if (!dti_have_room(&c->all, sizeof *c->all, &c->room, c->n + VISITS_PER_HOLD)) {
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
 * The topmost run of handles in b whose memory can go back: about `most` bytes, one handle more
 * when `most` would cut it. Handles with another address, retiring or quarantined, and pinned
 * handles (U10) stay.
 */
static dseg_span topmost_run_locked(const ductile_allocator *a, const dpool_block *b,
                                    uint64_t most) {
    DTI_ASSERT_HELD(&a->index_lock);
    return dseg_topmost_run(b->region->seg, dpool_proven_part_locked(a, b),
                            dti_round_up(most, a->granule) / a->granule, 1);
}

/* Takes up to `most` bytes from the top of a candidate, if it still is one; the rest below stays
 * the same block. NULL when there is nothing to take. */
static dpool_block *take_from_locked(ductile_allocator *a, const dpool_arena *arena,
                                     const candidate *c, uint64_t most, dseg_idle *idle) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = c->block;
    if (a->nodes.n_spare < 2 || !dpool_index_holds(&arena->index, b) || b->addr != c->addr) {
        return NULL;
    }
    *idle = dpool_proof_to_return(a, arena).idle;
    dseg_span run = topmost_run_locked(a, b, dti_min(most, GRANULES_PER_HOLD * a->granule));
    return dseg_is_empty(run) ? NULL
                              : dpool_carve_free_locked(a, b, dseg_addr(b->region->seg, run.first),
                                                        dseg_addr(b->region->seg, run.end));
}

static ductile_status give_back_candidate(ductile_allocator *a, const dpool_arena *arena,
                                          const goal *g, const candidate *c) {
    ductile_status first = DUCTILE_OK;
    while (surplus(a, g) > 0) {
        ductile_status status = dpool_reserve_room(a, ROOM);
        if (status != DUCTILE_OK) {
            return first_error(first, status);
        }
        dseg_idle idle;
        dti_lock_acquire(&a->index_lock);
        dpool_block *b = take_from_locked(a, arena, c, surplus(a, g), &idle);
        dti_lock_release(&a->index_lock);
        if (b == NULL) {
            break;
        }
        first = first_error(first, dpool_unmap_announced(a, b, idle));
        first = first_error(first, release_surplus(a, g));
    }
    return first;
}

static ductile_status give_back_proven(ductile_allocator *a, const dpool_arena *arena,
                                       const goal *g) {
    if (surplus(a, g) == 0) {
        return DUCTILE_OK;
    }
    candidates c = {NULL, 0, 0};
    ductile_status first = find_candidates(a, arena, &c);
    for (size_t i = 0; i < c.n && surplus(a, g) > 0; i++) {
        first = first_error(first, give_back_candidate(a, arena, g, &c.all[i]));
    }
    free(c.all);
    return first;
}

static ductile_status give_back_all_proven(ductile_allocator *a, const goal *g) {
    ductile_status first = release_surplus(a, g);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (dpool_is_in(&g->of, arena)) {
            first = first_error(first, give_back_proven(a, arena, g));
        }
    }
    return first;
}

/* ---- Trimming ------------------------------------------------------------------------------ */

/* Releases what can go back without a wait. */
static ductile_status give_back_now(ductile_allocator *a, const goal *g, bool *enough) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dpool_imports_poll(a);
    dpool_poll_all(a, UINT32_MAX);
    status = first_error(status, dpool_unused_reclaim(a, DPOOL_UNUSED_CLOSED, UINT64_MAX));
    status = first_error(status, give_back_all_proven(a, g));
    dpool_unused_drop(a, true);
    *enough = surplus(a, g) == 0;
    dpool_grow_unlock(a, mode);
    return status;
}

/* Uses relaxed mode, because the waits would break captures of other threads. */
static void wait_for_work(ductile_allocator *a, const goal *g) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dpool_quiesce_free(a, &g->of);
    dvmm_capture_restore(a->driver, mode);
}

static ductile_status try_giving_back(ductile_allocator *a, const goal *g) {
    bool enough = false;
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY;
    }
    ductile_status status = give_back_now(a, g, &enough);
    if (enough || status != DUCTILE_OK) {
        return status;
    }
    wait_for_work(a, g);
    return give_back_now(a, g, &enough);
}

static ductile_status give_back_waiting(ductile_allocator *a, const goal *g) {
    const dvmm_nvtx *nvtx = dvmm_nvtx_of(a->driver);
    dvmm_nvtx_push(nvtx, "trim", 0);
    ductile_status status = try_giving_back(a, g);
    dvmm_nvtx_pop(nvtx);
    return status;
}

/* A query or a wait on a lost device tells only that nothing is known. */
static ductile_status or_what_is_wrong(const ductile_allocator *a, ductile_status status) {
    return first_error(status, dvmm_usable(a->driver));
}

ductile_status dpool_trim(ductile_allocator *a, uint64_t keep) {
    const goal all = {.of = {.is_all = true}, .keep = keep};
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
    const goal one = {.of = {.pool = pool}, .spared = dvmm_store_read(&a->store).cached_bytes};
    return or_what_is_wrong(a, give_back_waiting(a, &one));
}

bool dpool_give_back(ductile_allocator *a, uint64_t bytes, bool may_wait) {
    uint64_t mapped_before = mapped_now(a);
    dvmm_store_totals before = dvmm_store_read(&a->store);
    uint64_t held_before = before.held_bytes - before.lost_bytes;
    const goal g = {.of = {.is_all = true},
                    .keep = held_before > bytes ? held_before - bytes : 0,
                    .spared = before.cached_bytes};
    bool enough = false;
    (void)(may_wait ? give_back_waiting(a, &g) : give_back_now(a, &g, &enough));
    return mapped_now(a) < mapped_before;
}
