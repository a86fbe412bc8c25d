/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/trim.h"

#include "pool/grow.h"
#include "pool/log.h"
#include "pool/progress.h"

#include <stdint.h>

static uint64_t held(const ductile_allocator *a) {
    return a->store.held_bytes - a->store.lost_bytes;
}

/* ---- Free blocks, under the slow lock ------------------------------------------------------ */

/* Whole granules of b whose handles are mapped here alone: their memory can go back. */
static bool returnable(const ductile_allocator *a, const dpool_block *b, uint32_t *low,
                       uint32_t *high) {
    const dseg_segment *seg = b->region->seg;
    uint64_t offset = b->addr - seg->range.addr;
    *low = (uint32_t)((offset + a->granule - 1) / a->granule);
    *high = (uint32_t)((offset + b->size) / a->granule);
    while (*low < *high && seg->slots[*low].offset != 0) {
        (*low)++;
    }
    uint32_t end = *low;
    while (end < *high) {
        const dvmm_handle *h = seg->slots[end].handle;
        if (h->n_mappings != 1 || end + h->n_granules > *high) {
            break;
        }
        end += h->n_granules;
    }
    *high = end;
    return *low < *high;
}

/* The returnable proven block with the highest address. */
static dpool_block *topmost(const ductile_allocator *a, const dpool_arena *arena) {
    dpool_block *top = NULL;
    uint32_t low;
    uint32_t high;
    dpool_block *b = dpool_index_below(&arena->index, NULL);
    while (b != NULL && b->size >= a->granule) {
        if (b->epoch < arena->proven_epoch && (top == NULL || b->addr > top->addr) &&
            returnable(a, b, &low, &high)) {
            top = b;
        }
        b = dpool_index_below(&arena->index, b);
    }
    return top;
}

static dpool_block *split_off(ductile_allocator *a, dpool_block *b, ductile_addr addr) {
    return addr > b->addr && addr < dpool_end(b) ? dpool_split(&a->nodes, b, addr - b->addr) : b;
}

/* Makes up to `most` bytes of the topmost block's returnable granules BUSY, the upper ones. */
static dpool_block *take_topmost_locked(ductile_allocator *a, dpool_arena *arena, uint64_t most) {
    uint32_t low;
    uint32_t high;
    dpool_block *b = topmost(a, arena);
    if (b == NULL || a->nodes.n_spare < 2 || !returnable(a, b, &low, &high)) {
        return NULL;
    }
    const dseg_segment *seg = b->region->seg;
    uint32_t first = high;
    while (first > low && (high - first) * a->granule < most) {
        first -= seg->slots[first - 1].handle->n_granules;
    }
    dpool_make_busy_locked(b);
    dpool_block *middle = split_off(a, b, dseg_addr(seg, first));
    dpool_block *after = split_off(a, middle, dseg_addr(seg, high));
    if (after != middle) {
        (void)dpool_make_free_locked(a, after);
    }
    if (middle != b) {
        (void)dpool_make_free_locked(a, b);
    }
    return middle;
}

static ductile_status give_back_block(ductile_allocator *a, dpool_block *b) {
    dpool_region *region = b->region;
    dseg_segment *seg = region->seg;
    uint32_t n = (uint32_t)(b->size / a->granule);
    ductile_status status = dseg_unmap_handles(seg, dseg_granule(seg, b->addr), n);
    dti_lock_take(&a->hot);
    region->arena->mapped_bytes -= b->size;
    a->counts.mapped -= b->size;
    if (status == DUCTILE_OK) {
        (void)dpool_make_gap_locked(a, b);
    } else {
        b->state = DPOOL_QUARANTINED;
    }
    dpool_publish_locked(a, region);
    dti_lock_open(&a->hot);
    return status;
}

static ductile_status give_back_proven(ductile_allocator *a, dpool_arena *arena, uint64_t keep) {
    ductile_status first = DUCTILE_OK;
    while (held(a) > keep && dpool_reserve_room(a, 2) == DUCTILE_OK) {
        dti_lock_take(&a->hot);
        dpool_block *b = take_topmost_locked(a, arena, held(a) - keep);
        dti_lock_open(&a->hot);
        if (b == NULL) {
            break;
        }
        ductile_status status = give_back_block(a, b);
        first = first == DUCTILE_OK ? status : first;
        status = dvmm_store_release_cached(&a->store, keep);
        first = first == DUCTILE_OK ? status : first;
    }
    return first;
}

static ductile_status give_back_all_proven(ductile_allocator *a, uint64_t keep) {
    ductile_status first = dvmm_store_release_cached(&a->store, keep);
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        ductile_status status = give_back_proven(a, arena, keep);
        first = first == DUCTILE_OK ? status : first;
    }
    dpool_publish_store(a);
    return first;
}

static void poll_everything(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        dpool_poll(a, arena, UINT32_MAX);
    }
}

static void drop_empty_ranges(ductile_allocator *a) {
    for (dpool_arena *arena = a->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        dpool_regions_release_empty(a, arena, 0);
        dpool_arena_drop_if_empty(a, arena);
    }
}

void dpool_collect_garbage(ductile_allocator *a, uint64_t need) {
    double threshold = a->options.garbage_collection_threshold;
    uint64_t most = (uint64_t)(threshold * (double)a->store.limit_bytes);
    if (threshold > 0 && held(a) + need > most) {
        (void)give_back_all_proven(a, most > need ? most - need : 0);
    }
}

/* ---- Waiting, without locks ---------------------------------------------------------------- */

static bool has_unproven(ductile_allocator *a, const dpool_arena *arena) {
    dti_lock_take(&a->hot);
    bool unproven = arena->retiring.count > 0 || arena->pending_first != NULL;
    const dpool_block *b = dpool_index_below(&arena->index, NULL);
    while (!unproven && b != NULL && b->size >= a->granule) {
        unproven = b->epoch >= arena->proven_epoch;
        b = dpool_index_below(&arena->index, b);
    }
    dti_lock_open(&a->hot);
    return unproven;
}

/* The newest marker of an arena whose stream must not be named any more. */
static ductile_status wait_for_last_mark(ductile_allocator *a, dpool_arena *arena) {
    dvmm_marker *m = NULL;
    dti_lock_take(&a->hot);
    if (arena->n_marks > 0) {
        m = arena->ring[arena->n_marks - 1].marker;
        dvmm_marker_hold(m);
    }
    dti_lock_open(&a->hot);
    if (m == NULL) {
        return DUCTILE_ERR_NOT_READY;
    }
    (void)dvmm_marker_wait(&a->markers, m);
    dvmm_marker_drop(&a->markers, m);
    return DUCTILE_ERR_NOT_READY; /* the marker proves what it proves; polling reads it */
}

static ductile_status wait_for_arena(ductile_allocator *a, dpool_arena *arena) {
    if (!dpool_arena_is_nameable(arena)) {
        return wait_for_last_mark(a, arena);
    }
    if (dvmm_is_capturing(a->driver, arena->stream)) {
        return DUCTILE_ERR_CAPTURING;
    }
    return dseg_sync(&a->store, arena->stream);
}

static ductile_status wait_for_streams(ductile_allocator *a) {
    dpool_snapshot snapshot;
    ductile_status status = dpool_snapshot_take(a, &snapshot);
    if (status != DUCTILE_OK) {
        return status;
    }
    for (uint32_t i = 0; i < snapshot.n; i++) {
        dpool_snapshot_mark *mark = &snapshot.marks[i];
        mark->skipped =
            !has_unproven(a, mark->arena) || wait_for_arena(a, mark->arena) != DUCTILE_OK;
    }
    dpool_snapshot_settle(a, &snapshot, false);
    dpool_snapshot_drop(a, &snapshot);
    return DUCTILE_OK;
}

/* What can go back without waiting does. */
static ductile_status give_back_now(ductile_allocator *a, uint64_t keep, bool *enough) {
    dvmm_capture_mode mode = dpool_slow_enter(a);
    poll_everything(a);
    ductile_status status = give_back_all_proven(a, keep);
    drop_empty_ranges(a);
    *enough = held(a) <= keep;
    dpool_slow_leave(a, mode);
    return status;
}

ductile_status dpool_trim(ductile_allocator *a, uint64_t keep) {
    bool enough = false;
    ductile_status status = give_back_now(a, keep, &enough);
    if (enough || status != DUCTILE_OK) {
        return status;
    }
    while (dpool_wait_pending(a)) {
        /* each wait takes one marker off; markers of frees that follow belong to the next trim */
    }
    status = wait_for_streams(a);
    return status == DUCTILE_OK ? give_back_now(a, keep, &enough) : status;
}
