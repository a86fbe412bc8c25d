/* SPDX-License-Identifier: Apache-2.0 */
/* A map from 64-bit keys (IDs, addresses) to 32-bit numbers. Open addressing, never shrinks. */
#ifndef DUCTILE_BENCH_TRACE_ID_MAP_H
#define DUCTILE_BENCH_TRACE_ID_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct id_map_entry {
    uint64_t key;
    uint32_t value;
    uint32_t is_used;
} id_map_entry;

/* All zero is an empty map. */
typedef struct id_map {
    id_map_entry *entries;
    size_t capacity; /* 0 or a power of two */
    size_t count;
} id_map;

/* NULL if the key is not there. Valid until the next id_map_put. */
uint32_t *id_map_find(const id_map *map, uint64_t key);

/* Adds the key or changes its value. False: the host has no memory left. */
bool id_map_put(id_map *map, uint64_t key, uint32_t value);

void id_map_drop(id_map *map);

#endif
