/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Acts on the progress of streams: pending blocks become free, retiring addresses are unmapped.
 */
#ifndef DUCTILE_POOL_STREAMS_PROGRESS_H
#define DUCTILE_POOL_STREAMS_PROGRESS_H

#include "pool/blocks/arena.h"

#include <limits.h>

/* Makes the old address of a donor, BUSY, RETIRING until the work on it is proven done; for longer
 * where memory keeps its old addresses, and this memory stays in its arena. Index lock held. */
void dpool_retire_locked(ductile_allocator *a, dpool_block *b, bool stays_in_arena);

/* May granules of the arena come back to addresses that they have left (growth/homes.h)? Where
 * larger handles are not made now, and no other stream of the arena's pool has any. */
bool dpool_keeps_old_addresses_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Makes [from, to) of a kept block, whole handles, a block in no list, and returns it; what lies
 * below and above stays kept. Pre: two spare nodes. Index lock held. */
dpool_block *dpool_carve_kept_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to);

/* Do gaps appear in the order of calls, whatever the GPU has done (progress.c)? */
bool dpool_retires_in_order(const ductile_allocator *a);

/* May a plan unmap proven memory, to exchange its handles for others? True where requests get
 * handles of several granules, and the held memory may depend on the progress of the GPU. */
static inline bool dpool_may_exchange(const ductile_allocator *a) {
    return dpool_has_large_handles(a) && !dpool_retires_in_order(a);
}

/* A marker for the retiring addresses that are too many, held for the caller; NULL for none, also
 * when they are proven. Index lock held. */
dvmm_marker *dpool_hold_marker_of_surplus_locked(const ductile_allocator *a,
                                                 const dpool_arena *arena);

/* Unmaps retiring addresses that are proven unused, about `most` granules of them, for a request of
 * the arena itself. Grow lock held, index lock not. */
void dpool_reclaim_own(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Unmaps kept addresses of the region that are proven unused, as far as they overlap the span. True
 * when there were any. Grow lock held, index lock not. */
bool dpool_unmap_kept(ductile_allocator *a, const dpool_region *region, ductile_addr from,
                      ductile_addr to);

/* Frees the pending blocks of an arena that are done, and unmaps about `most` granules of its
 * retiring addresses that are proven, for any request. Where gaps must appear in the order of
 * calls, unmaps none, unless most is UINT32_MAX. Grow lock held, index lock not. */
void dpool_poll(ductile_allocator *a, dpool_arena *arena, uint32_t most);

/* Reads the marks, polls every arena, and up to `most` spans with waits. With UINT32_MAX it applies
 * all that waits have proven. Grow lock held, index lock not. */
void dpool_poll_all(ductile_allocator *a, uint32_t most);

#endif
