/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/dedicated.h"

#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"
#include "pool/streams/quiesce.h"

#include "segments/grow.h"

/* ---- Memory for a new one ------------------------------------------------------------------ */

static void publish_locked(ductile_allocator *a, dpool_block *b, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_count_mapped_locked(a, b->region->arena, (int64_t)b->size);
    dpool_count_span_locked(a, b->region);
    dpool_make_live_locked(a, b, requested);
}

static void cancel_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_untouched = dseg_is_untouched(b->region->seg);
    dpool_unmapped_to_gap_locked(a, b, is_untouched ? DUCTILE_OK : DUCTILE_ERR_DRIVER);
}

ductile_status dpool_dedicated_fill(ductile_allocator *a, dpool_region *region, uint64_t max_held,
                                    uint64_t requested, dpool_block **out) {
    dpool_arena *arena = region->arena;
    dpool_block *b = region->first;
    dti_lock_acquire(&a->index_lock);
    dpool_make_busy_locked(a, b);
    dti_lock_release(&a->index_lock);
    ductile_status status = dseg_fill_with_one(region->seg, max_held);
    if (status == DUCTILE_OK) {
        dpool_announce_mapped(a, b);
    }
    dti_lock_acquire(&a->index_lock);
    if (status == DUCTILE_OK) {
        publish_locked(a, b, requested);
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
