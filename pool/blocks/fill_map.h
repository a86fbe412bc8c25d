/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of find:stale_writes: a bit for each unit of 512 bytes of a region, set while the
 * unit was freed and holds the pattern.
 *
 *     blocks   |LIVE |FREE . . . . . . . . . . . . . . . |LIVE
 *     bits      000000 1111111 000000 11111111111 0000000 0000
 *                      filled  never  filled
 *                              used
 *
 * Bits, and not spans with nodes, because a free may not fail, and FREE neighbours merge. A bit is
 * set behind a fill (streams/fill.h), and cleared when an allocation takes the unit, which then is
 * checked, or when memory leaves the address, which then is not.
 *
 * Guarded by the index lock. Without find:stale_writes, and for dedicated regions, there are no
 * bits, and every call does nothing.
 */
#ifndef DUCTILE_POOL_BLOCKS_FILL_MAP_H
#define DUCTILE_POOL_BLOCKS_FILL_MAP_H

#include "pool/blocks/arena.h"

/* Makes the bits of a new region, where the options want them. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_fill_map_init(const ductile_allocator *a, dpool_region *region);
void dpool_fill_map_fini(dpool_region *region);

/* Does the region keep bits? */
static inline bool dpool_has_fill_map(const dpool_region *region) {
    return region->filled != NULL;
}

/* The addresses from `addr` up to `end` hold the pattern. */
void dpool_fill_set(const dpool_region *region, ductile_addr addr, ductile_addr end);

/* They may hold anything. */
void dpool_fill_forget(const dpool_region *region, ductile_addr addr, ductile_addr end);

/* Is any unit of them known to hold the pattern? */
bool dpool_fill_is_any(const dpool_region *region, ductile_addr addr, ductile_addr end);

/* The first run in [*addr, end) that holds the pattern, of at most `most` bytes. Stores its bounds,
 * and forgets it. False when there is none. */
bool dpool_fill_take(const dpool_region *region, ductile_addr *addr, ductile_addr *end,
                     uint64_t most);

#endif
