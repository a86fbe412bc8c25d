/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of find:stale_writes: a bit for each unit of 512 bytes of a range, set while the
 * unit was freed and holds the pattern.
 *
 *     blocks   |LIVE |FREE . . . . . . . . . . . . . . . |LIVE
 *     bits      000000 1111111 000000 11111111111 0000000 0000
 *                      filled  never  filled
 *                              used
 *
 * Bits, and not spans with nodes, because a free may not fail, and FREE neighbours merge. A bit is
 * set behind a fill (fill.h), and cleared when an allocation takes the unit, which then is
 * checked, or when memory leaves the address, which then is not.
 *
 * Guarded by the index lock.
 */
#ifndef DUCTILE_POOL_SERVICES_FILL_FILL_MAP_H
#define DUCTILE_POOL_SERVICES_FILL_FILL_MAP_H

#include <ductile.h>

#include <stdbool.h>

typedef struct dpool_fill_map dpool_fill_map;
struct dpool_fill_map {
    dpool_fill_map *next; /* the owner's */
    ductile_addr base;
    uint64_t size;
    uint64_t *bits;
};

/* Owner: the caller. NULL when the host has no memory. */
dpool_fill_map *dpool_fill_map_new(ductile_addr base, uint64_t size);
void dpool_fill_map_free(dpool_fill_map *map);

/* The addresses from `addr` up to `end` hold the pattern. */
void dpool_fill_set(const dpool_fill_map *map, ductile_addr addr, ductile_addr end);

/* They may hold anything. */
void dpool_fill_forget(const dpool_fill_map *map, ductile_addr addr, ductile_addr end);

/* Is any unit of them known to hold the pattern? */
bool dpool_fill_is_any(const dpool_fill_map *map, ductile_addr addr, ductile_addr end);

/* The first run in [*addr, end) that holds the pattern, of at most `most` bytes. Stores its bounds,
 * and forgets it. False when there is none. */
bool dpool_fill_take(const dpool_fill_map *map, ductile_addr *addr, ductile_addr *end,
                     uint64_t most);

#endif
