/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing the place of a request that no FREE block serves: a window in a run of FREE and GAP
 * blocks that needs the fewest new granules; the lowest address among equals.
 *
 *     LIVE [FREE][ GAP ][FREE][ GAP ... to the end of the range
 *          |<----- window ---->|
 *
 * Linear in the number of gaps, which healing keeps small.
 */
#ifndef DUCTILE_POOL_GROWTH_PLACEMENT_H
#define DUCTILE_POOL_GROWTH_PLACEMENT_H

#include "pool/blocks/arena.h"

typedef struct dpool_place {
    dpool_block *block; /* holds start; NULL: no run is long enough */
    ductile_addr start;
    uint64_t n_granules; /* how many the window lacks */
} dpool_place;

dpool_place dpool_place_choose_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size);

/* The lowest gap that holds all of it, for a stream that cannot have free memory as it is. */
dpool_place dpool_place_in_gap_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size);

#endif
