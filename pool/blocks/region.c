/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/region.h"

#include "pool/base/map_callbacks.h"
#include "pool/blocks/room.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/array.h"

#include <stdlib.h>

static uint64_t wished_range(const ductile_allocator *a) {
    return dti_round_up(a->device_bytes / 8 * 9, a->granule);
}

static void link_region_locked(ductile_allocator *a, dpool_arena *arena, dpool_region *region) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_block *gap = dpool_node_take(&a->nodes);
    *gap = (dpool_block){.addr = region->seg->range.addr,
                         .size = region->seg->n_granules * a->granule,
                         .region = region};
    region->first = gap;
    region->next = arena->blocks.regions;
    arena->blocks.regions = region;
    arena->blocks.n_regions++;
    (void)dpool_make_gap_locked(a, gap);
    dseg_set_insert(&a->segments, region->seg);
    a->counts.segments++;
    a->counts.address_bytes += dvmm_range_reserved(&region->seg->range);
    a->counts.table_host_bytes += sizeof *region;
}

/* Hits of other threads may take the node that was reserved for the first gap of the region. */
static ductile_status link_region(ductile_allocator *a, dpool_arena *arena, dpool_region *region) {
    bool linked = false;
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && !linked) {
        status = dpool_reserve_room(a, 1);
        if (status != DUCTILE_OK) {
            break;
        }
        dti_lock_acquire(&a->index_lock);
        status = dseg_set_reserve(&a->segments);
        linked = status == DUCTILE_OK && a->nodes.n_spare > 0;
        if (linked) {
            link_region_locked(a, arena, region);
        }
        dti_lock_release(&a->index_lock);
    }
    return status;
}

static ductile_status add(ductile_allocator *a, dpool_arena *arena, uint64_t need, uint64_t wish,
                          uint64_t guard) {
    dpool_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status =
        dseg_create(&a->store, need, wish, guard, a->options.address_budget_bytes, &region->seg);
    if (status != DUCTILE_OK) {
        free(region);
        return status;
    }
    region->arena = arena;
    region->seg->owner = region;
    region->ages = dti_table_new(region->seg->n_granules, sizeof *region->ages);
    status = region->ages != NULL ? link_region(a, arena, region) : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    if (status != DUCTILE_OK) {
        (void)dpool_region_destroy(region);
    }
    return status;
}

ductile_status dpool_region_add(ductile_allocator *a, dpool_arena *arena, uint64_t need_bytes) {
    uint64_t need = dti_round_up(need_bytes, a->granule);
    return add(a, arena, need, dti_max(need, wished_range(a)), 0);
}

ductile_status dpool_region_add_exact(ductile_allocator *a, dpool_arena *arena, uint64_t bytes,
                                      uint64_t guard_bytes) {
    uint64_t whole = dti_round_up(bytes, a->granule);
    return add(a, arena, whole, whole, guard_bytes);
}

ductile_status dpool_region_destroy(dpool_region *region) {
    dti_table_free(region->ages, region->seg->n_granules, sizeof *region->ages);
    ductile_status status = dseg_destroy(region->seg);
    free(region);
    return status;
}

static bool region_is_empty(const dpool_region *region) {
    const dpool_block *b = region->first;
    bool is_open = region->arena->range != NULL; /* its addresses are the program's */
    return !is_open && b->state == DPOOL_GAP && b->next == NULL && dseg_is_untouched(region->seg);
}

static dpool_region *unlink_empty_region_locked(ductile_allocator *a, dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (dpool_region **link = &arena->blocks.regions; *link != NULL; link = &(*link)->next) {
        dpool_region *region = *link;
        if (!region_is_empty(region)) {
            continue;
        }
        *link = region->next;
        arena->blocks.n_regions--;
        dpool_make_busy_locked(a, region->first); /* out of the list of gaps, if it is there */
        dpool_node_give(&a->nodes, region->first);
        dseg_set_remove(&a->segments, region->seg);
        a->counts.segments--;
        a->counts.span -= region->span_bytes;
        a->counts.address_bytes -= dvmm_range_reserved(&region->seg->range);
        a->counts.table_host_bytes -= sizeof *region;
        return region;
    }
    return NULL;
}

void dpool_regions_release_empty(ductile_allocator *a, dpool_arena *arena) {
    for (;;) {
        dti_lock_acquire(&a->index_lock);
        dpool_region *region = unlink_empty_region_locked(a, arena);
        dti_lock_release(&a->index_lock);
        if (region == NULL) {
            return;
        }
        (void)dpool_region_destroy(region);
    }
}

dpool_region *dpool_next_region(const ductile_allocator *a, const dpool_private_pool *of,
                                const dpool_region *before) {
    const dpool_arena *arena = before == NULL ? a->arenas : before->arena->next;
    dpool_region *region = before == NULL ? NULL : before->next;
    for (; region == NULL && arena != NULL; arena = arena->next) {
        region = dpool_is_in(of, arena) ? arena->blocks.regions : NULL;
    }
    return region;
}

dpool_block *dpool_next_block(const ductile_allocator *a, const dpool_private_pool *of,
                              const dpool_block *before) {
    if (before != NULL && before->next != NULL) {
        return before->next;
    }
    const dpool_region *region = dpool_next_region(a, of, before != NULL ? before->region : NULL);
    return region != NULL ? region->first : NULL;
}

dpool_block *dpool_block_at_locked(const ductile_allocator *a, ductile_addr addr) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = dseg_set_find(&a->segments, addr);
    dpool_block *b = seg != NULL ? ((const dpool_region *)seg->owner)->first : NULL;
    while (b != NULL && dpool_end(b) <= addr) {
        b = b->next;
    }
    return b;
}

static bool is_of_host(const dseg_segment *seg, uint32_t granule) {
    return dseg_state_at(seg, granule) == DSEG_MAPPED && dseg_handle_at(seg, granule)->is_host;
}

dseg_span dpool_host_granules(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    dseg_span s = dseg_granules_over(seg, b->addr, dpool_end(b));
    s.first = b->region->is_spilled ? s.first : s.end;
    while (!dseg_is_empty(s) && !is_of_host(seg, s.first)) {
        s.first++;
    }
    return s;
}

uint64_t dpool_device_bytes(const dpool_block *b) {
    const dseg_segment *seg = b->region->seg;
    dseg_span host = dpool_host_granules(b);
    return dseg_is_empty(host) ? b->size : dseg_addr(seg, host.first) - b->addr;
}

uint64_t dpool_mapped_of(const ductile_allocator *a, const dpool_private_pool *pool) {
    uint64_t mapped = 0;
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        mapped += arena->pool == pool ? arena->blocks.mapped_bytes : 0;
    }
    return mapped;
}

__attribute__((noinline)) ductile_status dpool_explain_miss_locked(const ductile_allocator *a,
                                                                   ductile_addr addr) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_block *b = dpool_block_at_locked(a, addr);
    if (b == NULL) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    return dpool_is_in_use(b) ? DUCTILE_ERR_INTERIOR_POINTER : DUCTILE_ERR_NOT_LIVE;
}

void dpool_count_span_locked(ductile_allocator *a, dpool_region *region) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t span = dseg_span_bytes(region->seg);
    a->counts.span += span - region->span_bytes;
    region->span_bytes = span;
    a->counts.span_peak = dti_max(a->counts.span_peak, a->counts.span);
}

void dpool_count_mapped_locked(ductile_allocator *a, dpool_arena *arena, int64_t change) {
    DTI_ASSERT_HELD(&a->index_lock);
    arena->blocks.mapped_bytes += (uint64_t)change;
    a->counts.mapped += (uint64_t)change;
}

void dpool_unmapped_to_gap_locked(ductile_allocator *a, dpool_block *b, ductile_status status) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_region *region = b->region; /* the block may become part of another */
    if (status == DUCTILE_OK) {
        (void)dpool_make_gap_locked(a, b);
    } else {
        b->state = DPOOL_QUARANTINED;
    }
    dpool_count_span_locked(a, region);
}

void dpool_mapped_to_gap_locked(ductile_allocator *a, dpool_block *b, ductile_status status) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_wait_forget_done_locked(a, b->addr, dpool_end(b));
    dpool_count_mapped_locked(a, b->region->arena, -(int64_t)b->size);
    dpool_unmapped_to_gap_locked(a, b, status);
}

/* ---- Announcing ----------------------------------------------------------------------------- */

/* The arena and the pool exist as long as they have memory. */
ductile_map_event dpool_map_event_at(const ductile_allocator *a, ductile_map_change change,
                                     const dpool_region *region, uint32_t first) {
    const dseg_segment *seg = region->seg;
    const dvmm_handle *h = dseg_handle_at(seg, first);
    ductile_map_event event = dpool_new_map_event(a, change);
    event.address = dseg_addr(seg, first);
    event.size = dvmm_handle_bytes(&a->store, h);
    event.handle = h->phys;
    event.stream = region->arena->stream;
    event.pool = region->arena->pool->id;
    event.tag = region->arena->pool->tag;
    return event;
}

void dpool_notify_granules(ductile_allocator *a, ductile_map_change change,
                           const dpool_region *region, uint32_t first, uint32_t n) {
    const dseg_segment *seg = region->seg;
    for (uint32_t g = first; g < first + n; g += dseg_handle_at(seg, g)->n_granules) {
        const ductile_map_event event = dpool_map_event_at(a, change, region, g);
        dpool_announce(a, &event);
    }
}
