/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/snapshot_pools.h"

#include "bench/base/array.h"
#include "bench/trace/segment_pools.h"

/* Of less a pool has much, and each piece would be rounded up. */
#define LEAST_KEPT ((uint64_t)2 << 20)

typedef struct finder {
    history *history;
    const pickle_value *trace;
    uint64_t gpu;
    const pickle_value *segments;
    segment_pools places;
    size_t
        n_looks; /* at parts of segments: those of an allocator do not overlap, and have no more */
} finder;

uint16_t snapshot_pool_of_segment(history *h, const pickle_value *segment) {
    uint16_t pool = history_pool(h, pickle_find(segment, "segment_pool_id"));
    return pool != HISTORY_POOL_UNKNOWN ? pool : 0;
}

typedef struct place {
    uint64_t address, size;
    uint64_t stream;
    uint16_t pool;
} place;

/* False: the segment is another GPU's, or not as PyTorch writes it. */
static bool place_of(finder *f, size_t index, place *out) {
    const pickle_value *segment = pickle_item(f->segments, index);
    uint64_t gpu;
    out->pool = snapshot_pool_of_segment(f->history, segment);
    return pickle_get_unsigned(pickle_find(segment, "device"), &gpu) && gpu == f->gpu &&
           pickle_get_unsigned(pickle_find(segment, "address"), &out->address) &&
           pickle_get_unsigned(pickle_find(segment, "stream"), &out->stream) &&
           pickle_get_unsigned(pickle_find(segment, "total_size"), &out->size);
}

static bool takes_memory(const history_entry *e) {
    return e->action == HISTORY_SEGMENT_ALLOC || e->action == HISTORY_SEGMENT_MAP;
}

static bool gives_memory(const history_entry *e) {
    return e->action == HISTORY_SEGMENT_FREE || e->action == HISTORY_SEGMENT_UNMAP;
}

static bool expect_places(finder *f) {
    bool ok = true;
    place at;
    for (size_t i = 0; ok && i < pickle_count(f->segments); i++) {
        ok = !place_of(f, i, &at) || segment_pools_expect(&f->places, at.address, at.size);
    }
    for (size_t i = 0; ok && i < pickle_count(f->trace); i++) {
        const history_entry *e = history_at(f->history, f->trace, i);
        bool is_place = e != NULL && e->has_block && (takes_memory(e) || gives_memory(e));
        ok = !is_place || segment_pools_expect(&f->places, e->address, e->size);
    }
    return ok && segment_pools_begin(&f->places);
}

/* From the end on: what was given back was held before, what was taken was not. */
static void step_back(finder *f, history_entry *e) {
    if (!e->has_block || e->action == HISTORY_OTHER || e->action == HISTORY_REFUSAL) {
        return;
    }
    uint16_t said = e->pool;
    if (said == HISTORY_POOL_UNKNOWN && !gives_memory(e)) {
        e->pool = segment_pools_at(&f->places, e->address);
    }
    if (takes_memory(e) || gives_memory(e)) {
        uint16_t before = gives_memory(e) ? said : SEGMENT_POOL_UNKNOWN;
        segment_pools_put(&f->places, e->address, e->size, before);
    }
}

static void walk_back(finder *f) {
    place at;
    for (size_t i = 0; i < pickle_count(f->segments); i++) {
        if (place_of(f, i, &at)) {
            segment_pools_put(&f->places, at.address, at.size, at.pool);
        }
    }
    for (size_t i = pickle_count(f->trace); i-- > 0;) {
        history_entry *e = history_at(f->history, f->trace, i);
        if (e != NULL) {
            step_back(f, e);
        }
    }
}

static bool keep(snapshot_kept_list *kept, const place *at, uint64_t size) {
    const snapshot_kept found = {.size = size, .stream = at->stream, .pool = at->pool};
    return size <= LEAST_KEPT ||
           array_add(&kept->all, sizeof found, &kept->capacity, &kept->n, &found);
}

/* A segment that expands may have been mapped in parts, before the history and in it. */
static bool keep_parts(finder *f, const place *at, snapshot_kept_list *kept) {
    uint64_t size = 0;
    bool ok = true;
    for (uint64_t from = at->address, end;
         ok && from < at->address + at->size && f->n_looks++ < f->places.n_bounds; from = end) {
        end = segment_pools_end(&f->places, from);
        if (segment_pools_at(&f->places, from) == at->pool) {
            size += end - from;
        } else {
            ok = keep(kept, at, size);
            size = 0;
        }
    }
    return ok && keep(kept, at, size);
}

/* The walk has reached the beginning. */
static bool find_kept(finder *f, snapshot_kept_list *kept) {
    bool ok = true;
    place at;
    for (size_t i = 0; ok && i < pickle_count(f->segments); i++) {
        bool is_possible = place_of(f, i, &at) && at.size <= UINT64_MAX - at.address;
        ok = !is_possible || at.pool == 0 || keep_parts(f, &at, kept);
    }
    return ok;
}

bool snapshot_pools_find(history *h, const pickle_value *trace, uint64_t gpu,
                         const pickle_value *segments, snapshot_kept_list *kept) {
    finder f = {.history = h, .trace = trace, .gpu = gpu, .segments = segments};
    place at;
    for (size_t i = 0; i < pickle_count(segments); i++) {
        (void)place_of(&f, i, &at); /* names the pool */
    }
    bool ok = h->pools.n == 0 || expect_places(&f);
    if (ok && h->pools.n > 0) {
        walk_back(&f);
        ok = find_kept(&f, kept);
    }
    segment_pools_drop(&f.places);
    return ok;
}
