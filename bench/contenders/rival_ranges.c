/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/rival_ranges.h"
#include "vmm/base/try.h"

#include <stdlib.h>

static rival_ranges *ranges_of(rival_cache *cache) {
    return (rival_ranges *)(void *)cache;
}

/* ---- Finding a free block ------------------------------------------------------------------ */

/* A block before unmapped addresses counts as large as it can grow, so that holes go first. */
static uint64_t growable_size(const rival_block *block) {
    const rival_block *next = block->next;
    return block->size + (next != NULL && !next->is_mapped ? next->size : 0);
}

rival_block *rival_ranges_find(rival_cache *cache, rival_arena *arena, uint64_t size) {
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

uint64_t rival_ranges_min_remainder(const rival_arena *arena) {
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

static void link_segment(rival_ranges *r, rival_segment *segment) {
    segment->next = r->segments;
    if (segment->next != NULL) {
        segment->next->prev = segment;
    }
    r->segments = segment;
}

static void unlink_segment(rival_ranges *r, rival_segment *segment) {
    if (segment->prev != NULL) {
        segment->prev->next = segment->next;
    } else {
        r->segments = segment->next;
    }
    if (segment->next != NULL) {
        segment->next->prev = segment->prev;
    }
}

static ductile_status add_segment(rival_ranges *r, rival_arena *arena, rival_block **out) {
    rival_segment *segment = NULL;
    DTI_TRY(rival_segment_create(r->cache.driver, arena->stream,
                                 arena->is_small ? RIVAL_SMALL_SEGMENT : r->large_handle_bytes,
                                 &segment));
    link_segment(r, segment);
    *out = rival_block_take(&r->cache.store, arena, segment->base, segment->bytes);
    (*out)->segment = segment;
    (*out)->is_mapped = false;
    rival_block_insert(*out);
    return DUCTILE_OK;
}

static void note_span(rival_ranges *r, uint64_t before, uint64_t now) {
    r->span_bytes = r->span_bytes - before + now;
    r->span_peak_bytes = dti_max(r->span_peak_bytes, r->span_bytes);
}

/* ---- Moving -------------------------------------------------------------------------------- */

/* [free][unmapped][free] in place of one free block. Pre: two blocks spare. */
static void cut_out(rival_ranges *r, rival_block *block, ductile_addr start, uint64_t size) {
    rival_store *store = &r->cache.store;
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

/* The smallest free block that holds a whole handle and does not touch `place`. */
static rival_block *find_donor(const rival_ranges *r, rival_arena *arena,
                               const rival_block *place) {
    uint64_t handle = r->large_handle_bytes;
    rival_node *node = rival_set_find_at_least(&arena->free, handle, 0);
    for (; node != NULL; node = rival_set_find_next(node)) {
        rival_block *block = rival_block_of(node);
        ductile_addr first = dti_round_up(block->address - block->segment->base, handle);
        bool has_handle = block->segment->base + first + handle <= block->address + block->size;
        if (has_handle && block->next != place && block->prev != place) {
            return block;
        }
    }
    return NULL;
}

/* Makes up to so many handles of free memory spare, for mapping `place`. */
static void gather(rival_ranges *r, rival_block *place, size_t n) {
    rival_segment *segment = place->segment;
    rival_block *donor = NULL;
    while (segment->n_spare < n && (donor = find_donor(r, place->arena, place)) != NULL) {
        uint64_t missing = (n - segment->n_spare) * segment->handle_bytes;
        ductile_addr first =
            segment->base + dti_round_up(donor->address - segment->base, segment->handle_bytes);
        uint64_t span = dti_min(donor->address + donor->size - first, missing);
        uint64_t size = 0;
        if (!rival_store_reserve(&r->cache.store, 8) ||
            rival_segment_unmap(segment, first, span, RIVAL_SPARE, &first, &size) != DUCTILE_OK ||
            size == 0) {
            return;
        }
        cut_out(r, donor, first, size);
    }
}

/* Maps the first handles of an unmapped block that hold `size`; it becomes free, merged with its
 * free neighbours. PyTorch checks its cap only once, with rounded sizes, and may exceed it by part
 * of a handle; here, as on a device of that size, the driver has no more. */
static ductile_status map_block(rival_ranges *r, rival_block *block, uint64_t size) {
    rival_segment *segment = block->segment;
    uint64_t bytes = dti_round_up(size, segment->handle_bytes);
    if (r->moves && !block->arena->is_small) {
        gather(r, block, (size_t)(bytes / segment->handle_bytes));
    }
    uint64_t moved = segment->n_spare * segment->handle_bytes;
    uint64_t fresh = bytes - moved;
    if (!rival_cache_fits_cap(&r->cache, fresh)) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    uint64_t span_before = rival_segment_span(segment);
    ductile_status status = rival_segment_map(segment, block->address, bytes);
    if (status != DUCTILE_OK) {
        rival_cache_sub_reserved(&r->cache, moved); /* given back with the rest */
        return status;
    }
    note_span(r, span_before, rival_segment_span(segment));
    rival_cache_add_reserved(&r->cache, fresh);
    rival_block_remove(block);
    if (bytes < block->size) {
        rival_block_insert(rival_block_split(&r->cache.store, block, bytes));
    }
    block->is_mapped = true;
    rival_block_merge(&r->cache.store, block);
    rival_block_insert(block);
    return DUCTILE_OK;
}

/* Pieces mapped before a failure stay in the cache, as in PyTorch. */
static ductile_status fill_place(rival_ranges *r, rival_block *place, uint64_t size,
                                 rival_block **out) {
    uint64_t have = place->is_mapped ? place->size : 0;
    while (have < size) {
        rival_block *next = place->is_mapped ? place->next : place;
        DTI_TRY(map_block(r, next, dti_min(size - have, next->size)));
        place = next;
        have = place->size;
    }
    rival_block_remove(place);
    *out = place;
    return DUCTILE_OK;
}

ductile_status rival_ranges_grow(rival_cache *cache, rival_arena *arena, uint64_t size,
                                 rival_block **out) {
    rival_ranges *r = ranges_of(cache);
    if (size > dvmm_get_caps(cache->driver)->total_bytes ||
        !rival_cache_fits_cap(cache, rival_segment_size(size))) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    rival_block *place = find_place(arena, size);
    if (place == NULL) {
        DTI_TRY(add_segment(r, arena, &place));
    }
    return fill_place(r, place, size, out);
}

rival_segment *rival_ranges_reserve(rival_ranges *r, rival_arena *arena) {
    rival_block *place = find_place(arena, 1);
    if (place != NULL) {
        return place->segment;
    }
    return rival_store_reserve(&r->cache.store, 8) && add_segment(r, arena, &place) == DUCTILE_OK
               ? place->segment
               : NULL;
}

/* ---- At an address ------------------------------------------------------------------------- */

static bool covers(const rival_block *block, ductile_addr address) {
    return block->address <= address && address < block->address + block->size;
}

static rival_block *find_in(const rival_set *set, ductile_addr address) {
    rival_node *node = rival_set_find_first(set);
    while (node != NULL && !covers(rival_block_of(node), address)) {
        node = rival_set_find_next(node);
    }
    return rival_block_of(node);
}

/* Cuts a block of a set in two. Returns the second part. Pre: one block spare. */
static rival_block *cut_at(rival_ranges *r, rival_block *block, ductile_addr address) {
    if (block->address == address) {
        return block;
    }
    rival_block_remove(block);
    rival_block *rest = rival_block_split(&r->cache.store, block, address - block->address);
    rival_block_insert(block);
    rival_block_insert(rest);
    return rest;
}

/* Maps what [address, end) takes of an unmapped block. Pre: three blocks spare. */
static rival_block *map_within(rival_ranges *r, rival_block *block, ductile_addr address,
                               ductile_addr end) {
    uint64_t offset = address > block->address ? address - block->address : 0;
    offset = dti_round_down(offset, block->segment->handle_bytes);
    block = cut_at(r, block, block->address + offset);
    uint64_t bytes = dti_min(end - block->address, block->size);
    return map_block(r, block, bytes) == DUCTILE_OK ? block : NULL;
}

rival_block *rival_ranges_open(rival_ranges *r, rival_arena *arena, ductile_addr address,
                               uint64_t size) {
    ductile_addr end = address + size;
    rival_block *block = find_in(&arena->free, address);
    if (block == NULL) {
        block = find_in(&arena->unmapped, address);
    }
    if (block == NULL || !has_room(block, end - block->address)) {
        return NULL;
    }
    while (block != NULL && (!block->is_mapped || block->address + block->size < end)) {
        if (!rival_store_reserve(&r->cache.store, 8)) {
            return NULL;
        }
        block = map_within(r, block->is_mapped ? block->next : block, address, end);
    }
    return block == NULL ? NULL : cut_at(r, block, address);
}

/* ---- Giving back --------------------------------------------------------------------------- */

static ductile_status unmap_block(rival_ranges *r, rival_block *block) {
    if (!rival_store_reserve(&r->cache.store, 2)) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    rival_segment *segment = block->segment;
    uint64_t span_before = rival_segment_span(segment);
    ductile_addr start = 0;
    uint64_t size = 0;
    ductile_status status =
        rival_segment_unmap(segment, block->address, block->size, RIVAL_RELEASED, &start, &size);
    if (size > 0) {
        note_span(r, span_before, rival_segment_span(segment));
        rival_cache_sub_reserved(&r->cache, size);
        cut_out(r, block, start, size);
    }
    return status;
}

/* Unmapping changes the set under way but never a free block of the same size or above that was
 * not visited: what is cut off is smaller than a handle and needs no visit. */
static ductile_status unmap_arena(rival_ranges *r, rival_arena *arena) {
    rival_node *node = rival_set_find_first(&arena->free);
    while (node != NULL) {
        uint64_t major = node->major;
        uint64_t minor = node->minor;
        DTI_TRY(unmap_block(r, rival_block_of(node)));
        node = rival_set_find_at_least(&arena->free, major, minor + 1);
    }
    return DUCTILE_OK;
}

static void drop_spare(rival_ranges *r) {
    for (rival_segment *segment = r->segments; segment != NULL; segment = segment->next) {
        rival_cache_sub_reserved(&r->cache, rival_segment_drop_spare(segment));
    }
}

static void drop_empty_segments(rival_ranges *r, rival_arena *arena) {
    rival_node *next = NULL;
    for (rival_node *node = rival_set_find_first(&arena->unmapped); node != NULL; node = next) {
        next = rival_set_find_next(node);
        rival_block *block = rival_block_of(node);
        if (!rival_block_is_split(block)) { /* the whole segment */
            rival_block_remove(block);
            unlink_segment(r, block->segment);
            rival_segment_destroy(block->segment);
            rival_block_put(&r->cache.store, block);
        }
    }
}

ductile_status rival_ranges_release_free(rival_cache *cache) {
    rival_ranges *r = ranges_of(cache);
    ductile_status status = DUCTILE_OK;
    drop_spare(r);
    for (rival_arena *arena = cache->store.arenas; arena != NULL && status == DUCTILE_OK;
         arena = arena->next) {
        status = unmap_arena(r, arena);
        drop_empty_segments(r, arena);
    }
    return status;
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

ductile_status rival_ranges_create(const rival_policy *policy, size_t bytes,
                                   const contender_env *env, void **self, char *message,
                                   size_t size) {
    ductile_status status = rival_cache_create(policy, bytes, env, self, message, size);
    if (status == DUCTILE_OK) {
        ((rival_ranges *)*self)->large_handle_bytes = RIVAL_LARGE_SEGMENT;
    }
    return status;
}

void rival_ranges_destroy(void *self) {
    rival_ranges *r = self;
    rival_cache_fini(&r->cache);
    while (r->segments != NULL) { /* only where the driver refused to take memory back */
        rival_segment *segment = r->segments;
        unlink_segment(r, segment);
        rival_segment_destroy(segment);
    }
    free(r);
}

void rival_ranges_stats(void *self, contender_stats *out) {
    const rival_ranges *r = self;
    rival_cache_stats(self, out);
    out->address_span_bytes = r->span_peak_bytes;
}
