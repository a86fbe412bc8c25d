/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that no request will use where it is: closed dedicated blocks, and what streams and pools
 * leave that are gone. Once proven it is unmapped into the handle cache, from which it serves
 * everybody, and its addresses are given back.
 *
 * All calls: grow lock held, index lock not; the grow lock is unlocked meanwhile when map callbacks
 * run, and arenas that hold nothing may go then.
 */
#ifndef DUCTILE_POOL_GROWTH_UNUSED_H
#define DUCTILE_POOL_GROWTH_UNUSED_H

#include "pool/blocks/arena.h"

/* Whose memory is meant besides closed blocks. */
typedef enum dpool_unused {
    DPOOL_UNUSED_CLOSED, /* none                                                    */
    DPOOL_UNUSED_GONE,   /* of streams and pools that are gone                      */
    DPOOL_UNUSED_IDLE    /* and of all streams that have no block in use or pending */
} dpool_unused;

/* Unmaps what is proven, about `most` granules of it. Returns the first error of the driver. */
ductile_status dpool_unused_reclaim(ductile_allocator *a, dpool_unused which, uint64_t most);

/* Gives back what is free, and proven, in handles larger than those that are made now: about `most`
 * granules of the arena. Returns how many went. Requests create small handles in their place. */
uint64_t dpool_unused_shrink(ductile_allocator *a, dpool_arena *arena, uint64_t most);

/* Gives back the ranges of arenas without memory, and those arenas that then hold nothing; with
 * `all` every empty range. */
void dpool_unused_drop(ductile_allocator *a, bool all);

#endif
