/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dedicated blocks: each has a range of just its size, and one handle behind it. A library that
 * registers memory by handle (NCCL, RDMA) then finds one handle, and not a row of them. To all
 * other rooms the range is a region that serves no other block (dpool_close_region_locked).
 *
 *     LIVE -> (PENDING) -> FREE, leaving -> unmapped, the handle in the cache, the range gone
 *
 * Leaving memory serves no request: it is never split, merged, moved or found. It goes once it is
 * proven (U3), unless it is pinned: see give_back.h.
 *
 * With find:overruns every block is a dedicated one. It ends where its region does, and behind that
 * lie addresses of the same reservation that nothing is ever mapped at:
 *
 *     |pad, FREE|LIVE .............|  guard: one granule of addresses
 *     |<--- one handle ----------->|
 *
 * The pad is shorter than a granule, in no list, and becomes a part of the block at its free.
 */
#ifndef DUCTILE_POOL_GROWTH_DEDICATED_H
#define DUCTILE_POOL_GROWTH_DEDICATED_H

#include "pool/blocks/arena.h"

/* Adds the range of a block of so many bytes to the arena, as its first region. Grow lock held,
 * index lock not. ERR_OUT_OF_ADDRESSES, ERR_OUT_OF_HOST_MEMORY, ... */
ductile_status dpool_dedicated_add(ductile_allocator *a, dpool_arena *arena, uint64_t bytes);

/* Maps memory behind all of the segment, or none. */
typedef ductile_status (*dpool_fill_fn)(dseg_segment *seg, void *how);

/*
 * Closes that region, which gets memory and becomes a LIVE block; after a failure it is gone (or
 * QUARANTINED), and *out is NULL. Inside a call that names the arena's stream. Grow lock held; it
 * is unlocked meanwhile when map callbacks run (announce.h). Pre: room in the address map.
 */
ductile_status dpool_closed_fill(ductile_allocator *a, dpool_region *region, dpool_fill_fn fill,
                                 void *how, uint64_t requested, dpool_block **out);

/* The same with one handle. */
ductile_status dpool_dedicated_fill(ductile_allocator *a, dpool_region *region, uint64_t max_held,
                                    uint64_t requested, dpool_block **out);

#endif
