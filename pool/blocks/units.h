/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elastic ranges, as blocks: an arena that no request finds, with one region, whose units come and
 * go at addresses that the program names (docs/dev/decisions/0048).
 *
 *     |unit|unit|unit|unit|unit|unit|unit|unit ...............| end of the range
 *     |LIVE|LIVE|FREE     |LIVE|GAP                           |
 *      committed  decommitted   never committed, or its memory has left
 *
 * A unit that is committed is one LIVE block (B8), and handles lie inside units (S6): so each can
 * leave whole. What is free merges as everywhere. The blocks are all there is to know of the
 * range. Its FREE memory is found where all free memory is: by plans, as donors that are unmapped,
 * never moved; by trims; by callers of the range.
 */
#ifndef DUCTILE_POOL_BLOCKS_UNITS_H
#define DUCTILE_POOL_BLOCKS_UNITS_H

#include "pool/blocks/arena.h"

#include <ductile_elastic.h>

/* What the program has of a range. Owner: the arena, until the range is closed. */
struct ductile_elastic {
    ductile_allocator *allocator;
    dpool_arena *arena;
    dpool_region *region; /* the only one of the arena */
    uint64_t unit_bytes;
    uint64_t bytes;
};

/* Whole units of a range, from one address up to another. */
typedef struct dpool_units {
    const struct ductile_elastic *range;
    ductile_addr from;
    ductile_addr to;
} dpool_units;

static inline uint64_t dpool_units_bytes(const dpool_units *u) {
    return u->to - u->from;
}

static inline uint64_t dpool_count_units(const dpool_units *u) {
    return dpool_units_bytes(u) / u->range->unit_bytes;
}

/* The block that holds the first of the units, in whatever state. Looks from the nearest unit in
 * use on, or from the first block. Index lock held. */
dpool_block *dpool_units_first_locked(const ductile_allocator *a, const dpool_units *u);

enum { DPOOL_STATES = DPOOL_ASLEEP + 1 };

/* How many bytes of the units lie in blocks of each state. Index lock held. */
void dpool_units_sum_locked(const ductile_allocator *a, const dpool_units *u,
                            uint64_t bytes[DPOOL_STATES]);

/* Those of the units that are not in use become LIVE, if all of them are FREE and need no wait.
 * False when they are not, or when nodes or places in the address map are missing; then nothing
 * has changed. Index lock held. */
bool dpool_units_take_locked(ductile_allocator *a, const dpool_units *u);

#endif
