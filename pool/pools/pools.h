/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that open and close private pools, and the pool that a request belongs to. */
#ifndef DUCTILE_POOL_POOLS_POOLS_H
#define DUCTILE_POOL_POOLS_POOLS_H

#include "pool/blocks/private_pool.h"

/* Are pools open? Without the lock, for a request of this thread to ask. */
static inline bool dpool_has_routes(const ductile_allocator *a) {
    return atomic_load_explicit(&a->has_routes, memory_order_relaxed);
}

/* Finds the pool of a request of this thread (NULL for none) and pins it; dpool_unpin drops the
 * pin. ERR_ASLEEP when the pool sleeps. No lock held; calls filters. */
ductile_status dpool_pool_of(ductile_allocator *a, uint64_t bytes, ductile_stream stream,
                             dpool_private_pool **out);

/* Keeps for this thread that its request was refused because its pool sleeps. Index lock held. */
void dpool_note_refusal_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                               uint64_t bytes);

/* Frees all routes: no pool is open any more. Destroying only. */
void dpool_routes_fini(ductile_allocator *a);

/* Frees all pools and routes. Destroying only. */
void dpool_pools_fini(ductile_allocator *a);

#endif
