/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions: the address ranges of arenas. This file adds them, gives empty ones back, and translates
 * the states of their segments to blocks.
 */
#ifndef DUCTILE_POOL_BLOCKS_REGION_H
#define DUCTILE_POOL_BLOCKS_REGION_H

#include "pool/blocks/arena.h"

#include <ductile_share.h>

/* Adds a range of at least need_bytes to the arena, as its first region. Grow lock held, index lock
 * not. */
ductile_status dpool_region_add(ductile_allocator *a, dpool_arena *arena, uint64_t need_bytes);

/* The same of exactly so many bytes, in whole granules, and guard_bytes of addresses behind it that
 * nothing is ever mapped at. */
ductile_status dpool_region_add_exact(ductile_allocator *a, dpool_arena *arena, uint64_t bytes,
                                      uint64_t guard_bytes);

/* Gives back empty ranges, whose only block is a GAP. Grow lock held, index lock not. */
void dpool_regions_release_empty(ductile_allocator *a, dpool_arena *arena);

/* Gives the range of an unlinked region back, and frees the region. */
ductile_status dpool_region_destroy(dpool_region *region);

/* Iterate over the regions of a pool, NULL for all, and over their blocks: the first after NULL,
 * NULL after the last. Either lock held for regions, the index lock for blocks. */
dpool_region *dpool_next_region(const ductile_allocator *a, const dpool_private_pool *of,
                                const dpool_region *before);
dpool_block *dpool_next_block(const ductile_allocator *a, const dpool_private_pool *of,
                              const dpool_block *before);

/* The block that holds the address, in whatever state; NULL: no region does. Linear in the region.
 * Index lock held. */
dpool_block *dpool_block_at_locked(const ductile_allocator *a, ductile_addr addr);

/* The granules of a block that handles of the host back: its last ones, and none unless it is
 * spilled. By the thread that owns its pool, or under either lock. */
dseg_span dpool_host_granules(const dpool_block *b);

/* The bytes of a block before those, likewise. */
uint64_t dpool_device_bytes(const dpool_block *b);

/* The memory of the pool's own arenas, in bytes. Either lock held. */
uint64_t dpool_mapped_of(const ductile_allocator *a, const dpool_private_pool *pool);

/* Why no live block starts at addr: FOREIGN, INTERIOR or NOT_LIVE. Index lock held. */
ductile_status dpool_explain_miss_locked(const ductile_allocator *a, ductile_addr addr);

/* Counts the addresses that the region's segment spans now. Both locks held. */
void dpool_count_span_locked(ductile_allocator *a, dpool_region *region);

/* Memory of the arena's own has come, or gone (negative). */
void dpool_count_mapped_locked(ductile_allocator *a, dpool_arena *arena, int64_t change);

/* Makes the block a GAP when status is OK, QUARANTINED when the driver refused to unmap it. Both
 * locks held. */
void dpool_unmapped_to_gap_locked(ductile_allocator *a, dpool_block *b, ductile_status status);

/* The same for a span that counts as mapped: no RETIRING one. */
void dpool_mapped_to_gap_locked(ductile_allocator *a, dpool_block *b, ductile_status status);

/* The event for the handle that begins at granule `first`. */
ductile_map_event dpool_map_event_at(const ductile_allocator *a, ductile_map_change change,
                                     const dpool_region *region, uint32_t first);

/* Tells of each handle in n granules, which only this thread may change now.
 * No lock held. */
void dpool_notify_granules(ductile_allocator *a, ductile_map_change change,
                           const dpool_region *region, uint32_t first, uint32_t n);

#endif
