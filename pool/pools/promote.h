/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promotion: memory of the host behind blocks in use is exchanged for memory of the device that has
 * become free. It is a sleep of that memory alone, and its wake on the device, a part at a time:
 *
 *     copy to the host arena | LEAVING | exchange the handles | copy back | MAPPED
 *
 * Where the device's memory cannot be mapped, the host's is mapped again. Where that fails too, or
 * the copy back, the pool sleeps on with the part's kept contents, and all else stays mapped: a
 * wake puts memory of the device behind the part, as behind any other.
 */
#ifndef DUCTILE_POOL_POOLS_PROMOTE_H
#define DUCTILE_POOL_POOLS_PROMOTE_H

#include "pool/pools/sleep.h"

/* Exchanges memory of the host behind a claimed set (FALLING_ASLEEP) for the device's, as far as
 * that has room. On failure all pools are AWAKE, but where *sleeps_on the one that the report
 * names: that is ASLEEP with kept contents. No lock held. */
ductile_status dpool_promote_set(ductile_allocator *a, dpool_private_pool *set,
                                 ductile_sleep_report *report, bool *sleeps_on);

/* Before the set is claimed: free memory of the device goes back to the driver, as much as what has
 * spilled lacks. Waits for the work on it. No lock held. */
void dpool_make_room_for_spilled(ductile_allocator *a);

/* Has the pool, which is AWAKE and not claimed, blocks in use with memory of the host? Index lock
 * held. */
bool dpool_has_spilled_locked(const ductile_allocator *a, const dpool_private_pool *pool);

#endif
