/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/plan_pack.h"

#include <stdlib.h>
#include <string.h>

/* -1, 0 or 1 */
static int compare(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

/* By range; in each the fixed ones, then from large to small, of equals the one that lives longer.
 */
static int compare_spans(const void *left, const void *right) {
    const plan_span *a = left;
    const plan_span *b = right;
    int order = compare(a->range, b->range);
    order = order != 0 ? order : compare(b->is_fixed, a->is_fixed);
    order = order != 0 ? order : compare(b->size, a->size);
    order = order != 0 ? order : compare(b->dies - b->born, a->dies - a->born);
    return order != 0 ? order : compare(a->born, b->born);
}

static bool meet(const plan_span *a, const plan_span *b) {
    return a->born < b->dies && b->born < a->dies;
}

static uint64_t choose_offset(const plan_span *const *placed, size_t n, const plan_span *span) {
    uint64_t at = 0;
    uint64_t best = 0;
    uint64_t best_gap = UINT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const plan_span *other = placed[i];
        if (!meet(other, span)) {
            continue;
        }
        if (other->offset >= at + span->size && other->offset - at < best_gap) {
            best = at;
            best_gap = other->offset - at;
        }
        at = other->offset + other->size > at ? other->offset + other->size : at;
    }
    return best_gap == UINT64_MAX ? at : best;
}

/* Keeps the order of offsets. */
static void insert(const plan_span **placed, size_t n, const plan_span *span) {
    size_t low = 0;
    for (size_t high = n; low < high;) {
        size_t middle = (low + high) / 2;
        if (placed[middle]->offset <= span->offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(&placed[low + 1], &placed[low], (n - low) * sizeof *placed);
    placed[low] = span;
}

bool plan_pack(plan_span *spans, size_t n) {
    const plan_span **placed = malloc((n + 1) * sizeof *placed);
    if (placed == NULL) {
        return false;
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
