/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/snapshot_pools.h"

#include "bench/trace/segment_pools.h"

typedef struct finder {
    history *history;
    const pickle_value *trace;
    uint64_t gpu;
    const pickle_value *segments;
    segment_pools places;
} finder;

uint16_t snapshot_pool_of_segment(history *h, const pickle_value *segment) {
    uint16_t pool = history_pool(h, pickle_find(segment, "segment_pool_id"));
    return pool != HISTORY_POOL_UNKNOWN ? pool : 0;
}

typedef struct place {
    uint64_t address, size;
    uint16_t pool;
} place;

/* False: the segment is another GPU's, or not as PyTorch writes it. */
static bool place_of(finder *f, size_t index, place *out) {
    const pickle_value *segment = pickle_item(f->segments, index);
    uint64_t gpu;
    out->pool = snapshot_pool_of_segment(f->history, segment);
    return pickle_get_unsigned(pickle_find(segment, "device"), &gpu) && gpu == f->gpu &&
           pickle_get_unsigned(pickle_find(segment, "address"), &out->address) &&
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

bool snapshot_pools_find(history *h, const pickle_value *trace, uint64_t gpu,
                         const pickle_value *segments) {
    finder f = {.history = h, .trace = trace, .gpu = gpu, .segments = segments};
    place at;
    for (size_t i = 0; i < pickle_count(segments); i++) {
        (void)place_of(&f, i, &at); /* names the pool */
    }
    bool ok = h->pools.n == 0 || expect_places(&f);
    if (ok && h->pools.n > 0) {
        walk_back(&f);
    }
    segment_pools_drop(&f.places);
    return ok;
}
