/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map from 64-bit keys (addresses, IDs) to numbers or pointers that are not 0: open
 * addressing, half full at most, no tombstones. */
#ifndef DUCTILE_BENCH_BASE_HASH_MAP_H
#define DUCTILE_BENCH_BASE_HASH_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hash_map_slot {
    uint64_t key;
    uintptr_t value; /* 0: the slot is empty */
} hash_map_slot;

/* All zero is an empty map. */
typedef struct hash_map {
    hash_map_slot *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_used;
} hash_map;

/* Makes room for one more key, so that the next hash_map_set cannot fail. False: the host has no
 * memory left. */
bool hash_map_reserve(hash_map *map);
/* Adds the key or changes its value, which is not 0. Pre: hash_map_reserve succeeded since the last
 * key was added. */
void hash_map_set(hash_map *map, uint64_t key, uintptr_t value);
/* Both. */
bool hash_map_put(hash_map *map, uint64_t key, uintptr_t value);
/* 0: the key is not in the map. */
uintptr_t hash_map_find(const hash_map *map, uint64_t key);
/* Pre: the key is in the map. */
void hash_map_remove(hash_map *map, uint64_t key);
void hash_map_drop(hash_map *map);

/* A key for a text; two texts may have the same. */
uint64_t hash_map_key_of(const char *text, size_t length);

#endif
