/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/drop_empty.h"

#include "pool/blocks/asleep_blocks.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/growth/asleep_memory.h"

#include "segments/granules.h"

enum { ROOM = 64 }; /* two nodes are needed; hits of other threads take some too */

/* ---- Pools that sleep ---------------------------------------------------------------------- */

/* Where no graph can own it any more, what was freed in a sleeping pool needs no memory. */
static bool has_freed_asleep_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *pool = arena->pool;
    return dpool_is_asleep(pool) && dpool_is_released(pool) && dpool_count_free(arena) > 0;
}

static bool drop_asleep_locked(ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_done = !has_freed_asleep_locked(a, arena);
    for (dpool_region *r = is_done ? NULL : arena->blocks.regions; r != NULL; r = r->next) {
        if (dpool_drop_any_granules_locked(a, r)) {
            return true;
        }
    }
    return false;
}

static void unmap_again(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool is_at_rest = dpool_is_at_rest(arena->pool);
    dti_lock_release(&a->index_lock);
    for (dpool_region *r = is_at_rest ? arena->blocks.regions : NULL; r != NULL; r = r->next) {
        dpool_unmap_again(a, r);
    }
}

/* What has stayed mapped because it was pinned is all that is left of the pool. */
static bool is_all_that_is_left_locked(const ductile_allocator *a, const dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_all = dpool_is_at_rest(pool) && dpool_is_released(pool);
    for (const dpool_block *b = dpool_next_block(a, pool, NULL); is_all && b != NULL;
         b = dpool_next_block(a, pool, b)) {
        const dseg_segment *seg = b->region->seg;
        bool has_stayed = dseg_has_stayed(seg, dseg_granules_in(seg, b->addr, dpool_end(b)));
        is_all = b->state != DPOOL_ASLEEP && (b->state != DPOOL_FREE || has_stayed);
    }
    return is_all;
}

/* The proof of the sleep does not cover what was done with pinned memory since. So the pool runs
 * again, and its memory goes as that of others, once no pin holds it. */
static void wake_what_stayed(ductile_allocator *a, dpool_private_pool *pool) {
    dvmm_host_copy left = {.n_pieces = 0};
    dti_lock_acquire(&a->index_lock);
    if (is_all_that_is_left_locked(a, pool)) {
        left = pool->host_copy;
        pool->host_copy = (dvmm_host_copy){.n_pieces = 0};
        pool->retains = false;
        dpool_set_awake_locked(a, pool);
    }
    dti_lock_release(&a->index_lock);
    dvmm_host_copy_drop(&left);
}

static void drop_or_wake_asleep(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    bool has_freed = has_freed_asleep_locked(a, arena);
    dti_lock_release(&a->index_lock);
    bool is_more = has_freed;
    if (has_freed) {
        unmap_again(a, arena);
    }
    while (is_more && dpool_reserve_room(a, ROOM) == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        is_more = drop_asleep_locked(a, arena);
        dti_lock_release(&a->index_lock);
    }
    if (has_freed && !is_more) {
        wake_what_stayed(a, arena->pool);
    }
}

/* ---- Ranges and arenas --------------------------------------------------------------------- */

void dpool_drop_empty(ductile_allocator *a, bool all) {
    for (dpool_arena *arena = a->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        drop_or_wake_asleep(a, arena);
        if (all || arena->blocks.mapped_bytes == 0) { /* changed under the grow lock too */
            dpool_regions_release_empty(a, arena);
            dpool_arena_drop_if_empty(a, arena);
        }
    }
}
