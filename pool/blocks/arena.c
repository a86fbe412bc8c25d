/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/arena.h"

#include "pool/growth/compact.h"
#include "pool/pools/pools.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <stdlib.h>

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. The latter is another stream in each thread. */
#define LEGACY_STREAM ((uintptr_t)1)
#define PER_THREAD_STREAM ((uintptr_t)2)

/* ---- Lists --------------------------------------------------------------------------------- */

void dpool_list_append(dpool_list *list, dpool_block *b) {
    b->list_prev = list->last;
    b->list_next = NULL;
    if (list->last != NULL) {
        list->last->list_next = b;
    } else {
        list->first = b;
    }
    list->last = b;
    list->count++;
}

void dpool_list_remove(dpool_list *list, dpool_block *b) {
    if (b->list_prev != NULL) {
        b->list_prev->list_next = b->list_next;
    } else {
        list->first = b->list_next;
    }
    if (b->list_next != NULL) {
        b->list_next->list_prev = b->list_prev;
    } else {
        list->last = b->list_prev;
    }
    list->count--;
}

void dpool_list_insert_by_epoch(dpool_list *list, dpool_block *b) {
    dpool_block *before = list->last;
    while (before != NULL && before->epoch > b->epoch) {
        before = before->list_prev;
    }
    dpool_block *after = before != NULL ? before->list_next : list->first;
    b->list_prev = before;
    b->list_next = after;
    *(before != NULL ? &before->list_next : &list->first) = b;
    *(after != NULL ? &after->list_prev : &list->last) = b;
    list->count++;
}

/* ---- Finding and making arenas ------------------------------------------------------------- */

ductile_stream dpool_canonical_stream(ductile_stream stream) {
    return (uintptr_t)stream == LEGACY_STREAM ? NULL : stream;
}

/* Unlike addresses and thread ids of the system. */
uint64_t dpool_this_thread(void) {
    static _Atomic uint64_t n_threads;
    static _Thread_local uint64_t mine;
    if (mine == 0) {
        mine = atomic_fetch_add_explicit(&n_threads, 1, memory_order_relaxed) + 1;
    }
    return mine;
}

uint64_t dpool_thread_of(ductile_stream stream) {
    return (uintptr_t)stream == PER_THREAD_STREAM ? dpool_this_thread() : 0;
}

bool dpool_may_name(ductile_stream stream, uint64_t thread) {
    return thread == dpool_thread_of(stream);
}

static dpool_arena **bucket_of(ductile_allocator *a, ductile_stream stream, uint64_t thread) {
    uint64_t h = ((uint64_t)(uintptr_t)stream ^ thread) * UINT64_C(0x9E3779B97F4A7C15);
    return &a->buckets[h >> 56];
}

_Static_assert(DPOOL_ARENA_BUCKETS == 256, "8 bits of the hash choose the bucket");

dpool_arena *dpool_arena_find_locked(ductile_allocator *a, const dpool_private *pool,
                                     ductile_stream stream) {
    stream = dpool_canonical_stream(stream);
    uint64_t thread = dpool_thread_of(stream);
    dpool_arena *arena = *bucket_of(a, stream, thread);
    while (arena != NULL &&
           (arena->stream != stream || arena->thread != thread || arena->pool != pool)) {
        arena = arena->next_in_bucket;
    }
    return arena;
}

dpool_arena *dpool_arena_any_locked(ductile_allocator *a, ductile_stream stream) {
    stream = dpool_canonical_stream(stream);
    dpool_arena *arena = *bucket_of(a, stream, dpool_thread_of(stream));
    while (arena != NULL && !dpool_arena_is_of(arena, stream)) {
        arena = arena->next_in_bucket;
    }
    return arena;
}

bool dpool_arena_is_of(const dpool_arena *arena, ductile_stream stream) {
    stream = dpool_canonical_stream(stream);
    return arena->stream == stream && arena->thread == dpool_thread_of(stream) && !arena->is_gone;
}

static dpool_arena *new_arena(dpool_private *pool, ductile_stream stream) {
    dpool_arena *arena = calloc(1, sizeof *arena);
    if (arena != NULL) {
        arena->pool = pool;
        arena->stream = dpool_canonical_stream(stream);
        arena->thread = dpool_thread_of(arena->stream);
        arena->alloc_epoch = 1;
        arena->gaps_tolerated = DPOOL_GAPS_TOLERATED;
    }
    return arena;
}

/* Arenas of no pool come first in their bucket, so that pools never lengthen the way to them. */
static void link_arena_locked(ductile_allocator *a, dpool_arena *arena) {
    dpool_arena **link = bucket_of(a, arena->stream, arena->thread);
    while (arena->pool != NULL && *link != NULL) {
        link = &(*link)->next_in_bucket;
    }
    arena->next_in_bucket = *link;
    *link = arena;
    if (arena->pool != NULL) {
        arena->pool->n_arenas++;
    }
    arena->next = a->arenas;
    arena->never_waits = dpool_is_barred_locked(a, arena->stream, arena->thread);
    a->arenas = arena;
    a->counts.arenas++;
    if (a->counts.arenas == 2) {
        arena->next->chores_at = 0; /* markers are of use from now on */
    }
    a->counts.table_host_bytes += sizeof *arena;
}

ductile_status dpool_arena_get(ductile_allocator *a, dpool_private *pool, ductile_stream stream,
                               dpool_arena **out) {
    dti_lock_take(&a->index_lock);
    *out = dpool_arena_find_locked(a, pool, stream);
    dti_lock_open(&a->index_lock);
    if (*out != NULL) {
        return DUCTILE_OK;
    }
    dpool_arena *arena = new_arena(pool, stream);
    if (arena == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_take(&a->index_lock);
    link_arena_locked(a, arena);
    dti_lock_open(&a->index_lock);
    *out = arena;
    return DUCTILE_OK;
}

void dpool_arena_part_locked(ductile_allocator *a, dpool_arena *arena) {
    if (arena->is_gone) {
        return;
    }
    dpool_arena **link = bucket_of(a, arena->stream, arena->thread);
    while (*link != arena) {
        link = &(*link)->next_in_bucket;
    }
    *link = arena->next_in_bucket;
    a->recent = a->recent == arena ? NULL : a->recent;
    arena->is_gone = true;
}

/* Returns the arena's pool if that goes with it. */
static dpool_private *unlink_arena_locked(ductile_allocator *a, dpool_arena *arena) {
    dpool_arena_part_locked(a, arena);
    dpool_arena **link = &a->arenas;
    while (*link != arena) {
        link = &(*link)->next;
    }
    *link = arena->next;
    a->counts.arenas--;
    a->counts.table_host_bytes -= sizeof *arena;
    return arena->pool != NULL ? dpool_leave_pool_locked(a, arena->pool) : NULL;
}

void dpool_arena_drop_if_empty(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_take(&a->index_lock);
    bool is_empty = arena->regions == NULL && arena->n_waiters == 0;
    dpool_private *pool = is_empty ? unlink_arena_locked(a, arena) : NULL;
    dti_lock_open(&a->index_lock);
    dpool_free_pool(pool);
    if (!is_empty) {
        return;
    }
    for (uint32_t i = 0; i < arena->n_marks; i++) {
        dvmm_marker_drop(&a->markers, arena->ring[i].marker);
    }
    free(arena);
}

bool dpool_arena_is_nameable(const dpool_arena *arena) {
    return !arena->is_gone && dpool_may_name(arena->stream, arena->thread);
}

bool dpool_naming_begin(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_take(&a->index_lock);
    bool may = dpool_arena_is_nameable(arena);
    arena->n_namers += may;
    dti_lock_open(&a->index_lock);
    return may;
}

void dpool_naming_end(ductile_allocator *a, dpool_arena *arena) {
    dti_lock_take(&a->index_lock);
    arena->n_namers--;
    dti_lock_open(&a->index_lock);
}

/* ---- Regions ------------------------------------------------------------------------------- */

static uint64_t wished_range(const ductile_allocator *a) {
    uint64_t wish = a->options.range_bytes;
    if (wish == 0) {
        wish = a->device_bytes / 8 * 9;
    }
    return dti_round_up(wish, a->granule);
}

static void link_region_locked(ductile_allocator *a, dpool_arena *arena, dpool_region *region) {
    dpool_block *gap = dpool_node_take(&a->nodes);
    *gap = (dpool_block){.addr = region->seg->range.addr,
                         .size = region->seg->n_granules * a->granule,
                         .region = region};
    region->first = gap;
    region->next = arena->regions;
    arena->regions = region;
    arena->n_regions++;
    (void)dpool_make_gap_locked(a, gap);
    dseg_set_insert(&a->segments, region->seg);
    a->counts.segments++;
    a->counts.address_bytes += region->seg->range.size;
    a->counts.table_host_bytes += sizeof *region;
}

/* Hits of other threads may take the node that was made for the region's first gap. */
static ductile_status link_region(ductile_allocator *a, dpool_arena *arena, dpool_region *region) {
    bool linked = false;
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && !linked) {
        status = dpool_reserve_room(a, 1);
        if (status != DUCTILE_OK) {
            break;
        }
        dti_lock_take(&a->index_lock);
        status = dseg_set_reserve(&a->segments);
        linked = status == DUCTILE_OK && a->nodes.n_spare > 0;
        if (linked) {
            link_region_locked(a, arena, region);
        }
        dti_lock_open(&a->index_lock);
    }
    return status;
}

ductile_status dpool_region_add(ductile_allocator *a, dpool_arena *arena, uint64_t need_bytes) {
    dpool_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t need = dti_round_up(need_bytes, a->granule);
    ductile_status status = dseg_create(&a->store, need, dti_max(need, wished_range(a)),
                                        a->options.address_budget_bytes, &region->seg);
    if (status != DUCTILE_OK) {
        free(region);
        return status;
    }
    region->arena = arena;
    region->seg->owner = region;
    status = link_region(a, arena, region);
    if (status != DUCTILE_OK) {
        (void)dseg_destroy(region->seg);
        free(region);
    }
    return status;
}

static bool region_is_empty(const dpool_region *region) {
    const dpool_block *b = region->first;
    return b->state == DPOOL_GAP && b->next == NULL && dseg_is_untouched(region->seg);
}

static dpool_region *unlink_empty_region_locked(ductile_allocator *a, dpool_arena *arena,
                                                uint32_t *keep) {
    for (dpool_region **link = &arena->regions; *link != NULL; link = &(*link)->next) {
        dpool_region *region = *link;
        if (!region_is_empty(region) || (*keep != 0 && (*keep)-- != 0)) {
            continue;
        }
        *link = region->next;
        arena->n_regions--;
        dpool_list_remove(&arena->gaps, region->first);
        dpool_node_give(&a->nodes, region->first);
        dseg_set_remove(&a->segments, region->seg);
        a->counts.segments--;
        a->counts.span -= region->span_bytes;
        a->counts.address_bytes -= region->seg->range.size;
        a->counts.table_host_bytes -= sizeof *region;
        return region;
    }
    return NULL;
}

void dpool_regions_release_empty(ductile_allocator *a, dpool_arena *arena, uint32_t keep) {
    for (;;) {
        uint32_t spared = keep;
        dti_lock_take(&a->index_lock);
        dpool_region *region = unlink_empty_region_locked(a, arena, &spared);
        dti_lock_open(&a->index_lock);
        if (region == NULL) {
            return;
        }
        (void)dseg_destroy(region->seg);
        free(region);
    }
}

/* ---- Block transitions --------------------------------------------------------------------- */

static bool is_in_state(const dpool_block *b, dpool_state state) {
    return b != NULL && b->state == (uint64_t)state;
}

dpool_block *dpool_make_free_locked(ductile_allocator *a, dpool_block *b) {
    dpool_free_index *index = &b->region->arena->index;
    unsigned slot = DPOOL_NO_SLOT;
    b->state = DPOOL_FREE;
    if (is_in_state(b->next, DPOOL_FREE)) {
        slot = dpool_index_leave(index, b->next);
        dpool_absorb_next(&a->nodes, b);
    }
    if (is_in_state(b->prev, DPOOL_FREE)) {
        b = b->prev;
        dpool_index_close(index, slot);
        slot = dpool_index_leave(index, b);
        dpool_absorb_next(&a->nodes, b);
    }
    dpool_index_enter(index, slot, b);
    return b;
}

dpool_block *dpool_make_gap_locked(ductile_allocator *a, dpool_block *b) {
    dpool_list *gaps = &b->region->arena->gaps;
    b->epoch = 0;
    if (is_in_state(b->next, DPOOL_GAP)) {
        dpool_list_remove(gaps, b->next);
        dpool_absorb_next(&a->nodes, b);
    }
    if (is_in_state(b->prev, DPOOL_GAP)) {
        dpool_absorb_next(&a->nodes, b->prev); /* stays where it is in the list */
        return b->prev;
    }
    b->state = DPOOL_GAP;
    dpool_list_append(gaps, b);
    return b;
}

void dpool_make_busy_locked(dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    if (b->state == DPOOL_FREE) {
        dpool_index_remove(&arena->index, b);
    } else if (b->state == DPOOL_GAP) {
        dpool_list_remove(&arena->gaps, b);
    }
    b->state = DPOOL_BUSY;
}

dpool_block *dpool_carve_free_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to) {
    dpool_make_busy_locked(b);
    dpool_block *middle = dpool_cut(&a->nodes, b, from);
    dpool_block *after = dpool_cut(&a->nodes, middle, to);
    if (after != middle) {
        (void)dpool_make_free_locked(a, after);
    }
    if (middle != b) {
        (void)dpool_make_free_locked(a, b);
    }
    return middle;
}

void dpool_publish_locked(ductile_allocator *a, dpool_region *region) {
    dpool_counts *c = &a->counts;
    if (region != NULL) {
        uint64_t span = dseg_span_bytes(region->seg);
        c->span += span - region->span_bytes;
        region->span_bytes = span;
        c->span_peak = dti_max(c->span_peak, c->span);
    }
    c->held = a->store.held_bytes;
    c->held_peak = dti_max(c->held_peak, c->held);
    c->created = a->store.created_bytes;
    c->cached = a->store.cached_bytes;
    c->lost = a->store.lost_bytes;
    c->handles = a->store.n_handles;
    c->pinned = a->store.pinned_bytes;
    c->exported = a->store.exported_bytes;
    c->store_host_bytes = a->store.host_bytes;
}

void dpool_publish_store(ductile_allocator *a) {
    dti_lock_take(&a->index_lock);
    dpool_publish_locked(a, NULL);
    dti_lock_open(&a->index_lock);
}

void dpool_settle_unmapped_locked(ductile_allocator *a, dpool_block *b, ductile_status status) {
    dpool_region *region = b->region; /* the block may become part of another */
    if (status == DUCTILE_OK) {
        (void)dpool_make_gap_locked(a, b);
    } else {
        b->state = DPOOL_QUARANTINED;
    }
    dpool_publish_locked(a, region);
}

/* ---- Room for hits ------------------------------------------------------------------------- */

static ductile_status grow_map(ductile_allocator *a) {
    uint64_t capacity = dpool_map_next_capacity(&a->map);
    uint64_t *slots = calloc(capacity, sizeof *slots);
    if (slots == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_take(&a->index_lock);
    uint64_t *old = dpool_map_grow_with(&a->map, slots, capacity);
    a->counts.table_host_bytes += capacity * sizeof *slots;
    a->counts.table_host_bytes -= old != NULL ? capacity / 2 * sizeof *slots : 0;
    dti_lock_open(&a->index_lock);
    free(old);
    return DUCTILE_OK;
}

static ductile_status add_nodes(ductile_allocator *a) {
    struct dpool_node_chunk *chunk = dpool_nodes_make_chunk();
    if (chunk == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_take(&a->index_lock);
    dpool_nodes_add_chunk(&a->nodes, chunk);
    dti_lock_open(&a->index_lock);
    return DUCTILE_OK;
}

static void look_at_room(ductile_allocator *a, uint64_t n_nodes, bool *nodes, bool *map) {
    dti_lock_take(&a->index_lock);
    *nodes = a->nodes.n_spare >= n_nodes;
    *map = dpool_map_has_room(&a->map);
    dti_lock_open(&a->index_lock);
}

ductile_status dpool_reserve_room(ductile_allocator *a, uint64_t n_nodes) {
    for (;;) {
        bool nodes = false;
        bool map = false;
        look_at_room(a, n_nodes, &nodes, &map);
        if (nodes && map) {
            return DUCTILE_OK;
        }
        ductile_status status = nodes ? grow_map(a) : add_nodes(a);
        if (status != DUCTILE_OK) {
            return status;
        }
    }
}
