/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/growth/placement.h"

static bool is_open(const dpool_block *b) {
    return b != NULL && (b->state == DPOOL_FREE || b->state == DPOOL_GAP);
}

static bool is_free(const dpool_block *b) {
    return b != NULL && b->state == DPOOL_FREE;
}

/* Granules that a window needs from a gap of which it covers `bytes` from one end. */
static uint64_t granules_of(const ductile_allocator *a, uint64_t bytes) {
    return (bytes + a->granule - 1) / a->granule;
}

/* Considers the window that starts with block b. */
static void try_from_left(const ductile_allocator *a, dpool_block *b, uint64_t size,
                          dpool_place *best) {
    uint64_t covered = 0;
    uint64_t lacks = 0;
    for (const dpool_block *at = b; covered < size; at = at->next) {
        if (!is_open(at) || lacks > best->n_granules) {
            return;
        }
        uint64_t part = dti_min(at->size, size - covered);
        lacks += at->state == DPOOL_GAP ? granules_of(a, part) : 0;
        covered += part;
    }
    if (best->block == NULL || lacks < best->n_granules ||
        (lacks == best->n_granules && b->addr < best->start)) {
        *best = (dpool_place){b, b->addr, lacks};
    }
}

/* Considers the window that ends with block b. */
static void try_from_right(const ductile_allocator *a, dpool_block *b, uint64_t size,
                           dpool_place *best) {
    uint64_t covered = 0;
    uint64_t lacks = 0;
    dpool_block *first = b;
    for (dpool_block *at = b; covered < size; at = at->prev) {
        if (!is_open(at) || lacks > best->n_granules) {
            return;
        }
        uint64_t part = dti_min(at->size, size - covered);
        lacks += at->state == DPOOL_GAP ? granules_of(a, part) : 0;
        covered += part;
        first = at;
    }
    ductile_addr start = dpool_end(b) - size;
    if (best->block == NULL || lacks < best->n_granules ||
        (lacks == best->n_granules && start < best->start)) {
        *best = (dpool_place){first, start, lacks};
    }
}

dpool_place dpool_place_choose_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_place best = {NULL, 0, UINT64_MAX};
    for (dpool_block *gap = arena->gaps.first; gap != NULL; gap = gap->list_next) {
        try_from_left(a, is_free(gap->prev) ? gap->prev : gap, size, &best);
        if (gap->next != NULL) {
            try_from_right(a, is_free(gap->next) ? gap->next : gap, size, &best);
        }
    }
    return best;
}

dpool_place dpool_place_in_gap_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size) {
    DTI_ASSERT_HELD(&a->index_lock);
    uint64_t lacks = granules_of(a, size);
    dpool_block *best = NULL;
    for (dpool_block *gap = arena->gaps.first; gap != NULL; gap = gap->list_next) {
        bool fits = gap->size >= lacks * a->granule;
        best = fits && (best == NULL || gap->addr < best->addr) ? gap : best;
    }
    return (dpool_place){best, best != NULL ? best->addr : 0, lacks};
}
