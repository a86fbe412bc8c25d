/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that read statistics, one block, or all blocks. */
#include "pool/base/guards.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/asleep_blocks.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/region.h"
#include "pool/growth/sizes.h"
#include "pool/growth/spill.h"
#include "pool/sharing/import.h"
#include "pool/sharing/pin.h"

#include <stdlib.h>
#include <string.h>

/* ---- Statistics ---------------------------------------------------------------------------- */

static void sum_arenas_locked(const ductile_allocator *a, ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        uint64_t n_without = dpool_count_without_memory_locked(a, arena);
        s->free_blocks += dpool_count_free(arena) - n_without;
        s->gap_blocks += dpool_count_gaps(arena) + n_without;
    }
}

/* Memory that is neither live, pending, cached nor lost counts as free, also handles that a plan is
 * moving: the index lock keeps the blocks unchanged, and the totals are of one moment (P4). */
static void fill_memory_locked(ductile_allocator *a, ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    dvmm_store_totals t = dvmm_store_read(&a->store);
    s->reserved_bytes = t.held_bytes;
    s->reserved_peak_bytes = t.held_peak_bytes;
    s->free_bytes = t.held_bytes + t.spilled_bytes - t.cached_bytes - t.lost_bytes -
                    a->counts.allocated - a->counts.pending;
    s->cached_bytes = t.cached_bytes;
    s->quarantined_bytes = t.lost_bytes + t.spill_lost_bytes;
    s->handles = t.n_handles;
    s->created_total_bytes = t.created_bytes;
    s->pinned_bytes = t.pinned_bytes;
    s->exported_bytes = t.exported_bytes;
    s->host_bytes = t.host_bytes;
    s->spilled_bytes = t.spilled_bytes + t.spill_lost_bytes;
    s->spilled_peak_bytes = t.spilled_peak_bytes;
    s->spilled_live_bytes = dpool_spilled_live_locked(a, t.spilled_bytes);
    s->spill_locked_bytes = t.spill_bytes;
}

static void fill_counts_locked(const ductile_allocator *a, ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_counts *c = &a->counts;
    s->requested_bytes = c->requested;
    s->requested_peak_bytes = c->requested_peak;
    s->allocated_bytes = c->allocated;
    s->allocated_peak_bytes = dti_max(c->allocated_peak, c->past_allocated_peak);
    s->pending_bytes = c->pending;
    s->retiring_bytes = c->retiring;
    s->mapped_bytes = c->mapped + c->retiring;
    s->address_bytes = c->address_bytes;
    s->address_span_bytes = c->span;
    s->address_span_peak_bytes = c->span_peak;
    s->live_blocks = dpool_live_blocks_locked(a);
    s->asleep_bytes = c->asleep;
    s->asleep_blocks = c->asleep_blocks;
    s->pending_blocks = c->pending_blocks;
    s->segments = c->segments;
    s->arenas = c->arenas;
    s->allocs = c->allocs;
    s->frees = c->allocs - a->map.count;
    s->slow_allocs = c->slow_allocs;
    s->out_of_memory = c->out_of_memory;
    s->recycled_handles = c->recycled_handles;
    s->compacted_handles = c->compacted_handles;
    s->readdressed_handles = c->readdressed_handles;
    s->requested_total_bytes = c->requested_total;
    s->allocated_total_bytes = c->allocated_total;
    s->active_peak_bytes = dti_max(c->active_peak, c->past_active_peak);
    s->live_peak_blocks = c->live_peak;
    s->imported_bytes = c->imported;
    s->pressure_waits = c->pressure_waits;
    s->pressure_returns = c->pressure_returns;
    s->pressure_returned_total_bytes = c->pressure_returned;
    s->spills = c->spills;
    s->spilled_total_bytes = c->spilled_total;
    s->promoted_total_bytes = c->promoted_total;
    s->host_bytes += sizeof *a + a->nodes.host_bytes + c->use_host_bytes + c->table_host_bytes;
}

static void fill_driver(const ductile_allocator *a, ductile_stats *s) {
    dvmm_counters d;
    dvmm_get_counters(a->driver, &d);
    s->creates = dvmm_successes(&d, DVMM_CALL_phys_create);
    s->releases = dvmm_successes(&d, DVMM_CALL_phys_release);
    s->maps = dvmm_successes(&d, DVMM_CALL_map);
    s->unmaps = dvmm_successes(&d, DVMM_CALL_unmap);
    s->stream_syncs = dvmm_count_host_waits(&d);
    s->event_waits = dvmm_successes(&d, DVMM_CALL_stream_wait_event);
    s->event_records =
        dvmm_successes(&d, DVMM_CALL_event_record) + dvmm_successes(&d, DVMM_CALL_context_record);
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        s->driver_calls += d.calls[i];
    }
    s->driver_time_ns = d.driver_time_ns;
    s->driver_host_ns = d.host_time_ns;
}

/* ---- Of one pool --------------------------------------------------------------------------- */

static void add_block_locked(const ductile_allocator *a, const dpool_block *b, ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->asleep_blocks += b->state == DPOOL_ASLEEP;
    s->asleep_bytes += b->state == DPOOL_ASLEEP ? b->size : 0;
    s->live_blocks += b->state == DPOOL_LIVE;
    bool is_free = b->state == DPOOL_FREE;
    bool is_gap = is_free && dpool_has_no_memory_locked(a, b);
    s->free_blocks += is_free && !is_gap;
    s->pending_blocks += b->state == DPOOL_PENDING;
    s->gap_blocks += b->state == DPOOL_GAP || is_gap;
    s->requested_bytes += b->state == DPOOL_LIVE ? b->requested : 0;
    s->retiring_bytes += b->state == DPOOL_RETIRING ? b->size : 0;
}

static void add_region_locked(const ductile_allocator *a, const dpool_region *region,
                              ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->segments++;
    s->address_bytes += dvmm_range_reserved(&region->seg->range);
    s->address_span_bytes += region->span_bytes;
    for (const dpool_block *b = region->first; b != NULL; b = b->next) {
        add_block_locked(a, b, s);
    }
}

static void add_arena_locked(const ductile_allocator *a, const dpool_arena *arena,
                             ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    s->arenas++;
    s->allocated_bytes += arena->live.bytes;
    s->pending_bytes += arena->blocks.pending_bytes;
    s->reserved_bytes += arena->blocks.mapped_bytes;
    for (const dpool_region *region = arena->blocks.regions; region != NULL;
         region = region->next) {
        add_region_locked(a, region, s);
    }
}

static void fill_pool_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                             ductile_stats *s) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (const dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        if (arena->pool == pool) {
            add_arena_locked(a, arena, s);
        }
    }
    s->free_bytes = s->reserved_bytes - s->allocated_bytes - s->pending_bytes;
    s->mapped_bytes = s->reserved_bytes + s->retiring_bytes;
}

static ductile_status fill_pool(ductile_allocator *a, ductile_pool_id id, ductile_stats *s) {
    dti_lock_acquire(&a->index_lock);
    const dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool != NULL) {
        fill_pool_locked(a, pool, s);
    }
    dti_lock_release(&a->index_lock);
    return pool != NULL ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
}

/* ---- Of all -------------------------------------------------------------------------------- */

static ductile_status fill_all(ductile_allocator *a, ductile_stats *s) {
    dti_lock_acquire(&a->index_lock);
    fill_memory_locked(a, s);
    fill_counts_locked(a, s);
    sum_arenas_locked(a, s);
    dti_lock_release(&a->index_lock);
    fill_driver(a, s);
    return DUCTILE_OK;
}

ductile_status ductile_get_stats(ductile_allocator *a, const ductile_pool_id *id,
                                 ductile_stats *out) {
    DTI_TRY(dpool_may_fill(a, out, sizeof *out));
    ductile_stats s = {.struct_size = out->struct_size};
    ductile_status status = id != NULL ? fill_pool(a, *id, &s) : fill_all(a, &s);
    if (status == DUCTILE_OK) {
        memcpy(out, &s, s.struct_size);
    }
    return status;
}

void ductile_time_driver_calls(ductile_allocator *a) {
    if (dpool_may_read(a) == DUCTILE_OK) {
        dvmm_time_calls(a->driver);
    }
}

void ductile_reset_peaks(ductile_allocator *a) {
    if (dpool_may_read(a) != DUCTILE_OK) {
        return;
    }
    dti_lock_acquire(&a->index_lock);
    dpool_counts *c = &a->counts;
    dpool_note_in_use_locked(a);
    c->requested_peak = c->requested;
    c->allocated_peak = c->allocated;
    c->active_peak = c->allocated + c->pending;
    c->past_allocated_peak = c->past_active_peak = 0;
    c->live_peak = dpool_live_blocks_locked(a);
    dvmm_store_reset_peak(&a->store);
    c->span_peak = c->span;
    dti_lock_release(&a->index_lock);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

/* Free blocks without memory are no more than addresses. */
static ductile_block_state state_of_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_gap = b->state == DPOOL_FREE && dpool_has_no_memory_locked(a, b);
    return is_gap ? DUCTILE_BLOCK_GAP : (ductile_block_state)b->state;
}

static uint64_t free_bytes_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    return b != NULL && state_of_locked(a, b) == DUCTILE_BLOCK_FREE ? b->size : 0;
}

static uint32_t flags_of_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool is_elastic = b->region->arena->is_elastic;
    return dpool_pin_flags_locked(a, b) | (is_elastic ? (uint32_t)DUCTILE_BLOCK_ELASTIC : 0u);
}

static uint64_t spilled_locked(const ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool has_memory = dpool_has_request(b) || b->state == DPOOL_FREE;
    return has_memory ? dpool_host_bytes_locked(a, b) : 0;
}

/* All but info->struct_size. */
static void describe_locked(const ductile_allocator *a, const dpool_block *b,
                            ductile_block_info *info) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = b->region->seg;
    const dpool_private_pool *pool = b->region->arena->pool;
    size_t size = info->struct_size;
    *info = (ductile_block_info){
        .struct_size = size,
        .address = b->addr,
        .size = b->size,
        .requested_size = dpool_has_request(b) ? b->requested : 0,
        .state = state_of_locked(a, b),
        .stream = b->region->arena->stream,
        .segment = seg->range.addr,
        .segment_bytes = seg->range.size,
        .free_before_bytes = free_bytes_locked(a, b->prev),
        .free_after_bytes = free_bytes_locked(a, b->next),
        .pool = pool->id,
        .flags = flags_of_locked(a, b),
        .spilled_bytes = spilled_locked(a, b),
    };
}

ductile_status ductile_query_block(ductile_allocator *a, ductile_addr address,
                                   ductile_block_info *out) {
    DTI_TRY(dpool_may_fill(a, out, sizeof *out));
    ductile_block_info info = {.struct_size = out->struct_size};
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&a->index_lock);
    const dpool_block *b = dpool_map_find(&a->map, address);
    if (b != NULL) {
        describe_locked(a, b, &info);
    } else if (!dpool_import_describe_locked(a, address, &info)) {
        status = dpool_explain_miss_locked(a, address);
    }
    dti_lock_release(&a->index_lock);
    memcpy(out, &info, info.struct_size);
    return status;
}

static int visit_region_locked(const ductile_allocator *a, const dpool_region *region,
                               ductile_walk_fn visit, void *user) {
    DTI_ASSERT_HELD(&a->index_lock);
    int ended = 0;
    for (const dpool_block *b = region->first; b != NULL && ended == 0; b = b->next) {
        ductile_block_info info = {.struct_size = sizeof info};
        describe_locked(a, b, &info);
        ended = visit(user, &info);
    }
    return ended;
}

/* of: NULL for all memory, imports too. */
static void walk_locked(ductile_allocator *a, const dpool_private_pool *of, ductile_walk_fn visit,
                        void *user) {
    DTI_ASSERT_HELD(&a->index_lock);
    int ended = 0;
    for (uint32_t i = 0; i < a->segments.count && ended == 0; i++) {
        const dpool_region *region = a->segments.items[i]->owner;
        if (of == NULL || region->arena->pool == of) {
            ended = visit_region_locked(a, region, visit, user);
        }
    }
    if (of == NULL && ended == 0) {
        dpool_imports_walk_locked(a, visit, user);
    }
}

ductile_status ductile_walk(ductile_allocator *a, const ductile_pool_id *id, ductile_walk_fn visit,
                            void *user) {
    DTI_TRY(visit != NULL ? dpool_may_read(a) : DUCTILE_ERR_INVALID_ARGUMENT);
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&a->index_lock);
    const dpool_private_pool *of = id != NULL ? dpool_find_pool_locked(a, *id) : NULL;
    if (id == NULL || of != NULL) {
        walk_locked(a, of, visit, user);
    } else {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    dti_lock_release(&a->index_lock);
    return status;
}
