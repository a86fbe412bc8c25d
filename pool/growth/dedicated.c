/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/dedicated.h"

#include "pool/blocks/region.h"
#include "pool/blocks/room.h"
#include "pool/blocks/size_class.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"

#include "segments/grow.h"

/* ---- Memory for a new one ------------------------------------------------------------------ */

ductile_status dpool_dedicated_add(ductile_allocator *a, dpool_arena *arena, uint64_t bytes) {
    uint64_t guard = a->options.find == DUCTILE_FIND_OVERRUNS ? a->granule : 0;
    return dpool_region_add_exact(a, arena, bytes, guard);
}

/* The region is for its block alone from now on, and there is a spare node for a pad. Hits of other
 * threads may take nodes that were reserved. ERR_OUT_OF_HOST_MEMORY. */
static ductile_status begin(ductile_allocator *a, dpool_region *region, dpool_block **node) {
    *node = NULL;
    ductile_status status = DUCTILE_OK;
    while (*node == NULL && status == DUCTILE_OK) {
        status = dpool_reserve_room(a, 1);
        dti_lock_acquire(&a->index_lock);
        if (status == DUCTILE_OK && a->nodes.n_spare > 0) {
            *node = dpool_node_take(&a->nodes);
            dpool_close_region_locked(a, region);
        }
        dti_lock_release(&a->index_lock);
    }
    return status;
}

/* Under a guard the block ends where the region does, and leaves a pad before it. */
static dpool_block *cut_pad_locked(ductile_allocator *a, dpool_block *b, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t size = a->options.find == DUCTILE_FIND_OVERRUNS ? dpool_round(requested) : b->size;
    if (size == b->size) {
        return b;
    }
    dpool_block *body = dpool_split(&a->nodes, b, b->size - size);
    b->state = DPOOL_FREE;
    b->region->arena->blocks.n_pads++;
    return body;
}

static dpool_block *publish_locked(ductile_allocator *a, dpool_block *b, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_count_mapped_locked(a, b->region->arena, (int64_t)b->size);
    dpool_count_span_locked(a, b->region);
    b = cut_pad_locked(a, b, requested);
    dpool_make_live_locked(a, b, requested);
    return b;
}

static void cancel_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_untouched = dseg_is_untouched(b->region->seg);
    dpool_unmapped_to_gap_locked(a, b, is_untouched ? DUCTILE_OK : DUCTILE_ERR_DRIVER);
}

ductile_status dpool_closed_fill(ductile_allocator *a, dpool_region *region, dpool_fill_fn fill,
                                 void *how, uint64_t requested, dpool_block **out) {
    *out = NULL;
    dpool_arena *arena = region->arena;
    dpool_block *b = region->first;
    dpool_block *node = NULL;
    ductile_status status = begin(a, region, &node);
    if (status != DUCTILE_OK) {
        dpool_regions_release_empty(a, arena);
        return status;
    }
    status = fill(region->seg, how);
    if (status == DUCTILE_OK) {
        dpool_announce_block(a, DUCTILE_MAP_MAPPED, b);
    }
    dti_lock_acquire(&a->index_lock);
    dpool_node_give(&a->nodes, node);
    if (status == DUCTILE_OK) {
        b = publish_locked(a, b, requested);
    } else {
        cancel_locked(a, b);
    }
    dti_lock_release(&a->index_lock);
    *out = status == DUCTILE_OK ? b : NULL;
    if (status != DUCTILE_OK) {
        dpool_regions_release_empty(a, arena);
    }
    return status;
}

static ductile_status fill_with_one(dseg_segment *seg, void *max_held) {
    return dseg_fill_with_one(seg, *(const uint64_t *)max_held);
}

ductile_status dpool_dedicated_fill(ductile_allocator *a, dpool_region *region, uint64_t max_held,
                                    uint64_t requested, dpool_block **out) {
    return dpool_closed_fill(a, region, fill_with_one, &max_held, requested, out);
}
