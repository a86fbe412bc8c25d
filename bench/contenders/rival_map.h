/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map from a live address to what the rival keeps about it: open addressing, half full at
 * most, no tombstones. */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_MAP_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_MAP_H

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct rival_map_slot {
    ductile_addr address; /* 0: empty */
    void *value;
} rival_map_slot;

/* All zero is an empty map. */
typedef struct rival_map {
    rival_map_slot *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_used;
} rival_map;

/* Makes room for one more entry, so that the next insert cannot fail. False: no host memory. */
bool rival_map_reserve(rival_map *map);
/* Pre: rival_map_reserve succeeded since the last insert; the address is new and not 0. */
void rival_map_insert(rival_map *map, ductile_addr address, void *value);
void *rival_map_find(const rival_map *map, ductile_addr address);
/* Pre: the address is in the map. */
void rival_map_remove(rival_map *map, ductile_addr address);
void rival_map_fini(rival_map *map);

#endif
