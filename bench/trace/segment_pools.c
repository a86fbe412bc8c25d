/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/segment_pools.h"

#include "bench/base/array.h"

#include <stdlib.h>

static bool is_possible(uint64_t address, uint64_t size) {
    return size > 0 && size <= UINT64_MAX - address;
}

bool segment_pools_expect(segment_pools *s, uint64_t address, uint64_t size) {
    const uint64_t end = address + size;
    return !is_possible(address, size) ||
           (array_add(&s->bounds, sizeof address, &s->capacity, &s->n_bounds, &address) &&
            array_add(&s->bounds, sizeof end, &s->capacity, &s->n_bounds, &end));
}

bool segment_pools_begin(segment_pools *s) {
    size_t n = 0;
    if (s->n_bounds > 0) {
        qsort(s->bounds, s->n_bounds, sizeof *s->bounds, array_by_number);
    }
    for (size_t i = 0; i < s->n_bounds; i++) {
        if (n == 0 || s->bounds[i] != s->bounds[n - 1]) {
            s->bounds[n++] = s->bounds[i];
        }
    }
    s->n_bounds = n;
    s->nodes = calloc(2 * n + 1, sizeof *s->nodes);
    return s->nodes != NULL;
}

/* The first bound behind an address. */
static size_t bound_behind(const segment_pools *s, uint64_t address) {
    size_t low = 0;
    size_t high = s->n_bounds;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->bounds[middle] <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The children of node i are 2i and 2i + 1; cell i is the leaf n_bounds + i. */
void segment_pools_put(segment_pools *s, uint64_t address, uint64_t size, uint16_t pool) {
    if (!is_possible(address, size)) {
        return;
    }
    const segment_pools_node put = {.turn = ++s->n_turns, .pool = pool};
    size_t from = s->n_bounds + bound_behind(s, address) - 1;
    size_t to = s->n_bounds + bound_behind(s, address + size) - 1;
    for (; from < to; from /= 2, to /= 2) {
        if (from % 2 == 1) {
            s->nodes[from++] = put;
        }
        if (to % 2 == 1) {
            s->nodes[--to] = put;
        }
    }
}

uint16_t segment_pools_at(const segment_pools *s, uint64_t address) {
    size_t behind = bound_behind(s, address);
    segment_pools_node latest = {.pool = SEGMENT_POOL_UNKNOWN};
    for (size_t i = behind > 0 ? s->n_bounds + behind - 1 : 0; i > 0; i /= 2) {
        latest = s->nodes[i].turn > latest.turn ? s->nodes[i] : latest;
    }
    return latest.pool;
}

uint64_t segment_pools_end(const segment_pools *s, uint64_t address) {
    return s->bounds[bound_behind(s, address)];
}

void segment_pools_drop(segment_pools *s) {
    free(s->bounds);
    free(s->nodes);
    *s = (segment_pools){0};
}
