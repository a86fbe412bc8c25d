/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's expandable segments: one huge range per stream and size class that grows by 2 MiB or
 * 20 MiB handles, at the lowest address where the request fits. At the cap every wholly free handle
 * of every segment is unmapped and released, with a wait for the segment's stream for each free
 * block.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_cache.h"
#include "bench/contenders/torch_segment.h"
#include "vmm/base/status.h"

#include <stdlib.h>

typedef struct expandable {
    torch_cache cache; /* first: the policy gets a pointer to it */
    torch_segment *segments;
    uint64_t span_bytes; /* sum over the segments */
    uint64_t span_peak_bytes;
} expandable;

static expandable *expandable_of(torch_cache *cache) {
    return (expandable *)(void *)cache;
}

/* ---- Finding a free block ------------------------------------------------------------------ */

/* A block before unmapped addresses counts as large as it can grow, so that holes go first. */
static uint64_t growable_size(const torch_block *block) {
    const torch_block *next = block->next;
    return block->size + (next != NULL && !next->is_mapped ? next->size : 0);
}

static torch_block *find_best_fit(torch_cache *cache, torch_arena *arena, uint64_t size) {
    (void)cache;
    torch_block *best = torch_block_of(torch_set_find_at_least(&arena->free, size, 0));
    while (best != NULL && torch_block_is_split(best)) {
        torch_block *next = torch_block_of(torch_set_find_next(&best->node));
        if (next == NULL || growable_size(next) >= growable_size(best)) {
            break;
        }
        best = next;
    }
    return best;
}

static uint64_t min_remainder(const torch_arena *arena) {
    (void)arena;
    return TORCH_UNIT;
}

/* ---- Growing ------------------------------------------------------------------------------- */

static bool has_room(const torch_block *block, uint64_t size) {
    uint64_t room = 0;
    while (room < size && block != NULL && torch_block_is_usable(block)) {
        room += block->size;
        block = block->next;
    }
    return room >= size;
}

/* Where to grow: unmapped addresses, or the free block just before them. */
static torch_block *find_place(torch_arena *arena, uint64_t size) {
    for (torch_node *node = torch_set_find_first(&arena->unmapped); node != NULL;
         node = torch_set_find_next(node)) {
        torch_block *place = torch_block_of(node);
        if (place->prev != NULL && torch_block_is_usable(place->prev)) {
            place = place->prev;
        }
        if (has_room(place, size)) {
            return place;
        }
    }
    return NULL;
}

static void link_segment(expandable *e, torch_segment *segment) {
    segment->next = e->segments;
    if (segment->next != NULL) {
        segment->next->prev = segment;
    }
    e->segments = segment;
}

static void unlink_segment(expandable *e, torch_segment *segment) {
    if (segment->prev != NULL) {
        segment->prev->next = segment->next;
    } else {
        e->segments = segment->next;
    }
    if (segment->next != NULL) {
        segment->next->prev = segment->prev;
    }
}

static ductile_status add_segment(expandable *e, torch_arena *arena, torch_block **out) {
    torch_segment *segment = NULL;
    DTI_TRY(torch_segment_create(e->cache.driver, arena->stream,
                                 arena->is_small ? TORCH_SMALL_SEGMENT : TORCH_LARGE_SEGMENT,
                                 &segment));
    link_segment(e, segment);
    *out = torch_block_take(&e->cache.store, arena, segment->base, segment->bytes);
    (*out)->segment = segment;
    (*out)->is_mapped = false;
    torch_block_insert(*out);
    return DUCTILE_OK;
}

static void note_span(expandable *e, uint64_t before, uint64_t now) {
    e->span_bytes = e->span_bytes - before + now;
    e->span_peak_bytes = dti_max(e->span_peak_bytes, e->span_bytes);
}

/* Maps the first handles of an unmapped block that hold `size`; it becomes free, merged with its
 * free neighbours. PyTorch checks its cap only once, with rounded sizes, and may exceed it by part
 * of a handle; here, as on a device of that size, the driver has no more. */
static ductile_status map_block(expandable *e, torch_block *block, uint64_t size) {
    torch_segment *segment = block->segment;
    uint64_t bytes = dti_round_up(size, segment->handle_bytes);
    if (!torch_cache_fits_cap(&e->cache, bytes)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    uint64_t span_before = torch_segment_span(segment);
    DTI_TRY(torch_segment_map(segment, block->address, bytes));
    note_span(e, span_before, torch_segment_span(segment));
    torch_cache_add_reserved(&e->cache, bytes);
    torch_block_remove(block);
    if (bytes < block->size) {
        torch_block_insert(torch_block_split(&e->cache.store, block, bytes));
    }
    block->is_mapped = true;
    torch_block_merge(&e->cache.store, block);
    torch_block_insert(block);
    return DUCTILE_OK;
}

/* Pieces mapped before a failure stay in the cache, as in PyTorch. */
static ductile_status fill_place(expandable *e, torch_block *place, uint64_t size,
                                 torch_block **out) {
    uint64_t have = place->is_mapped ? place->size : 0;
    while (have < size) {
        torch_block *next = place->is_mapped ? place->next : place;
        DTI_TRY(map_block(e, next, dti_min(size - have, next->size)));
        place = next;
        have = place->size;
    }
    torch_block_remove(place);
    *out = place;
    return DUCTILE_OK;
}

static ductile_status grow(torch_cache *cache, torch_arena *arena, uint64_t size,
                           torch_block **out) {
    expandable *e = expandable_of(cache);
    if (size > dvmm_get_caps(cache->driver)->total_bytes ||
        !torch_cache_fits_cap(cache, torch_segment_size(size))) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    torch_block *place = find_place(arena, size);
    if (place == NULL) {
        DTI_TRY(add_segment(e, arena, &place));
    }
    return fill_place(e, place, size, out);
}

/* ---- Giving back --------------------------------------------------------------------------- */

/* [free][unmapped][free] in place of one free block. Pre: two blocks spare. */
static void cut_out(expandable *e, torch_block *block, ductile_addr start, uint64_t size) {
    torch_store *store = &e->cache.store;
    torch_block_remove(block);
    if (start > block->address) {
        torch_block *rest = torch_block_split(store, block, start - block->address);
        torch_block_insert(block);
        block = rest;
    }
    if (size < block->size) {
        torch_block_insert(torch_block_split(store, block, size));
    }
    block->is_mapped = false;
    torch_block_merge(store, block);
    torch_block_insert(block);
}

static ductile_status unmap_block(expandable *e, torch_block *block) {
    if (!torch_store_reserve(&e->cache.store, 2)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    torch_segment *segment = block->segment;
    uint64_t span_before = torch_segment_span(segment);
    ductile_addr start = 0;
    uint64_t size = 0;
    ductile_status status =
        torch_segment_unmap(segment, block->address, block->size, &start, &size);
    if (size > 0) {
        note_span(e, span_before, torch_segment_span(segment));
        torch_cache_sub_reserved(&e->cache, size);
        cut_out(e, block, start, size);
    }
    return status;
}

/* Unmapping changes the set under way but never a free block of the same size or above that was
 * not visited: what is cut off is smaller than a handle and needs no visit. */
static ductile_status unmap_arena(expandable *e, torch_arena *arena) {
    torch_node *node = torch_set_find_first(&arena->free);
    while (node != NULL) {
        uint64_t major = node->major;
        uint64_t minor = node->minor;
        DTI_TRY(unmap_block(e, torch_block_of(node)));
        node = torch_set_find_at_least(&arena->free, major, minor + 1);
    }
    return DUCTILE_OK;
}

static void drop_empty_segments(expandable *e, torch_arena *arena) {
    torch_node *next = NULL;
    for (torch_node *node = torch_set_find_first(&arena->unmapped); node != NULL; node = next) {
        next = torch_set_find_next(node);
        torch_block *block = torch_block_of(node);
        if (!torch_block_is_split(block)) { /* the whole segment */
            torch_block_remove(block);
            unlink_segment(e, block->segment);
            torch_segment_destroy(block->segment);
            torch_block_put(&e->cache.store, block);
        }
    }
}

static ductile_status release_free(torch_cache *cache) {
    expandable *e = expandable_of(cache);
    ductile_status status = DUCTILE_OK;
    for (torch_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        if (torch_arena_gives(arena)) {
            status = unmap_arena(e, arena);
            drop_empty_segments(e, arena);
        }
    }
    return status;
}

/* ---- The contender's table ----------------------------------------------------------------- */

static const torch_policy expandable_policy = {
    .find = find_best_fit,
    .grow = grow,
    .min_remainder = min_remainder,
    .take_back = torch_cache_keep,
    .release_free = release_free,
};

static void expandable_fini(void *self) {
    expandable *e = self;
    torch_cache_fini(&e->cache);
    while (e->segments != NULL) { /* only where the driver refused to take memory back */
        torch_segment *segment = e->segments;
        unlink_segment(e, segment);
        torch_segment_destroy(segment);
    }
    free(e);
}

static void expandable_stats(void *self, contender_stats *out) {
    const expandable *e = self;
    torch_cache_stats(self, out);
    out->address_span_bytes = e->span_peak_bytes;
}

static ductile_status expandable_init(const contender_env *env, void **self, char *message,
                                      size_t size) {
    return torch_cache_create(&expandable_policy, sizeof(expandable), env, self, message, size);
}

const contender_ops contender_expandable = {
    .name = "expandable",
    .summary =
        "PyTorch's expandable segments: 2 and 20 MiB handles, growth only, flushed at the cap",
    .init = expandable_init,
    .fini = expandable_fini,
    .alloc = torch_cache_alloc,
    .free = torch_cache_free,
    .record_stream = torch_cache_record_stream,
    .use_pool = torch_cache_use_pool,
    .end_pool = torch_cache_end_pool,
    .trim = torch_cache_trim,
    .stats = expandable_stats,
    .walk = torch_cache_walk,
};
