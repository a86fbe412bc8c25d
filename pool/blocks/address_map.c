/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/address_map.h"

#include "pool/blocks/size_class.h"

enum { FIRST_LOG2 = 12, CROWDED_DISTANCE = 48 }; /* 6 bits hold 63; one insert adds one */

#define DISTANCE_MASK UINT64_C(0x3F)
#define POINTER_MASK UINT64_C(0x0000FFFFFFFFFFC0)
#define TAG_MASK UINT64_C(0xFFFF000000000000)

/* The home takes the high bits, the tag some below them. */
static inline uint64_t hash_of(ductile_addr addr) {
    return addr / DPOOL_UNIT * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint64_t tag_of(uint64_t hash) {
    return hash >> 20 << 48;
}

static inline uint64_t home_of(const dpool_map *map, uint64_t hash) {
    return hash >> map->shift;
}

static inline dpool_block *block_of(uint64_t slot) {
    return (dpool_block *)(uintptr_t)(slot & POINTER_MASK);
}

uint64_t dpool_map_next_capacity(const dpool_map *map) {
    return map->slots == NULL ? (uint64_t)1 << FIRST_LOG2 : 2 * (map->mask + 1);
}

uint64_t *dpool_map_grow_with(dpool_map *map, uint64_t *slots, uint64_t capacity) {
    dpool_map old = *map;
    map->slots = slots;
    map->shift = (unsigned)__builtin_clzll(capacity) + 1;
    map->mask = capacity - 1;
    map->max_count = capacity / 4;
    map->count = 0;
    if (old.slots != NULL) {
        for (uint64_t i = 0; i <= old.mask; i++) {
            if (old.slots[i] != 0) {
                dpool_map_insert(map, block_of(old.slots[i]));
            }
        }
    }
    return old.slots;
}

/* Robin Hood: the entry that is further from its home keeps the slot, so distances stay short and
 * even. The first step has no branch: a taken home cannot be predicted, two in a row are rare. */
void dpool_map_insert(dpool_map *map, dpool_block *b) {
    uint64_t hash = hash_of(b->addr);
    uint64_t mask = map->mask;
    uint64_t at = home_of(map, hash);
    uint64_t entry = tag_of(hash) | (uint64_t)(uintptr_t)b;
    uint64_t is_taken = map->slots[at] != 0;
    at = (at + is_taken) & mask;
    entry += is_taken;
    while (map->slots[at] != 0) {
        uint64_t resident = map->slots[at];
        if ((resident & DISTANCE_MASK) < (entry & DISTANCE_MASK)) {
            map->slots[at] = entry;
            entry = resident;
        }
        at = (at + 1) & mask;
        entry++;
        if (__builtin_expect((entry & DISTANCE_MASK) >= CROWDED_DISTANCE, 0)) {
            map->max_count = 0;
        }
    }
    map->slots[at] = entry;
    map->count++;
}

static inline bool is_of(uint64_t slot, uint64_t hash, ductile_addr addr) {
    return ((slot ^ tag_of(hash)) & TAG_MASK) == 0 && block_of(slot)->addr == addr;
}

dpool_block *dpool_map_find(const dpool_map *map, ductile_addr addr) {
    if (map->slots == NULL) {
        return NULL;
    }
    uint64_t hash = hash_of(addr);
    uint64_t at = home_of(map, hash);
    while (map->slots[at] != 0 && !is_of(map->slots[at], hash, addr)) {
        at = (at + 1) & map->mask;
    }
    return block_of(map->slots[at]);
}

/* Closes the hole at `at`: the followers that are not at home move one back. */
static inline void close_hole(dpool_map *map, uint64_t at) {
    uint64_t *slots = map->slots;
    uint64_t next = (at + 1) & map->mask;
    while (__builtin_expect((slots[next] & DISTANCE_MASK) != 0, 0)) {
        slots[at] = slots[next] - 1;
        at = next;
        next = (next + 1) & map->mask;
    }
    slots[at] = 0;
}

dpool_block *dpool_map_next(const dpool_map *map, uint64_t *cursor) {
    while (map->slots != NULL && *cursor <= map->mask) {
        uint64_t slot = map->slots[(*cursor)++];
        if (slot != 0) {
            return block_of(slot);
        }
    }
    return NULL;
}

dpool_block *dpool_map_take(dpool_map *map, ductile_addr addr) {
    if (__builtin_expect(map->slots == NULL, 0)) {
        return NULL;
    }
    uint64_t hash = hash_of(addr);
    uint64_t at = home_of(map, hash);
    for (uint64_t slot = map->slots[at]; slot != 0; slot = map->slots[at]) {
        if (is_of(slot, hash, addr)) {
            close_hole(map, at);
            map->count--;
            return block_of(slot);
        }
        at = (at + 1) & map->mask;
    }
    return NULL;
}
