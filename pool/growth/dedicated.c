/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/dedicated.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/region.h"
#include "pool/blocks/transitions.h"
#include "pool/growth/announce.h"
#include "pool/streams/progress.h"
#include "pool/streams/quiesce.h"

#include "segments/grow.h"

/* ---- Memory for a new one ------------------------------------------------------------------ */

/* It is an allocation call of the arena like any other: what was closed before can be proven. */
static void mark_closed(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_acquire(&a->index_lock);
    arena->alloc_epoch++;
    bool has_closed = arena->closed.count > 0 && !dpool_is_frozen(arena);
    dti_lock_release(&a->index_lock);
    if (has_closed) {
        (void)dpool_mark(a, arena, NULL);
    }
}

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
    mark_closed(a, arena);
    dti_lock_acquire(&a->index_lock);
    dpool_make_busy_locked(a, b);
    dti_lock_release(&a->index_lock);
    ductile_status status = dseg_fill_with_one(region->seg, max_held);
    if (status == DUCTILE_OK && dpool_announces(a)) {
        dpool_announce_block(a, DUCTILE_MAP_MAPPED, b);
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

/* ---- Closed ones --------------------------------------------------------------------------- */

static dpool_block *find_in_locked(const ductile_allocator *a, const dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *b = arena->closed.first;
    while (b != NULL && !(dpool_is_proven_locked(a, b) && dseg_can_go(b->region->seg, 0))) {
        b = b->list_next;
    }
    return b;
}

/* From the first arena on each time: the list may change while map callbacks run. */
static dpool_block *take_next(ductile_allocator *a, dseg_idle *idle) {
    dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    for (const dpool_arena *at = a->arenas; at != NULL && b == NULL; at = at->next) {
        b = find_in_locked(a, at);
    }
    if (b != NULL) {
        *idle = b->region->arena->proven_by;
        dpool_make_busy_locked(a, b);
    }
    dti_lock_release(&a->index_lock);
    return b;
}

static void poll_marks(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dti_lock_acquire(&a->index_lock);
        bool has_closed = arena->closed.count > 0;
        dti_lock_release(&a->index_lock);
        if (has_closed) {
            dpool_poll_marks(a, arena);
        }
    }
}

ductile_status dpool_dedicated_reclaim(ductile_allocator *a) {
    ductile_status first = DUCTILE_OK;
    dpool_block *b;
    dseg_idle idle;
    poll_marks(a);
    while ((b = take_next(a, &idle)) != NULL) {
        dpool_arena *arena = b->region->arena;
        if (dpool_announces(a)) {
            dpool_announce_block(a, DUCTILE_MAP_LEAVING, b);
        }
        ductile_status status = dpool_unmap_block(a, b, idle);
        dpool_regions_release_empty(a, arena);
        first = first == DUCTILE_OK ? status : first;
    }
    return first;
}
