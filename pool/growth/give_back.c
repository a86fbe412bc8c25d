/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/give_back.h"

#include "pool/blocks/proofs.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"
#include "pool/growth/asleep_memory.h"
#include "pool/growth/drop_empty.h"
#include "pool/sharing/import.h"
#include "pool/streams/progress.h"
#include "pool/streams/quiesce.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/array.h"

#include <stdlib.h>

enum {
    VISITS_PER_HOLD = 128,   /* blocks visited in one hold of the index lock */
    GRANULES_PER_HOLD = 512, /* taken in one hold, and unmapped before the next   */
    ROOM = 64                /* two nodes are needed; hits of other threads take some too */
};

static uint64_t held(const ductile_allocator *a) {
    return a->store.totals.held_bytes - a->store.totals.lost_bytes;
}

/* ---- One run of handles --------------------------------------------------------------------- */

/* A block as it was when it was found. Hits continue meanwhile, so it is checked again when it is
 * taken; its node stays readable. */
typedef struct candidate {
    ductile_addr addr;
    dpool_block *block;
} candidate;

/* What may give the next run. */
typedef struct search {
    const dpool_arena *arena;   /* NULL: leaving blocks of all arenas, and what is unused */
    const candidate *candidate; /* of the arena this block                                */
    dpool_unused unused;
} search;

static bool is_unused(const dpool_arena *arena, dpool_unused which) {
    bool is_idle = arena->live.bytes == 0 && arena->blocks.pending_bytes == 0;
    return which == DPOOL_UNUSED_FREE ||
           (is_idle &&
            (which == DPOOL_UNUSED_IDLE || (which == DPOOL_UNUSED_GONE && dpool_has_ended(arena))));
}

/* The topmost run of handles in that part of the block that can go, BUSY: about `most` granules,
 * one handle more when `most` would cut it. Handles with another address, retiring or quarantined,
 * and pinned handles (U10) stay. NULL for none. */
static dpool_block *take_run_locked(ductile_allocator *a, dpool_block *b, dseg_span part,
                                    uint64_t most) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = b->region->seg;
    dseg_span run = dseg_topmost_run(seg, part, most, 1);
    return dseg_is_empty(run)
               ? NULL
               : dpool_carve_free_locked(a, b, dseg_addr(seg, run.first), dseg_addr(seg, run.end));
}

static dpool_block *take_leaving_locked(ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = dpool_find_leaving_locked(a, arena, true);
    return b != NULL ? take_run_locked(a, b, dpool_leaving_part(b), UINT64_MAX) : NULL;
}

static dpool_block *take_largest_locked(ductile_allocator *a, const dpool_arena *arena,
                                        uint64_t most) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = dpool_is_frozen(arena) ? NULL : dpool_index_below(&arena->index, NULL);
    dpool_block *run = NULL;
    for (; b != NULL && b->size >= a->granule && run == NULL;
         b = dpool_index_below(&arena->index, b)) {
        if (dpool_is_proven_locked(a, b)) {
            dseg_span all = dseg_granules_in(b->region->seg, b->addr, dpool_end(b));
            run = take_run_locked(a, b, all, most);
        }
    }
    return run;
}

/* By its granules, and so more of it than a whole block that is as young as its youngest part. */
static dpool_block *take_candidate_locked(ductile_allocator *a, const dpool_arena *arena,
                                          const candidate *c, uint64_t most) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = c->block;
    bool is_there = dpool_index_holds(&arena->index, b) && b->addr == c->addr;
    return is_there ? take_run_locked(a, b, dpool_proven_part_locked(a, b), most) : NULL;
}

/* From the first arena on each time: the list may change while map callbacks run. */
static dpool_block *take_unused_locked(ductile_allocator *a, dpool_unused which, uint64_t most) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = NULL;
    for (const dpool_arena *at = a->arenas; at != NULL && b == NULL; at = at->next) {
        b = take_leaving_locked(a, at);
        b = b == NULL && is_unused(at, which) ? take_largest_locked(a, at, most) : b;
    }
    return b;
}

static dpool_block *take_locked(ductile_allocator *a, const search *s, uint64_t most,
                                dseg_idle *idle) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = NULL;
    if (a->nodes.n_spare < 2) {
        return NULL;
    }
    if (s->arena == NULL) {
        b = take_unused_locked(a, s->unused, most);
    } else {
        b = take_candidate_locked(a, s->arena, s->candidate, most);
    }
    if (b != NULL) {
        *idle = dpool_proof_to_go(a, b->region->arena).idle;
    }
    return b;
}

static ductile_status unmap(ductile_allocator *a, dpool_block *b, dseg_idle proof) {
    dpool_announce_block(a, DUCTILE_MAP_LEAVING, b);
    dseg_segment *seg = b->region->seg;
    uint32_t n = (uint32_t)(b->size / a->granule);
    ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), n, proof);
    dti_lock_acquire(&a->index_lock);
    dpool_mapped_to_gap_locked(a, b, status);
    dti_lock_release(&a->index_lock);
    return status;
}

/* Unmaps the next run, about `most` granules, into the handle cache. Returns how many: 0 when there
 * is none. */
static uint64_t unmap_next(ductile_allocator *a, const search *s, uint64_t most,
                           ductile_status *first) {
    dseg_idle idle;
    dti_lock_acquire(&a->index_lock);
    dpool_block *b = take_locked(a, s, most, &idle);
    dti_lock_release(&a->index_lock);
    if (b == NULL) {
        return 0;
    }
    dpool_arena *arena = b->region->arena;
    uint64_t n = b->size / a->granule;
    ductile_status status = unmap(a, b, idle);
    if (s->arena == NULL) { /* nor will any request use the addresses */
        dpool_regions_release_empty(a, arena);
    }
    *first = dti_first_error(*first, status);
    return n;
}

/* ---- To the cache --------------------------------------------------------------------------- */

ductile_status dpool_unmap_unused(ductile_allocator *a, dpool_unused which, uint64_t most) {
    const search unused = {.unused = which};
    ductile_status first = DUCTILE_OK;
    uint64_t now = 1;
    for (uint64_t n = 0; now > 0 && n < most && dpool_reserve_room(a, ROOM) == DUCTILE_OK;
         n += now) {
        now = unmap_next(a, &unused, most - n, &first);
    }
    return first;
}

/* ---- To the driver, by address -------------------------------------------------------------- */

/* One trim. It releases memory until at most `keep` bytes are held; the cache goes first, except
 * `spared` bytes of it. */
typedef struct goal {
    const dpool_private_pool *of; /* NULL: all pools */
    uint64_t keep;
    uint64_t spared;
    bool takes_host; /* the cache of the host's memory goes, too */
} goal;

/* The bytes that must still go. */
static uint64_t surplus(const ductile_allocator *a, const goal *g) {
    uint64_t now = g->of == NULL ? held(a) : dpool_mapped_of(a, g->of);
    return now > g->keep ? now - g->keep : 0;
}

/* What has left a pool is in the cache, and no longer part of the surplus. */
static ductile_status release_surplus(ductile_allocator *a, const goal *g) {
    uint64_t cached = a->store.totals.cached_bytes;
    uint64_t most = cached > g->spared ? cached - g->spared : 0;
    most = g->of == NULL ? dti_min(most, surplus(a, g)) : most;
    return dvmm_store_shrink_cache(&a->store, cached - most);
}

/* Proven free blocks of an arena, top addresses first. Owner: one walk. */
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

static ductile_status give_back_candidate(ductile_allocator *a, dpool_arena *arena, const goal *g,
                                          const candidate *c) {
    const search one = {.arena = arena, .candidate = c};
    ductile_status first = DUCTILE_OK;
    uint64_t now = 1;
    while (now > 0 && surplus(a, g) > 0) {
        ductile_status status = dpool_reserve_room(a, ROOM);
        if (status != DUCTILE_OK) {
            return dti_first_error(first, status);
        }
        uint64_t most = dti_round_up(surplus(a, g), a->granule) / a->granule;
        now = unmap_next(a, &one, dti_min(most, GRANULES_PER_HOLD), &first);
        first = now > 0 ? dti_first_error(first, release_surplus(a, g)) : first;
    }
    return first;
}

static ductile_status give_back_arena(ductile_allocator *a, dpool_arena *arena, const goal *g) {
    candidates c = {NULL, 0, 0};
    ductile_status first = find_candidates(a, arena, &c);
    for (size_t i = 0; i < c.n; i++) {
        first = dti_first_error(first, give_back_candidate(a, arena, g, &c.all[i]));
    }
    free(c.all);
    return first;
}

static ductile_status give_back_proven(ductile_allocator *a, const goal *g) {
    ductile_status first = release_surplus(a, g);
    for (dpool_arena *arena = a->arenas; arena != NULL && surplus(a, g) > 0; arena = arena->next) {
        if (dpool_is_in(g->of, arena)) {
            first = dti_first_error(first, give_back_arena(a, arena, g));
        }
    }
    return first;
}

/* ---- Trimming ------------------------------------------------------------------------------ */

static bool has_freed_spilled_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_use *u = arena->pending.list.first;
    while (u != NULL && !u->block->region->is_spilled) {
        u = u->pending_next;
    }
    const dpool_block *b = arena->blocks.leaving.first;
    while (b != NULL && !b->region->is_spilled) {
        b = b->list_next;
    }
    return (u != NULL || b != NULL) && dpool_lets_go(arena);
}

/* Memory of the host that was freed, and is not proven: no part of the surplus. */
static bool awaits_host(ductile_allocator *a) {
    bool is = false;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL && !is; arena = arena->next) {
        is = has_freed_spilled_locked(a, arena);
    }
    dti_lock_release(&a->index_lock);
    return is;
}

/* Releases what can go back without a wait. */
static ductile_status give_back_now(ductile_allocator *a, const goal *g, bool *enough) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dpool_imports_poll(a);
    dpool_poll_all(a, UINT32_MAX);
    status = dti_first_error(status, dpool_unmap_unused(a, DPOOL_UNUSED_LEAVING, UINT64_MAX));
    status = dti_first_error(status, give_back_proven(a, g));
    dpool_drop_empty(a, true);
    if (g->takes_host) {
        status = dti_first_error(status, dvmm_store_shrink_host(&a->store, 0));
    }
    *enough = surplus(a, g) == 0 && !(g->takes_host && awaits_host(a));
    dpool_grow_unlock(a, mode);
    return status;
}

static ductile_status wait_and_give_back(ductile_allocator *a, const goal *g, bool *enough) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver); /* the waits would break captures */
    (void)dpool_finish_copies(a, g->of);
    dpool_quiesce_free(a, g->of);
    dvmm_capture_restore(a->driver, mode);
    return give_back_now(a, g, enough);
}

/* A pool that is given up may have woken by the first wait, so that only another one proves what it
 * had of the host. */
static ductile_status give_back_waiting(ductile_allocator *a, const goal *g) {
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY;
    }
    bool enough = false;
    ductile_status status = give_back_now(a, g, &enough);
    if (!enough && status == DUCTILE_OK) {
        status = wait_and_give_back(a, g, &enough);
    }
    if (!enough && status == DUCTILE_OK && g->takes_host && awaits_host(a)) {
        status = wait_and_give_back(a, g, &enough);
    }
    return status;
}

/* A query or a wait on a lost device tells only that nothing is known. */
static ductile_status or_what_is_wrong(const ductile_allocator *a, ductile_status status) {
    return dti_first_error(status, dvmm_usable(a->driver));
}

ductile_status dpool_trim(ductile_allocator *a, uint64_t keep) {
    const goal all = {.keep = keep, .takes_host = true};
    return or_what_is_wrong(a, give_back_waiting(a, &all));
}

/* The totals that others read, as of now. */
static uint64_t mapped_now(ductile_allocator *a) {
    dti_lock_acquire(&a->index_lock);
    uint64_t mapped = a->counts.mapped;
    dti_lock_release(&a->index_lock);
    return mapped;
}

ductile_status dpool_trim_pool(ductile_allocator *a, const dpool_private_pool *pool,
                               uint64_t keep) {
    const goal one = {.of = pool, .keep = keep, .spared = dvmm_store_read(&a->store).cached_bytes};
    return or_what_is_wrong(a, give_back_waiting(a, &one));
}

bool dpool_give_back(ductile_allocator *a, uint64_t bytes, bool may_wait) {
    uint64_t mapped_before = mapped_now(a);
    dvmm_store_totals before = dvmm_store_read(&a->store);
    uint64_t held_before = before.held_bytes - before.lost_bytes;
    const goal g = {.keep = held_before > bytes ? held_before - bytes : 0,
                    .spared = before.cached_bytes};
    bool enough = false;
    (void)(may_wait ? give_back_waiting(a, &g) : give_back_now(a, &g, &enough));
    return mapped_now(a) < mapped_before;
}
