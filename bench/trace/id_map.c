/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/id_map.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 1024 };

/* Multiplication by 2^64 / golden ratio: consecutive IDs and aligned addresses spread alike. */
static size_t first_slot(uint64_t key, size_t capacity) {
    uint64_t mixed = (key ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 20) & (capacity - 1);
}

/* The key's entry, or the unused one where it would go. Pre: the map is not full. */
static id_map_entry *probe(const id_map *map, uint64_t key) {
    size_t slot = first_slot(key, map->capacity);
    while (map->entries[slot].is_used && map->entries[slot].key != key) {
        slot = (slot + 1) & (map->capacity - 1);
    }
    return &map->entries[slot];
}

uint32_t *id_map_find(const id_map *map, uint64_t key) {
    if (map->count == 0) {
        return NULL;
    }
    id_map_entry *entry = probe(map, key);
    return entry->is_used ? &entry->value : NULL;
}

static bool double_capacity(id_map *map) {
    id_map grown = {.capacity = map->capacity == 0 ? FIRST_CAPACITY : 2 * map->capacity,
                    .count = map->count};
    grown.entries = calloc(grown.capacity, sizeof *grown.entries);
    if (grown.entries == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->entries[i].is_used) {
            *probe(&grown, map->entries[i].key) = map->entries[i];
        }
    }
    free(map->entries);
    *map = grown;
    return true;
}

bool id_map_put(id_map *map, uint64_t key, uint32_t value) {
    if (2 * (map->count + 1) > map->capacity && !double_capacity(map)) {
        return false;
    }
    id_map_entry *entry = probe(map, key);
    map->count += !entry->is_used;
    *entry = (id_map_entry){.key = key, .value = value, .is_used = 1};
    return true;
}

void id_map_drop(id_map *map) {
    free(map->entries);
    *map = (id_map){0};
}
