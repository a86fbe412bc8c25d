/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/hash_map.h"

#include <stdlib.h>

enum { FIRST_SLOTS = 1024 };

/* Multiplication by 2^64 / golden ratio: consecutive IDs and aligned addresses spread alike. */
static size_t home_of(const hash_map *map, uint64_t key) {
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (map->n_slots - 1);
}

/* The key's slot, or the empty one where it would go. Pre: the map is not full. */
static size_t find_slot(const hash_map *map, uint64_t key) {
    size_t at = home_of(map, key);
    while (map->slots[at].value != 0 && map->slots[at].key != key) {
        at = (at + 1) & (map->n_slots - 1);
    }
    return at;
}

bool hash_map_reserve(hash_map *map) {
    if (2 * (map->n_used + 1) <= map->n_slots) {
        return true;
    }
    hash_map bigger = {.n_slots = map->n_slots != 0 ? 2 * map->n_slots : FIRST_SLOTS};
    bigger.slots = calloc(bigger.n_slots, sizeof(*bigger.slots));
    if (bigger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->n_slots; i++) {
        if (map->slots[i].value != 0) {
            hash_map_set(&bigger, map->slots[i].key, map->slots[i].value);
        }
    }
    free(map->slots);
    *map = bigger;
    return true;
}

void hash_map_set(hash_map *map, uint64_t key, uintptr_t value) {
    hash_map_slot *slot = &map->slots[find_slot(map, key)];
    map->n_used += slot->value == 0;
    *slot = (hash_map_slot){key, value};
}

bool hash_map_put(hash_map *map, uint64_t key, uintptr_t value) {
    bool ok = hash_map_reserve(map);
    if (ok) {
        hash_map_set(map, key, value);
    }
    return ok;
}

uintptr_t hash_map_find(const hash_map *map, uint64_t key) {
    return map->n_used == 0 ? 0 : map->slots[find_slot(map, key)].value;
}

/* Entries after the hole move into it when that is not before their home, so that every probe
 * sequence stays unbroken. */
void hash_map_remove(hash_map *map, uint64_t key) {
    size_t mask = map->n_slots - 1;
    size_t hole = find_slot(map, key);
    for (size_t at = (hole + 1) & mask; map->slots[at].value != 0; at = (at + 1) & mask) {
        size_t home = home_of(map, map->slots[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (hash_map_slot){0};
    map->n_used--;
}

void hash_map_drop(hash_map *map) {
    free(map->slots);
    *map = (hash_map){0};
}

/* FNV-1a. */
uint64_t hash_map_key_of(const char *text, size_t length) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}
