/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/rival_map.h"

#include <stdint.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 1024 };

/* Addresses are multiples of 512; the multiplication spreads what is left over the high bits. */
static size_t home_of(const rival_map *map, ductile_addr address) {
    uint64_t mixed = (uint64_t)(address >> 9) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 32) & (map->n_slots - 1);
}

static size_t find_slot(const rival_map *map, ductile_addr address) {
    size_t at = home_of(map, address);
    while (map->slots[at].address != 0 && map->slots[at].address != address) {
        at = (at + 1) & (map->n_slots - 1);
    }
    return at;
}

bool rival_map_reserve(rival_map *map) {
    if (2 * (map->n_used + 1) <= map->n_slots) {
        return true;
    }
    rival_map bigger = {.n_slots = map->n_slots != 0 ? 2 * map->n_slots : FIRST_SLOTS};
    bigger.slots = calloc(bigger.n_slots, sizeof(*bigger.slots));
    if (bigger.slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < map->n_slots; i++) {
        if (map->slots[i].address != 0) {
            rival_map_insert(&bigger, map->slots[i].address, map->slots[i].value);
        }
    }
    free(map->slots);
    *map = bigger;
    return true;
}

void rival_map_insert(rival_map *map, ductile_addr address, void *value) {
    map->slots[find_slot(map, address)] = (rival_map_slot){address, value};
    map->n_used++;
}

void *rival_map_find(const rival_map *map, ductile_addr address) {
    if (map->n_slots == 0 || address == 0) {
        return NULL;
    }
    return map->slots[find_slot(map, address)].value;
}

/* Entries after the hole move into it when that is not before their home, so that every probe
 * sequence stays unbroken. */
void rival_map_remove(rival_map *map, ductile_addr address) {
    size_t mask = map->n_slots - 1;
    size_t hole = find_slot(map, address);
    for (size_t at = (hole + 1) & mask; map->slots[at].address != 0; at = (at + 1) & mask) {
        size_t home = home_of(map, map->slots[at].address);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (rival_map_slot){0, NULL};
    map->n_used--;
}

void rival_map_fini(rival_map *map) {
    free(map->slots);
    *map = (rival_map){0};
}
