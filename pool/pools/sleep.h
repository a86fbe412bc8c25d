/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep and wake: the memory behind a pool's live blocks goes back to the driver, their addresses
 * stay (phases: blocks/phase.h).
 *
 *     phase           live blocks are      granules under ASLEEP and FREE blocks
 *     AWAKE           LIVE                 MAPPED
 *     FALLING_ASLEEP  LIVE, then ASLEEP    MAPPED
 *     ASLEEP          ASLEEP               EMPTY; MAPPED where the driver would not unmap, and
 *                                          where copies may be under way (is_unbacked)
 *     WAKING          ASLEEP               EMPTY, then MAPPED
 *
 * An ASLEEP block stays in the address map: callers may free it or query it. A block that is freed
 * in the phase ASLEEP drops its granules at once, unless graphs may own them. A block that was
 * freed in the phase FALLING_ASLEEP drops them at the end of that phase.
 *
 * A pool without references, all of whose blocks were freed while it was ASLEEP, goes with its
 * granules. Where some of them stayed, being pinned, it becomes AWAKE by itself (asleep_memory.h).
 */
#ifndef DUCTILE_POOL_POOLS_SLEEP_H
#define DUCTILE_POOL_POOLS_SLEEP_H

#include "pool/pools/pools.h"

#include <string.h>

/* Puts to sleep the pools of a set that the caller has claimed (FALLING_ASLEEP), which are linked
 * by next_in_set: all or none. On failure all are AWAKE, and the report names the pool that it
 * failed for, if it is one. No lock held. */
ductile_status dpool_sleep_set(ductile_allocator *a, dpool_private_pool *set,
                               ductile_sleep_report *report);

/* Wakes them (WAKING): all or none. On failure all are ASLEEP. */
ductile_status dpool_wake_set(ductile_allocator *a, dpool_private_pool *set,
                              ductile_sleep_report *report);

/* The report is about this pool. */
static inline void dpool_report_pool(ductile_sleep_report *report, const dpool_private_pool *pool) {
    report->pool = pool->id;
    memcpy(report->tag, pool->tag, sizeof report->tag);
}

/* The two ends of a call that moves memory of live blocks and lets no pool sleep: the blocks of the
 * claimed set fall ASLEEP once all work on them is done, and are LIVE again at the same addresses.
 * After a failure the second follows as well. */
ductile_status dpool_still_set(ductile_allocator *a, dpool_private_pool *set,
                               ductile_sleep_report *report);
void dpool_run_again(ductile_allocator *a, dpool_private_pool *pool);

/* How many more bytes must be free for the set to be woken, after a refusal. */
uint64_t dpool_missing_bytes(ductile_allocator *a, const dpool_private_pool *set);

/* Maps memory behind the pool again, all of it or none, and begins to copy contents into what is
 * mapped; dvmm_host_copy_end_restore waits for them. ERR_OUT_OF_MEMORY, ... No lock held. */
ductile_status dpool_map_pool(ductile_allocator *a, dpool_private_pool *pool);

/* The bytes that dpool_map_pool needs besides what has stayed mapped. No lock held. */
uint64_t dpool_bytes_to_map(ductile_allocator *a, const dpool_private_pool *pool);

/* Notifies the map callbacks of all handles that leave when the claimed set falls asleep, or that
 * are mapped again. Handles that stay because they are pinned are marked in the segments and not
 * announced. No lock held. ERR_OUT_OF_HOST_MEMORY: no callback was called. */
ductile_status dpool_announce_set(ductile_allocator *a, const dpool_private_pool *set,
                                  ductile_map_change change);

#endif
