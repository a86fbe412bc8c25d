/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/unused.h"

#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"
#include "pool/growth/sizes.h"
#include "pool/streams/quiesce.h"

#include "segments/granules.h"

enum { NODES = 16 }; /* two are needed; hits of other threads take some too */

/* ---- What is unused ------------------------------------------------------------------------- */

static bool is_gone(const dpool_arena *arena) {
    return arena->is_gone || (arena->pool != NULL && !dpool_is_held(arena->pool));
}

static bool is_unused(const dpool_arena *arena, dpool_unused which) {
    bool is_in_use = arena->live_bytes > 0 || arena->pending_bytes > 0 || dpool_is_frozen(arena) ||
                     dpool_is_unbacked(arena);
    return !is_in_use &&
           (which == DPOOL_UNUSED_IDLE || (which == DPOOL_UNUSED_GONE && is_gone(arena)));
}

static dpool_block *find_closed_locked(ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = arena->closed.first;
    while (b != NULL && !(dpool_is_proven_locked(a, b) && dseg_can_go(b->region->seg, 0))) {
        b = b->list_next;
    }
    if (b != NULL) {
        dpool_make_busy_locked(a, b);
    }
    return b;
}

/* Whole handles of at least that many granules at the top of a FREE block that are proven and can
 * go, BUSY. */
static dpool_block *find_free_locked(ductile_allocator *a, const dpool_arena *arena, uint64_t most,
                                     uint32_t least) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_block *b = dpool_index_below(&arena->index, NULL);
         b != NULL && b->size >= a->granule; b = dpool_index_below(&arena->index, b)) {
        const dseg_segment *seg = b->region->seg;
        dseg_span run =
            dseg_topmost_run(seg, dseg_granules_in(seg, b->addr, dpool_end(b)), most, least);
        if (dpool_is_proven_locked(a, b) && !dseg_is_empty(run)) {
            return dpool_carve_free_locked(a, b, dseg_addr(seg, run.first),
                                           dseg_addr(seg, run.end));
        }
    }
    return NULL;
}

/* From the first arena on each time: the list may change while map callbacks run. */
static dpool_block *take_next(ductile_allocator *a, dpool_unused which, uint64_t most,
                              dseg_idle *idle) {
    dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    bool has_nodes = a->nodes.n_spare >= 2;
    for (const dpool_arena *at = a->arenas; at != NULL && b == NULL; at = at->next) {
        b = find_closed_locked(a, at);
        b = b == NULL && has_nodes && is_unused(at, which) ? find_free_locked(a, at, most, 1) : b;
    }
    if (b != NULL) {
        *idle = dpool_proof_to_return(a, b->region->arena).idle;
    }
    dti_lock_release(&a->index_lock);
    return b;
}

/* ---- Unmapping ------------------------------------------------------------------------------ */

ductile_status dpool_unused_reclaim(ductile_allocator *a, dpool_unused which, uint64_t most) {
    ductile_status first = DUCTILE_OK;
    uint64_t n = 0;
    dpool_block *b;
    dseg_idle idle;
    while (n < most && dpool_reserve_room(a, NODES) == DUCTILE_OK &&
           (b = take_next(a, which, most - n, &idle)) != NULL) {
        dpool_arena *arena = b->region->arena;
        n += b->size / a->granule;
        ductile_status status = dpool_unmap_announced(a, b, idle);
        dpool_regions_release_empty(a, arena);
        first = first == DUCTILE_OK ? status : first;
    }
    return first;
}

/* The largest free blocks first, from the top. */
static dpool_block *take_oversized(ductile_allocator *a, const dpool_arena *arena, uint64_t most,
                                   dseg_idle *idle) {
    dti_lock_acquire(&a->index_lock);
    dpool_block *b = NULL;
    if (a->nodes.n_spare >= 2 && !dpool_is_frozen(arena) && !dpool_is_unbacked(arena)) {
        b = find_free_locked(a, arena, most, dpool_handle_granules(a) + 1);
        *idle = dpool_proof_to_return(a, arena).idle;
    }
    dti_lock_release(&a->index_lock);
    return b;
}

uint64_t dpool_unused_shrink(ductile_allocator *a, dpool_arena *arena, uint64_t most) {
    uint64_t n = 0;
    dpool_block *b;
    dseg_idle idle;
    while (n < most && dpool_reserve_room(a, NODES) == DUCTILE_OK &&
           (b = take_oversized(a, arena, most - n, &idle)) != NULL) {
        uint64_t cached = a->store.totals.cached_bytes;
        n += b->size / a->granule;
        if (dpool_unmap_announced(a, b, idle) != DUCTILE_OK ||
            dvmm_store_shrink_cache(&a->store, cached) != DUCTILE_OK) {
            break;
        }
    }
    return n;
}

void dpool_unused_drop(ductile_allocator *a, bool all) {
    for (dpool_arena *arena = a->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        if (all || arena->mapped_bytes == 0) { /* changed under the grow lock too */
            dpool_regions_release_empty(a, arena);
            dpool_arena_drop_if_empty(a, arena);
        }
    }
}
