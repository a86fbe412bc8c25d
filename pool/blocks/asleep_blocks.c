/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/asleep_blocks.h"

#include "pool/blocks/age.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/transitions.h"

#include "segments/granules.h"

/* ---- Freed blocks -------------------------------------------------------------------------- */

/* Granules that can go: nothing is mapped at them, and no graph may own them. */
static bool can_drop(const dpool_region *region, uint32_t granule) {
    const dpool_private_pool *pool = region->arena->pool;
    bool keeps = pool->kind == DUCTILE_POOL_CAPTURE && dpool_is_held(pool);
    dseg_state state = dseg_state_at(region->seg, granule);
    return state == DSEG_QUARANTINED || (state == DSEG_EMPTY && !keeps);
}

/* The first run of granules in the span that can go, all in one state; empty for none. */
static dseg_span find_run(const dpool_region *region, dseg_span s) {
    while (!dseg_is_empty(s) && !can_drop(region, s.first)) {
        s.first++;
    }
    s.end = dseg_state_until(region->seg, s);
    return s;
}

static bool drop_run_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = b->region->seg;
    dseg_span run = find_run(b->region, dseg_granules_in(seg, b->addr, dpool_end(b)));
    if (a->nodes.n_spare < 2 || dseg_is_empty(run)) {
        return false;
    }
    bool is_lost = dseg_state_at(seg, run.first) == DSEG_QUARANTINED;
    b = dpool_carve_free_locked(a, b, dseg_addr(seg, run.first), dseg_addr(seg, run.end));
    if (is_lost) {
        b->state = DPOOL_QUARANTINED;
    } else {
        (void)dpool_make_gap_locked(a, b);
    }
    return true;
}

/* Dropping granules may unite gaps, so the walk starts over after each. */
bool dpool_drop_any_granules_locked(ductile_allocator *a, dpool_region *region) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_block *b = region->first; b != NULL; b = b->next) {
        if (b->state == DPOOL_FREE && drop_run_locked(a, b)) {
            return true;
        }
    }
    return false;
}

dpool_use *dpool_free_asleep_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_use *uses = b->uses;
    dpool_leave_asleep_locked(a, b);
    dpool_make_young_locked(a, b);
    b = dpool_make_free_locked(a, b);
    if (dpool_is_asleep(b->region->arena->pool)) {
        (void)drop_run_locked(a, b);
    }
    return uses;
}

/* ---- Free memory that is none --------------------------------------------------------------- */

/* Once a pool is asleep, its FREE blocks get no memory. */
static bool has_kept_some(const dpool_arena *arena) {
    return dpool_is_asleep(arena->pool) && arena->blocks.mapped_bytes > 0;
}

bool dpool_has_no_memory_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_unbacked = dpool_is_unbacked(b->region->arena->pool);
    if (!is_unbacked || !has_kept_some(b->region->arena)) {
        return is_unbacked;
    }
    const dseg_segment *seg = b->region->seg;
    return !dseg_has_state(seg, dseg_granules_over(seg, b->addr, dpool_end(b)), DSEG_MAPPED);
}

uint64_t dpool_count_without_memory_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_unbacked = dpool_is_unbacked(arena->pool);
    if (!is_unbacked || !has_kept_some(arena)) {
        return is_unbacked ? dpool_count_free(arena) : 0;
    }
    uint64_t n = 0;
    for (const dpool_region *r = arena->blocks.regions; r != NULL; r = r->next) {
        for (const dpool_block *b = r->first; b != NULL; b = b->next) {
            n += b->state == DPOOL_FREE && dpool_has_no_memory_locked(a, b);
        }
    }
    return n;
}
