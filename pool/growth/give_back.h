/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving memory back: to the driver, or to the handle cache, from which it serves every stream. All
 * memory that leaves its address, but for what a plan moves or a sleep takes, leaves it here: whole
 * handles of FREE memory, proven done, run by run; map callbacks hear of each before it goes.
 *
 *     of                          how much               in this order        to
 *     all arenas, or one pool     until `keep` are held  by address, topmost  the driver
 *     one arena, large handles    `most` granules        largest block first  the driver
 *     leaving memory, and what    `most` granules        largest block first  the cache
 *     no request will use there
 */
#ifndef DUCTILE_POOL_GROWTH_GIVE_BACK_H
#define DUCTILE_POOL_GROWTH_GIVE_BACK_H

#include "pool/blocks/arena.h"

/* ---- No lock held -------------------------------------------------------------------------- */

/* Releases memory until at most keep_bytes are held, as far as free memory allows, after waiting
 * for the streams that used it. */
ductile_status dpool_trim(ductile_allocator *a, uint64_t keep_bytes);

/* The same of one pool; the handle cache stays as it is. */
ductile_status dpool_trim_pool(ductile_allocator *a, const struct dpool_private_pool *pool,
                               uint64_t keep_bytes);

/* Releases up to `bytes` of free mapped memory, and spares the handle cache. Without may_wait, only
 * memory that is already proven done. False when nothing was released. */
bool dpool_give_back(ductile_allocator *a, uint64_t bytes, bool may_wait);

/* ---- Grow lock held, unlocked while map callbacks run; index lock not held ------------------- */

/* What no request will use where it is. */
typedef enum dpool_unused {
    DPOOL_UNUSED_LEAVING, /* what is in the arenas' lists of leaving memory            */
    DPOOL_UNUSED_GONE,    /* and all of streams and pools that are gone                */
    DPOOL_UNUSED_IDLE,    /* and of all streams that have no block in use or pending   */
    DPOOL_UNUSED_FREE     /* and what else is free                                     */
} dpool_unused;

/* Unmaps what is proven of it into the handle cache, about `most` granules. Returns the first error
 * of the driver. */
ductile_status dpool_unmap_unused(ductile_allocator *a, dpool_unused which, uint64_t most);

#endif
