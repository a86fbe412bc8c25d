/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/transitions.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/age.h"
#include "pool/blocks/wait_spans.h"

#include "segments/granules.h"
#include "vmm/base/align.h"
#include "vmm/base/check.h"

/* ---- Bounds -------------------------------------------------------------------------------- */

/* b has `whole` bytes, from addr on. */
static inline dpool_block *split_at(dpool_nodes *nodes, dpool_block *b, ductile_addr addr,
                                    uint64_t whole, uint64_t size) {
    DTI_ASSERT(size > 0 && size < whole);
    dpool_block *rest = dpool_node_take(nodes);
    rest->addr = addr + size;
    rest->size = whole - size;
    rest->prev = b;
    rest->next = b->next;
    rest->region = b->region;
    rest->marks = b->marks;
    if (rest->next != NULL) {
        rest->next->prev = rest;
    }
    b->next = rest;
    b->size = size;
    return rest;
}

dpool_block *dpool_split(dpool_nodes *nodes, dpool_block *b, uint64_t size) {
    return split_at(nodes, b, b->addr, b->size, size);
}

dpool_block *dpool_cut(dpool_nodes *nodes, dpool_block *b, ductile_addr addr) {
    return addr > b->addr && addr < dpool_end(b) ? dpool_split(nodes, b, addr - b->addr) : b;
}

/* Merges b with its next neighbour, and returns the neighbour's node, whose size stays. */
static inline dpool_block *take_in_next(dpool_block *b) {
    dpool_block *gone = b->next;
    DTI_ASSERT(gone != NULL && gone->addr == dpool_end(b));
    dpool_unite_ages(b, gone);
    b->size += gone->size;
    b->next = gone->next;
    if (b->next != NULL) {
        b->next->prev = b;
    }
    return gone;
}

void dpool_absorb_next(dpool_nodes *nodes, dpool_block *b) {
    dpool_node_give(nodes, take_in_next(b));
}

/* ---- FREE, GAP, BUSY ------------------------------------------------------------------------- */

static bool is_in_state(const dpool_block *b, dpool_state state) {
    return b != NULL && b->state == (uint64_t)state;
}

/* With its pad, if there is one. A mark that proves it is due from the next allocation on. */
static __attribute__((noinline)) dpool_block *leave_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (b->prev != NULL && b->prev->state == DPOOL_FREE) {
        dpool_block *pad = b->prev;
        pad->age = b->age;
        b->region->arena->blocks.n_pads--;
        dpool_absorb_next(&a->nodes, pad);
        b = pad;
    }
    dpool_list_append(&b->region->arena->blocks.leaving, b);
    b->region->arena->calls.maintenance_at = 0;
    return b;
}

/* The FREE block before b becomes larger by it. */
static inline dpool_block *grow_prev(dpool_nodes *nodes, dpool_free_index *index, dpool_block *b) {
    dpool_block *prev = b->prev;
    uint64_t size = prev->size;
    dpool_absorb_next(nodes, prev);
    dpool_index_replace(index, prev, size, prev);
    return prev;
}

dpool_block *dpool_make_free_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_free_index *index = &b->region->arena->index;
    b->state = DPOOL_FREE;
    if (__builtin_expect(b->region->is_closed, 0)) {
        return leave_locked(a, b);
    }
    bool is_prev_free = is_in_state(b->prev, DPOOL_FREE);
    if (is_in_state(b->next, DPOOL_FREE)) {
        dpool_block *next = take_in_next(b);
        if (is_prev_free) {
            dpool_index_remove(index, next);
        } else {
            dpool_index_replace(index, next, next->size, b);
        }
        dpool_node_give(&a->nodes, next);
    } else if (!is_prev_free) {
        dpool_index_insert(index, b);
    }
    return is_prev_free ? grow_prev(&a->nodes, index, b) : b;
}

/* Of a spilled block that was freed asleep the device's part may go first, or a part of that. */
static dpool_block *make_closed_gap_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    b->state = DPOOL_GAP;
    if (is_in_state(b->next, DPOOL_GAP)) {
        b->region->arena->blocks.n_closed_gaps--;
        dpool_absorb_next(&a->nodes, b);
    }
    if (is_in_state(b->prev, DPOOL_GAP)) {
        dpool_absorb_next(&a->nodes, b->prev);
        return b->prev;
    }
    b->region->arena->blocks.n_closed_gaps++;
    return b;
}

dpool_block *dpool_make_gap_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_list *gaps = &b->region->arena->blocks.gaps;
    b->age = 0;
    b->is_mixed = false;
    if (b->region->is_closed) {
        return make_closed_gap_locked(a, b);
    }
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

void dpool_make_busy_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = b->region->arena;
    bool is_open = !b->region->is_closed;
    if (b->state == DPOOL_FREE && is_open) {
        dpool_index_remove(&arena->index, b);
    } else if (b->state == DPOOL_FREE) {
        dpool_list_remove(&arena->blocks.leaving, b);
    } else if (b->state == DPOOL_GAP && is_open) {
        dpool_list_remove(&arena->blocks.gaps, b);
    } else if (b->state == DPOOL_GAP) {
        arena->blocks.n_closed_gaps--;
    }
    b->state = DPOOL_BUSY;
}

void dpool_close_region_locked(ductile_allocator *a, dpool_region *region) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_make_busy_locked(a, region->first);
    region->is_closed = true;
}

static dpool_block *carve_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                 ductile_addr to,
                                 dpool_block *(*put_back)(ductile_allocator *, dpool_block *)) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_make_busy_locked(a, b);
    dpool_block *middle = dpool_cut(&a->nodes, b, from);
    dpool_block *after = dpool_cut(&a->nodes, middle, to);
    if (after != middle) {
        (void)put_back(a, after);
    }
    if (middle != b) {
        (void)put_back(a, b);
    }
    return middle;
}

dpool_block *dpool_carve_free_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    return carve_locked(a, b, from, to, dpool_make_free_locked);
}

dpool_block *dpool_carve_gap_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                    ductile_addr to) {
    DTI_ASSERT_HELD(&a->index_lock);
    return carve_locked(a, b, from, to, dpool_make_gap_locked);
}

/* ---- The watermark of live memory ---------------------------------------------------------- */

/*
 * A compaction is due when live memory has dipped by a third of its peak and rises again, so that
 * it is near its low. A deep dip, to less than three tenths, counts as soon as anything is
 * allocated. From a shallow one live memory must rise by an eighth of the way back; otherwise every
 * wiggle of a long descent would start a compaction. Dips that are small beside the memory that the
 * arena holds do not count.
 */

static void expect_dip(dpool_arena *arena) {
    arena->live.peak = arena->live.bytes;
    arena->live.rises_above = arena->live.peak;
    arena->live.dips_below = arena->live.peak / 3 * 2;
}

/* Would a compaction find a gap to fill, or memory to move? */
static bool is_of_use(const dpool_arena *arena) {
    bool has_inner_gaps = arena->blocks.gaps.count > arena->blocks.n_regions;
    return has_inner_gaps || arena->retiring.kept.count > 0;
}

static __attribute__((noinline)) void live_rose_locked(const ductile_allocator *a,
                                                       dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    bool dip_is_over = arena->live.bytes <= arena->live.peak;
    bool was_large = arena->live.peak - arena->live.dips_below > arena->blocks.mapped_bytes / 8;
    if (dip_is_over && __builtin_expect(was_large, 0) && is_of_use(arena)) {
        dpool_arena_want_compaction(arena);
    }
    expect_dip(arena);
}

static __attribute__((noinline)) void live_dipped_locked(const ductile_allocator *a,
                                                         dpool_arena *arena) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t low = arena->live.bytes;
    uint64_t peak = arena->live.peak;
    bool is_deep = low < peak / 10 * 3;
    arena->live.dips_below = low;
    arena->live.rises_above = is_deep ? low : low + (peak - low) / 8;
}

/* ---- LIVE ---------------------------------------------------------------------------------- */

static __attribute__((noinline)) void record_peaks_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_counts *c = &a->counts;
    c->requested_peak = dti_max(c->requested_peak, c->requested);
    c->allocated_peak = dti_max(c->allocated_peak, c->allocated);
    c->active_peak = dti_max(c->active_peak, c->allocated + c->pending);
    c->live_peak = dti_max(c->live_peak, dpool_live_blocks_locked(a));
}

/* A program that repeats itself reaches its peaks only once. */
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
        record_peaks_locked(a);
    }
}

static inline void make_live_locked(ductile_allocator *a, dpool_arena *arena, dpool_block *b,
                                    uint64_t requested) {
    b->marks = DPOOL_LIVE_MARKS;
    b->requested = requested;
    b->uses = NULL;
    dpool_map_insert(&a->map, b);
    arena->live.bytes += b->size;
    if (arena->live.bytes > arena->live.rises_above) {
        live_rose_locked(a, arena);
    }
    count_live_locked(a, b);
}

void dpool_make_live_locked(ductile_allocator *a, dpool_block *b, uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    make_live_locked(a, b->region->arena, b, requested);
}

static inline void cut_in_bins(dpool_nodes *nodes, dpool_free_index *index, dpool_block *b,
                               uint64_t size) {
    uint64_t whole = b->size;
    dpool_bins_remove(index, b, whole);
    if (whole > size) {
        dpool_index_insert(index, dpool_split(nodes, b, size));
    }
}

/* Cuts a block of the index to size. What is left takes over its slot. Size and address are read
 * where the search has read them: the block itself may not have been touched for long. */
static inline void cut_free(dpool_nodes *nodes, dpool_free_index *index, unsigned slot,
                            dpool_block *b, uint64_t size) {
    if (__builtin_expect(slot == DPOOL_NO_SLOT, 0)) {
        cut_in_bins(nodes, index, b, size);
        return;
    }
    dpool_front *front = &index->front;
    uint64_t whole = front->sizes[slot];
    if (whole > size) {
        dpool_front_put(front, slot, split_at(nodes, b, front->addrs[slot], whole, size));
    } else {
        dpool_front_empty(front, slot);
    }
}

dpool_block *dpool_alloc_from_free_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                          uint64_t requested) {
    DTI_ASSERT_HELD(&a->index_lock);
    if (a->nodes.n_spare == 0 || !dpool_map_has_room(&a->map)) {
        return NULL;
    }
    dpool_free_index *index = &arena->index;
    unsigned slot = DPOOL_NO_SLOT;
    dpool_block *b = dpool_index_best_at(index, size, &slot);
    if (b == NULL) {
        return NULL;
    }
    if (!dpool_waits_are_none(a)) {
        b = dpool_wait_prefer_locked(a, index, b);
        slot = dpool_front_slot(&index->front, b);
    }
    cut_free(&a->nodes, index, slot, b, size);
    make_live_locked(a, arena, b, requested);
    return b;
}

void dpool_leave_live_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_arena *arena = b->region->arena;
    arena->live.bytes -= b->size;
    if (arena->live.bytes < arena->live.dips_below) {
        live_dipped_locked(a, arena);
    }
    a->counts.requested -= b->requested;
    a->counts.allocated -= b->size;
}

void dpool_leave_pending_locked(ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    b->region->arena->blocks.pending_bytes -= b->size;
    a->counts.pending -= b->size;
    a->counts.pending_blocks--;
}

void dpool_free_at_once_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_make_young_locked(a, b);
    b->priority = 0; /* in no tree yet: the marks are written without being read */
    (void)dpool_make_free_locked(a, b);
}

/* The peaks stay: a thread may have read statistics in which the block was live. */
void dpool_unserve_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    a->counts.allocs--;
    a->counts.requested_total -= b->requested;
    a->counts.allocated_total -= b->size;
    (void)dpool_map_take(&a->map, b->addr);
    dpool_leave_live_locked(a, b);
    dpool_free_at_once_locked(a, b);
    a->marks.is_wanted = true; /* it is younger than before, though nothing was freed */
}

/* ---- ASLEEP -------------------------------------------------------------------------------- */

void dpool_leave_asleep_locked(ductile_allocator *a, const dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    a->counts.asleep -= b->size;
    a->counts.asleep_blocks--;
}

void dpool_sleep_block_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    b->state = DPOOL_ASLEEP;
    b->region->arena->live.bytes -= b->size;
    a->counts.requested -= b->requested;
    a->counts.allocated -= b->size;
    a->counts.asleep += b->size;
    a->counts.asleep_blocks++;
}

void dpool_wake_block_locked(ductile_allocator *a, dpool_block *b) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_leave_asleep_locked(a, b);
    b->state = DPOOL_LIVE;
    b->region->arena->live.bytes += b->size;
    a->counts.requested += b->requested;
    a->counts.allocated += b->size;
    record_peaks_locked(a);
}
