/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/serve.h"

#include "pool/growth/compact.h"
#include "pool/pools/pause.h"
#include "pool/streams/stream_use.h"
#include "pool/streams/wait_map.h"

static __attribute__((noinline)) void note_peaks_locked(ductile_allocator *a) {
    dpool_counts *c = &a->counts;
    c->requested_peak = dti_max(c->requested_peak, c->requested);
    c->allocated_peak = dti_max(c->allocated_peak, c->allocated);
    c->active_peak = dti_max(c->active_peak, c->allocated + c->pending);
    c->live_peak = dti_max(c->live_peak, dpool_live_blocks_locked(a));
}

/* A program that repeats itself reaches its peaks once. */
static inline bool is_peak_locked(const ductile_allocator *a) {
    const dpool_counts *c = &a->counts;
    return c->requested > c->requested_peak || c->allocated > c->allocated_peak ||
           c->allocated + c->pending > c->active_peak || dpool_live_blocks_locked(a) > c->live_peak;
}

static inline void count_live_locked(ductile_allocator *a, const dpool_block *b) {
    dpool_counts *c = &a->counts;
    c->requested += b->requested;
    c->allocated += b->size;
    c->requested_total += b->requested;
    c->allocated_total += b->size;
    c->allocs++;
    if (__builtin_expect(is_peak_locked(a), 0)) {
        note_peaks_locked(a);
    }
}

static inline void make_live_locked(ductile_allocator *a, dpool_arena *arena, dpool_block *b,
                                    uint64_t requested) {
    b->state = DPOOL_LIVE;
    b->requested = requested;
    b->uses = NULL;
    dpool_map_insert(&a->map, b);
    arena->live_bytes += b->size;
    if (arena->live_bytes > arena->rises_above) {
        dpool_note_rise_locked(arena);
    }
    count_live_locked(a, b);
}

void dpool_make_live_locked(ductile_allocator *a, dpool_block *b, uint64_t requested) {
    make_live_locked(a, b->region->arena, b, requested);
}

dpool_block *dpool_serve_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                uint64_t requested) {
    if (a->nodes.n_spare == 0 || !dpool_map_has_room(&a->map)) {
        return NULL;
    }
    dpool_free_index *index = &arena->index;
    dpool_block *b = dpool_index_best(index, size);
    if (b == NULL) {
        return NULL;
    }
    if (!dpool_waits_are_none(a)) {
        b = dpool_wait_prefer_locked(a, index, b);
    }
    unsigned slot = dpool_index_leave(index, b);
    if (b->size > size) {
        dpool_index_enter(index, slot, dpool_split(&a->nodes, b, size));
    } else {
        dpool_index_close(index, slot);
    }
    make_live_locked(a, arena, b, requested);
    return b;
}

__attribute__((noinline)) ductile_status dpool_explain_miss_locked(const ductile_allocator *a,
                                                                   ductile_addr addr) {
    const dseg_segment *seg = dseg_set_find(&a->segments, addr);
    if (seg == NULL) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    const dpool_region *region = seg->owner;
    const dpool_block *b = region->first;
    while (b->next != NULL && dpool_end(b) <= addr) {
        b = b->next;
    }
    bool is_inside = b->state == DPOOL_LIVE || b->state == DPOOL_PAUSED;
    return is_inside ? DUCTILE_ERR_INTERIOR_POINTER : DUCTILE_ERR_NOT_LIVE;
}

static void leave_live_locked(ductile_allocator *a, dpool_block *b) {
    dpool_arena *arena = b->region->arena;
    arena->live_bytes -= b->size;
    if (arena->live_bytes < arena->dips_below) {
        dpool_note_dip_locked(arena);
    }
    a->counts.requested -= b->requested;
    a->counts.allocated -= b->size;
}

/* Rare ways to take a block back, out of line. The index lock is held, and opened. */

static __attribute__((noinline)) ductile_status take_other_back(ductile_allocator *a,
                                                                ductile_addr addr) {
    ductile_status status = dpool_explain_miss_locked(a, addr);
    dti_lock_open(&a->index_lock);
    return status == DUCTILE_ERR_FOREIGN_POINTER ? dpool_import_leave(a, addr) : status;
}

static __attribute__((noinline)) ductile_status take_paused_back(ductile_allocator *a,
                                                                 dpool_block *b) {
    dpool_use *uses = dpool_free_paused_locked(a, b);
    dti_lock_open(&a->index_lock);
    dpool_uses_drop(a, uses);
    return DUCTILE_OK;
}

static __attribute__((noinline)) ductile_status take_used_back(ductile_allocator *a, dpool_block *b,
                                                               dpool_use *uses) {
    dpool_pending_begin_locked(a, b);
    dti_lock_open(&a->index_lock);
    dpool_pending_record(a, uses);
    return DUCTILE_OK;
}

__attribute__((flatten)) ductile_status dpool_take_back(ductile_allocator *a, ductile_addr addr) {
    dti_lock_take(&a->index_lock);
    dpool_block *b = dpool_map_take(&a->map, addr);
    if (__builtin_expect(b == NULL, 0)) {
        return take_other_back(a, addr);
    }
    if (__builtin_expect(b->state != DPOOL_LIVE, 0)) {
        return take_paused_back(a, b);
    }
    leave_live_locked(a, b);
    dpool_use *uses = b->uses;
    if (uses != NULL) {
        return take_used_back(a, b, uses);
    }
    dpool_set_epoch(b, b->region->arena->alloc_epoch);
    b->priority = 0; /* it has no tree yet: the marks are written without being read */
    (void)dpool_make_free_locked(a, b);
    dti_lock_open(&a->index_lock);
    return DUCTILE_OK;
}
