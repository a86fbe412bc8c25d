/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the address of a LIVE block to the block: an open hash table of one word per slot.
 *
 *     [ 16 bits of the hash | block pointer (64-byte aligned) | 6 bits: distance from home ]
 *
 * The hash bits avoid reading nearly all blocks but the wanted one. The distance lets a removal
 * shift its followers back without reading them.
 *
 * Guarded by the index lock. No call allocates memory: the caller of
 * dpool_map_grow_with does, without any lock.
 */
#ifndef DUCTILE_POOL_BLOCKS_ADDRESS_MAP_H
#define DUCTILE_POOL_BLOCKS_ADDRESS_MAP_H

#include "pool/base/allocator.h"
#include "pool/blocks/block.h"

/* True when an insert cannot fail. One place is kept for the holder of the grow lock, so that its
 * plan, made earlier, always finds one. */
static inline bool dpool_map_has_room(const dpool_map *map) {
    return map->count + 1 < map->max_count;
}

/* The number of slots (a power of two) of the next table. */
uint64_t dpool_map_next_capacity(const dpool_map *map);

/* Moves to a larger, zeroed table of dpool_map_next_capacity slots. Returns the old table, which
 * the caller frees without the lock. */
uint64_t *dpool_map_grow_with(dpool_map *map, uint64_t *slots, uint64_t capacity);

/* Adds a LIVE block. Pre: dpool_map_has_room; a plan checks it when it is made. */
void dpool_map_insert(dpool_map *map, dpool_block *b);

/* The live block that starts at addr; NULL when there is none. */
dpool_block *dpool_map_find(const dpool_map *map, ductile_addr addr);

/* Visits every block: starts with *cursor 0; NULL at the end. Linear in the table. */
dpool_block *dpool_map_next(const dpool_map *map, uint64_t *cursor);

/* Removes the live block that starts at addr and returns it; NULL when there is none. */
dpool_block *dpool_map_take(dpool_map *map, ductile_addr addr);

#endif
