/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/plan_pack.h"

#include <stdlib.h>
#include <string.h>

/* -1, 0 or 1 */
static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* By range; in each the fixed ones, then by rank, of equals the one that lives longer. */
static int compare_spans(const void *left, const void *right) {
    const plan_span *a = left;
    const plan_span *b = right;
    int order = compare(a->range, b->range);
    order = order != 0 ? order : compare(b->is_fixed, a->is_fixed);
    order = order != 0 ? order : compare(b->rank, a->rank);
    order = order != 0 ? order : compare(b->dies - b->born, a->dies - a->born);
    return order != 0 ? order : compare(a->born, b->born);
}

static uint64_t rank_of(const plan_span *span, plan_order order) {
    switch (order) {
    case PLAN_BY_STAY:
        return span->dies == PLAN_FOREVER ? UINT64_MAX / 2 + span->size : span->size;
    case PLAN_BY_AREA:
        return span->size / 512 * (span->dies - span->born);
    case PLAN_BY_SIZE:
    case PLAN_ORDERS:
        break;
    }
    return span->size;
}

/* One that has its place. They stand by offset, and close together: the search reads them all. */
typedef struct placed_span {
    uint64_t offset, end;
    uint32_t born, dies;
} placed_span;

static uint64_t choose_offset(const placed_span *placed, size_t n, const plan_span *span) {
    uint64_t at = 0;
    uint64_t best = 0;
    uint64_t best_gap = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const placed_span *other = &placed[i];
        if (other->born >= span->dies || span->born >= other->dies) {
            continue;
        }
        if (other->offset >= at + span->size && other->offset - at < best_gap) {
            best = at;
            best_gap = other->offset - at;
        }
        at = other->end > at ? other->end : at;
    }
    return best_gap == UINT64_MAX ? at : best;
}

static void insert(placed_span *placed, size_t n, const plan_span *span) {
    size_t low = 0;
    for (size_t high = n; low < high;) {
        size_t middle = (low + high) / 2;
        if (placed[middle].offset <= span->offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(&placed[low + 1], &placed[low], (n - low) * sizeof *placed);
    placed[low] = (placed_span){span->offset, span->offset + span->size, span->born, span->dies};
}

bool plan_pack(plan_span *spans, size_t n, plan_order order) {
    placed_span *placed = malloc((n + 1) * sizeof *placed);
    if (placed == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        spans[i].rank = rank_of(&spans[i], order);
    }
    qsort(spans, n, sizeof *spans, compare_spans);
    size_t n_placed = 0;
    for (size_t i = 0; i < n; i++) {
        n_placed = i > 0 && spans[i].range != spans[i - 1].range ? 0 : n_placed;
        if (!spans[i].is_fixed) {
            spans[i].offset = choose_offset(placed, n_placed, &spans[i]);
        }
        insert(placed, n_placed++, &spans[i]);
    }
    free(placed);
    return true;
}

/* ---- What a layout needs ------------------------------------------------------------------- */

static uint64_t last_handle(const plan_span *span, uint64_t handle_bytes) {
    return (span->offset + span->size - 1) / handle_bytes;
}

uint64_t plan_bytes(const plan_span *spans, size_t n, uint64_t handle_bytes) {
    uint64_t n_slots = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t end = last_handle(&spans[i], handle_bytes) + 1;
        n_slots = end > n_slots ? end : n_slots;
    }
    uint32_t *used_by = calloc(n_slots + 1, sizeof *used_by); /* the last range, plus 1 */
    uint64_t n_used = 0;
    for (size_t i = 0; used_by != NULL && i < n; i++) {
        uint64_t last = last_handle(&spans[i], handle_bytes);
        for (uint64_t slot = spans[i].offset / handle_bytes; slot <= last; slot++) {
            n_used += used_by[slot] != spans[i].range + 1;
            used_by[slot] = spans[i].range + 1;
        }
    }
    free(used_by);
    return n_used * handle_bytes;
}
