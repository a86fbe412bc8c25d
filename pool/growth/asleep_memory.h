/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory behind a pool that falls asleep: taking it away. A call that fails leaves nothing that
 * only one other call undoes: copies whose end was not seen are waited for again by each trim and
 * under pressure, and what was freed in a pool without references is unmapped again (drop_empty.h).
 */
#ifndef DUCTILE_POOL_GROWTH_ASLEEP_MEMORY_H
#define DUCTILE_POOL_GROWTH_ASLEEP_MEMORY_H

#include "pool/blocks/arena.h"
#include "pool/blocks/private_pool.h"

/* ---- No lock held -------------------------------------------------------------------------- */

/* Unmaps the memory of a pool whose blocks are ASLEEP, a part under each hold of the grow lock,
 * once no copy uses it. Cannot fail: memory that the driver refuses to unmap stays mapped, and
 * dpool_map_pool checks it; so does all memory of which copies may be under way. By the thread that
 * claimed the pool. */
void dpool_unmap_pool(ductile_allocator *a, dpool_private_pool *pool);

/* Makes the pool ASLEEP; its free blocks drop their granules. By the thread that claimed it. */
void dpool_finish_sleep(ductile_allocator *a, dpool_private_pool *pool);

/* Waits again for copies of sleeping pools whose end was not seen, and unmaps what they used. Of
 * one pool, or of all (NULL). True when a wait has succeeded. The caller has relaxed the capture
 * mode. */
bool dpool_finish_copies(ductile_allocator *a, const dpool_private_pool *of);

/* ---- Grow lock held, index lock not held ----------------------------------------------------- */

/* Unmaps what the driver would not unmap in a region of a pool that is asleep: the callbacks were
 * told that it leaves, and the proof of the sleep covers it still. */
void dpool_unmap_again(ductile_allocator *a, dpool_region *region);

#endif
