/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spilling: before a request is refused it may get a closed region of its own
 * (docs/dev/decisions/0050), with device memory as far as there is some, and memory of the host for
 * what is missing:
 *
 *     |device handle|device handle|host handle .....|
 *
 * Freed and proven, its handles go to the caches of their kinds, so that the next request gets
 * device memory if there is some. No other region has memory of the host.
 *
 * While any of it is mapped, a part of the room is kept for requests of less than a granule and
 * others that never spill: no program shall end for lack of a few bytes.
 */
#ifndef DUCTILE_POOL_GROWTH_SPILL_H
#define DUCTILE_POOL_GROWTH_SPILL_H

#include "pool/blocks/arena.h"

/* Grow lock held by all of these, index lock not; it is unlocked while map callbacks run. */

/* The most that may be held once a request of that size has been served: UINT64_MAX, or what leaves
 * the part of small requests. */
uint64_t dpool_most_beside_small(const ductile_allocator *a, uint64_t size);

/* Granules of the device that may take the place of the host's now: cached, or still to be created.
 * *max_held: what may be held in all then. One driver call. */
uint64_t dpool_room_beside_small(ductile_allocator *a, uint64_t *max_held);

/* Where a request that spills gets its memory. */
typedef struct dpool_spill {
    uint64_t n_granules;
    uint64_t n_device;   /* of them, from the device        */
    uint64_t max_held;   /* of the device's memory          */
    uint64_t lacks_host; /* bytes that are missing, of the host */
    uint64_t n_refused;  /* granules that the device then did not give */
} dpool_spill;

/* Looks how much the device can give: free memory of all streams that is proven leaves its place
 * for it, as far as it is needed. `refused`: granules that the driver says are free and has refused
 * to earlier attempts. */
dpool_spill dpool_spill_prepare(ductile_allocator *a, uint64_t size, uint64_t refused);

/* Gives that memory to a region that was added for it: *out, LIVE. ERR_OUT_OF_MEMORY: lacks_host
 * bytes are missing, also in place of n_refused granules, or (0) the driver refuses. On failure the
 * region is gone, or QUARANTINED. */
ductile_status dpool_spill_fill(ductile_allocator *a, dpool_region *region, dpool_spill *spill,
                                uint64_t requested, dpool_block **out);

/* How many bytes of a block that has memory are the host's; none while its pool falls asleep or
 * wakes. Index lock held. */
uint64_t dpool_host_bytes_locked(const ductile_allocator *a, const dpool_block *b);

/* Index lock held, by this one alone: of the bytes that are spilled, those behind live and pending
 * blocks, and in pools that sleep. If there are any, linear in the blocks of closed regions that
 * were freed and are still mapped. */
uint64_t dpool_spilled_live_locked(const ductile_allocator *a, uint64_t spilled);

#endif
