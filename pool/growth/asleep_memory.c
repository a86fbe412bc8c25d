/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/asleep_memory.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/asleep_blocks.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"

#include "segments/granules.h"
#include "vmm/captures.h"

enum { GRANULES_PER_HOLD = 512 }; /* unmapped in one hold of the grow lock */

/* ---- Giving up free granules --------------------------------------------------------------- */

static void drop_free_granules_locked(ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        while (dpool_drop_any_granules_locked(a, r)) {
        }
    }
}

/* ---- Taking memory away -------------------------------------------------------------------- */

/* The lowest region of the pool that ends above the address. The list may change between two holds
 * of the grow lock, when empty ranges are given back. */
static dpool_region *region_above(const ductile_allocator *a, const dpool_private_pool *pool,
                                  ductile_addr addr) {
    dpool_region *lowest = NULL;
    for (dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
         r = dpool_next_region(a, pool, r)) {
        bool is_above = r->seg->range.addr + r->seg->range.size > addr;
        bool is_lower = lowest == NULL || r->seg->range.addr < lowest->seg->range.addr;
        lowest = is_above && is_lower ? r : lowest;
    }
    return lowest;
}

/* The granules of the region that end at or below the address. */
static uint32_t end_below(const dpool_region *region, ductile_addr until) {
    const dseg_segment *seg = region->seg;
    bool is_whole = until - seg->range.addr >= seg->range.size;
    return is_whole ? seg->n_granules : dseg_granule(seg, until);
}

static void count_unmapped(ductile_allocator *a, dpool_region *region, uint32_t n_granules) {
    dti_lock_acquire(&a->index_lock);
    dpool_count_mapped_locked(a, region->arena, -(int64_t)(n_granules * a->granule));
    dpool_count_span_locked(a, region);
    dti_lock_release(&a->index_lock);
}

/* Unmaps some of the region from *from on. False when nothing is left below `until`. */
static bool unmap_part(ductile_allocator *a, dpool_region *region, dseg_idle idle,
                       ductile_addr *from, ductile_addr until) {
    dseg_segment *seg = region->seg;
    uint32_t end = end_below(region, until);
    uint64_t cached = a->store.totals.cached_bytes; /* the cache keeps what it had */
    uint32_t at = *from > seg->range.addr ? dseg_granule(seg, *from) : 0;
    uint32_t before = at;
    uint32_t gone = dseg_unmap_for_sleep(seg, &at, end, GRANULES_PER_HOLD, idle);
    *from = dseg_addr(seg, at);
    (void)dvmm_store_shrink_cache(&a->store, cached);
    count_unmapped(a, region, gone);
    return at > before;
}

void dpool_unmap_again(ductile_allocator *a, dpool_region *region) {
    ductile_addr from = region->seg->range.addr;
    ductile_addr end = from + region->seg->range.size;
    while (from < end && unmap_part(a, region, region->arena->pool->idle, &from, end)) {
    }
}

/* False when nothing is left between *from and `until`. */
static bool unmap_next(ductile_allocator *a, const dpool_private_pool *pool, ductile_addr *from,
                       ductile_addr until) {
    dvmm_capture_mode mode = dpool_grow_lock(a);
    dpool_region *region = region_above(a, pool, *from);
    bool is_there = region != NULL && region->seg->range.addr < until &&
                    unmap_part(a, region, pool->idle, from, until);
    dpool_grow_unlock(a, mode);
    return is_there;
}

/* Memory of the host that stayed is its own copy; where it is listed, it is to be filled. */
static bool has_stayed(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    const dvmm_handle *first = dseg_handle_at(seg, dseg_granule(seg, b->addr));
    return (first == NULL || !first->is_host) &&
           dseg_has_stayed(seg, dseg_granules_over(seg, b->addr, dpool_end(b)));
}

/* Registered memory may be written during the sleep, so memory that stayed mapped is not copied
 * back. At the next sleep it may go, if it is no longer pinned. Nor is a copy whose end was never
 * seen: its memory was not unmapped. */
static void record_what_stays(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->grow_lock);
    for (uint64_t i = 0; i < pool->host_copy.n_pieces; i++) {
        dvmm_piece *piece = &pool->host_copy.pieces[i];
        dti_lock_acquire(&a->index_lock);
        const dpool_block *b = dpool_map_find(&a->map, piece->addr);
        piece->has_stayed = i >= pool->host_copy.n_saved ||
                            (b != NULL && b->region->arena->pool == pool && has_stayed(b));
        dti_lock_release(&a->index_lock);
    }
    dti_lock_release(&a->grow_lock);
}

/* Follows the copies out: what they have left behind is unmapped while they go on. */
void dpool_unmap_pool(ductile_allocator *a, dpool_private_pool *pool) {
    ductile_addr from = 0;
    ductile_addr until = 0;
    dpool_set_unbacked(a, pool, true);
    while (until != UINT64_MAX &&
           dvmm_host_copy_wait_next(&pool->host_copy, &until) == DUCTILE_OK) {
        while (unmap_next(a, pool, &from, until)) {
        }
    }
    record_what_stays(a, pool);
}

void dpool_finish_sleep(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    drop_free_granules_locked(a, pool);
    dpool_set_asleep_locked(a, pool);
    dti_lock_release(&a->index_lock);
}

/* ---- Copies whose end was not seen ----------------------------------------------------------- */

/* May copies be under way, and no call that follows them? */
static bool has_left_copies(const dpool_private_pool *pool) {
    return dpool_may_wake(pool) && !dpool_is_at_rest(pool);
}

/* The next pool of which copies may be under way, claimed as a wake would have it: frees leave
 * its granules alone. */
static dpool_private_pool *claim_next_locked(ductile_allocator *a, const dpool_private_pool *after,
                                             const dpool_private_pool *of) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = after != NULL ? after->next : a->pools;
    while (pool != NULL && (!has_left_copies(pool) || (of != NULL && pool != of))) {
        pool = pool->next;
    }
    if (pool != NULL) {
        dpool_claim_locked(a, pool, false);
    }
    return pool;
}

/* The next one is claimed before this one may go. */
static dpool_private_pool *leave_and_claim_next(ductile_allocator *a, dpool_private_pool *pool,
                                                const dpool_private_pool *of) {
    dpool_private_pool *gone = NULL;
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *next = claim_next_locked(a, pool, of);
    if (pool != NULL) {
        gone = dpool_leave_claimed_locked(a, pool);
    }
    dti_lock_release(&a->index_lock);
    dpool_free_pool(gone);
    return next;
}

bool dpool_finish_copies(ductile_allocator *a, const dpool_private_pool *of) {
    bool any = false;
    for (dpool_private_pool *pool = leave_and_claim_next(a, NULL, of); pool != NULL;
         pool = leave_and_claim_next(a, pool, of)) {
        dpool_unmap_pool(a, pool);
        any |= pool->host_copy.busy == NULL;
        dpool_finish_sleep(a, pool);
    }
    return any;
}
