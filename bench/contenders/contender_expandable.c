/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's expandable segments: one huge range per stream and size class that grows by 2 MiB or
 * 20 MiB handles, at the lowest address where the request fits. At the cap every wholly free handle
 * of every segment is unmapped and released, with a wait for the segment's stream for each free
 * block.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/rival_cache.h"
#include "bench/contenders/rival_segment.h"
#include "vmm/base/status.h"

#include <stdlib.h>

typedef struct expandable {
    rival_cache cache; /* first: the policy gets a pointer to it */
    rival_segment *segments;
    uint64_t span_bytes; /* sum over the segments */
    uint64_t span_peak_bytes;
} expandable;

static expandable *expandable_of(rival_cache *cache) {
    return (expandable *)(void *)cache;
}

/* ---- Finding a free block ------------------------------------------------------------------ */

/* A block before unmapped addresses counts as large as it can grow, so that holes go first. */
static uint64_t growable_size(const rival_block *block) {
    const rival_block *next = block->next;
    return block->size + (next != NULL && !next->is_mapped ? next->size : 0);
}

static rival_block *find_best_fit(rival_cache *cache, rival_arena *arena, uint64_t size) {
    (void)cache;
    rival_block *best = rival_block_of(rival_set_find_at_least(&arena->free, size, 0));
    while (best != NULL && rival_block_is_split(best)) {
        rival_block *next = rival_block_of(rival_set_find_next(&best->node));
        if (next == NULL || growable_size(next) >= growable_size(best)) {
            break;
        }
        best = next;
    }
    return best;
}

static uint64_t min_remainder(const rival_arena *arena) {
    (void)arena;
    return RIVAL_UNIT;
}

/* ---- Growing ------------------------------------------------------------------------------- */

static bool has_room(const rival_block *block, uint64_t size) {
    uint64_t room = 0;
    while (room < size && block != NULL && rival_block_is_usable(block)) {
        room += block->size;
        block = block->next;
    }
    return room >= size;
}

/* Where to grow: unmapped addresses, or the free block just before them. */
static rival_block *find_place(rival_arena *arena, uint64_t size) {
    for (rival_node *node = rival_set_find_first(&arena->unmapped); node != NULL;
         node = rival_set_find_next(node)) {
        rival_block *place = rival_block_of(node);
        if (place->prev != NULL && rival_block_is_usable(place->prev)) {
            place = place->prev;
        }
        if (has_room(place, size)) {
            return place;
        }
    }
    return NULL;
}

static void link_segment(expandable *e, rival_segment *segment) {
    segment->next = e->segments;
    if (segment->next != NULL) {
        segment->next->prev = segment;
    }
    e->segments = segment;
}

static void unlink_segment(expandable *e, rival_segment *segment) {
    if (segment->prev != NULL) {
        segment->prev->next = segment->next;
    } else {
        e->segments = segment->next;
    }
    if (segment->next != NULL) {
        segment->next->prev = segment->prev;
    }
}

static ductile_status add_segment(expandable *e, rival_arena *arena, rival_block **out) {
    rival_segment *segment = NULL;
    DTI_TRY(rival_segment_create(e->cache.driver, arena->stream,
                                 arena->is_small ? RIVAL_SMALL_SEGMENT : RIVAL_LARGE_SEGMENT,
                                 &segment));
    link_segment(e, segment);
    *out = rival_block_take(&e->cache.store, arena, segment->base, segment->bytes);
    (*out)->segment = segment;
    (*out)->is_mapped = false;
    rival_block_insert(*out);
    return DUCTILE_OK;
}

static void note_span(expandable *e, uint64_t before, uint64_t now) {
    e->span_bytes = e->span_bytes - before + now;
    e->span_peak_bytes = dti_max(e->span_peak_bytes, e->span_bytes);
}

/* Maps the first handles of an unmapped block that hold `size`; it becomes free, merged with its
 * free neighbours. PyTorch checks its cap only once, with rounded sizes, and may exceed it by part
 * of a handle; here, as on a device of that size, the driver has no more. */
static ductile_status map_block(expandable *e, rival_block *block, uint64_t size) {
    rival_segment *segment = block->segment;
    uint64_t bytes = dti_round_up(size, segment->handle_bytes);
    if (!rival_cache_fits_cap(&e->cache, bytes)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    uint64_t span_before = rival_segment_span(segment);
    DTI_TRY(rival_segment_map(segment, block->address, bytes));
    note_span(e, span_before, rival_segment_span(segment));
    rival_cache_add_reserved(&e->cache, bytes);
    rival_block_remove(block);
    if (bytes < block->size) {
        rival_block_insert(rival_block_split(&e->cache.store, block, bytes));
    }
    block->is_mapped = true;
    rival_block_merge(&e->cache.store, block);
    rival_block_insert(block);
    return DUCTILE_OK;
}

/* Pieces mapped before a failure stay in the cache, as in PyTorch. */
static ductile_status fill_place(expandable *e, rival_block *place, uint64_t size,
                                 rival_block **out) {
    uint64_t have = place->is_mapped ? place->size : 0;
    while (have < size) {
        rival_block *next = place->is_mapped ? place->next : place;
        DTI_TRY(map_block(e, next, dti_min(size - have, next->size)));
        place = next;
        have = place->size;
    }
    rival_block_remove(place);
    *out = place;
    return DUCTILE_OK;
}

static ductile_status grow(rival_cache *cache, rival_arena *arena, uint64_t size,
                           rival_block **out) {
    expandable *e = expandable_of(cache);
    if (size > dvmm_get_caps(cache->driver)->total_bytes ||
        !rival_cache_fits_cap(cache, rival_segment_size(size))) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    rival_block *place = find_place(arena, size);
    if (place == NULL) {
        DTI_TRY(add_segment(e, arena, &place));
    }
    return fill_place(e, place, size, out);
}

/* ---- Giving back --------------------------------------------------------------------------- */

/* [free][unmapped][free] in place of one free block. Pre: two blocks spare. */
static void cut_out(expandable *e, rival_block *block, ductile_addr start, uint64_t size) {
    rival_store *store = &e->cache.store;
    rival_block_remove(block);
    if (start > block->address) {
        rival_block *rest = rival_block_split(store, block, start - block->address);
        rival_block_insert(block);
        block = rest;
    }
    if (size < block->size) {
        rival_block_insert(rival_block_split(store, block, size));
    }
    block->is_mapped = false;
    rival_block_merge(store, block);
    rival_block_insert(block);
}

static ductile_status unmap_block(expandable *e, rival_block *block) {
    if (!rival_store_reserve(&e->cache.store, 2)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    rival_segment *segment = block->segment;
    uint64_t span_before = rival_segment_span(segment);
    ductile_addr start = 0;
    uint64_t size = 0;
    ductile_status status =
        rival_segment_unmap(segment, block->address, block->size, &start, &size);
    if (size > 0) {
        note_span(e, span_before, rival_segment_span(segment));
        rival_cache_sub_reserved(&e->cache, size);
        cut_out(e, block, start, size);
    }
    return status;
}

/* Unmapping changes the set under way but never a free block of the same size or above that was
 * not visited: what is cut off is smaller than a handle and needs no visit. */
static ductile_status unmap_arena(expandable *e, rival_arena *arena) {
    rival_node *node = rival_set_find_first(&arena->free);
    while (node != NULL) {
        uint64_t major = node->major;
        uint64_t minor = node->minor;
        DTI_TRY(unmap_block(e, rival_block_of(node)));
        node = rival_set_find_at_least(&arena->free, major, minor + 1);
    }
    return DUCTILE_OK;
}

static void drop_empty_segments(expandable *e, rival_arena *arena) {
    rival_node *next = NULL;
    for (rival_node *node = rival_set_find_first(&arena->unmapped); node != NULL; node = next) {
        next = rival_set_find_next(node);
        rival_block *block = rival_block_of(node);
        if (!rival_block_is_split(block)) { /* the whole segment */
            rival_block_remove(block);
            unlink_segment(e, block->segment);
            rival_segment_destroy(block->segment);
            rival_block_put(&e->cache.store, block);
        }
    }
}

static ductile_status release_free(rival_cache *cache) {
    expandable *e = expandable_of(cache);
    ductile_status status = DUCTILE_OK;
    for (rival_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        if (rival_arena_gives(arena)) {
            status = unmap_arena(e, arena);
            drop_empty_segments(e, arena);
        }
    }
    return status;
}

/* ---- The contender's table ----------------------------------------------------------------- */

static const rival_policy expandable_policy = {
    .find = find_best_fit,
    .grow = grow,
    .min_remainder = min_remainder,
    .take_back = rival_cache_keep,
    .release_free = release_free,
};

static void expandable_fini(void *self) {
    expandable *e = self;
    rival_cache_fini(&e->cache);
    while (e->segments != NULL) { /* only where the driver refused to take memory back */
        rival_segment *segment = e->segments;
        unlink_segment(e, segment);
        rival_segment_destroy(segment);
    }
    free(e);
}

static void expandable_stats(void *self, contender_stats *out) {
    const expandable *e = self;
    rival_cache_stats(self, out);
    out->address_span_bytes = e->span_peak_bytes;
}

static ductile_status expandable_init(const contender_env *env, void **self, char *message,
                                      size_t size) {
    return rival_cache_create(&expandable_policy, sizeof(expandable), env, self, message, size);
}

const contender_ops contender_expandable = {
    .name = "expandable",
    .summary =
        "PyTorch's expandable segments: 2 and 20 MiB handles, growth only, flushed at the cap",
    .init = expandable_init,
    .fini = expandable_fini,
    .alloc = rival_cache_alloc,
    .free = rival_cache_free,
    .record_stream = rival_cache_record_stream,
    .use_pool = rival_cache_use_pool,
    .end_pool = rival_cache_end_pool,
    .trim = rival_cache_trim,
    .stats = expandable_stats,
    .walk = rival_cache_walk,
};
