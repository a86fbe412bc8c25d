/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of pools that sleep: what has no memory there, and what becomes of blocks that are freed.
 * Index lock held.
 */
#ifndef DUCTILE_POOL_BLOCKS_ASLEEP_BLOCKS_H
#define DUCTILE_POOL_BLOCKS_ASLEEP_BLOCKS_H

#include "pool/blocks/arena.h"

/* Makes an ASLEEP block, out of the address map, FREE. Returns its uses, whose work was done before
 * the sleep; the caller drops them without the lock. */
dpool_use *dpool_free_asleep_locked(ductile_allocator *a, dpool_block *b);

/* Makes the first run of whole granules that can go a GAP, or QUARANTINED when its granules are, in
 * the first FREE block of the region, of an unbacked pool, that has such a run. False when none
 * has, or there is no spare node. */
bool dpool_drop_any_granules_locked(ductile_allocator *a, dpool_region *region);

/* Has the FREE block no memory? So it is in a pool that sleeps, except where memory was pinned, or
 * the driver did not unmap it. While the pool is falling asleep, none counts. */
bool dpool_has_no_memory_locked(const ductile_allocator *a, const dpool_block *b);

/* The number of such blocks in the arena. Linear where memory stayed, else in the regions. */
uint64_t dpool_count_without_memory_locked(const ductile_allocator *a, const dpool_arena *arena);

#endif
