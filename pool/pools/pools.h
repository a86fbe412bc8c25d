/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that open and close private pools, and the pool that a request belongs to. */
#ifndef DUCTILE_POOL_POOLS_POOLS_H
#define DUCTILE_POOL_POOLS_POOLS_H

#include "pool/blocks/private_pool.h"

/* Are pools open? Without the lock, for a request of this thread to ask. */
static inline bool dpool_has_routes(const ductile_allocator *a) {
    return atomic_load_explicit(&a->has_routes, memory_order_relaxed);
}

/* Makes the default pool. Creating only. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_default_pool_make(ductile_allocator *a);

/* Drops a reference of the pool. Returns it when nothing needs it any more, for the caller to free
 * without the lock; else NULL. Index lock held. */
dpool_private_pool *dpool_drop_reference_locked(ductile_allocator *a, dpool_private_pool *pool);

/* The default pool has fallen asleep or woken: requests of its own find it so. */
void dpool_default_pool_changed_locked(ductile_allocator *a);

/* Finds the pool of a request of this thread and pins it; dpool_unpin drops the
 * pin. ERR_ASLEEP when the pool sleeps. No lock held; calls filters. */
ductile_status dpool_pool_of(ductile_allocator *a, uint64_t bytes, ductile_stream stream,
                             dpool_private_pool **out);

/* Frees all routes: no pool is open any more. Destroying only. */
void dpool_routes_fini(ductile_allocator *a);

/* Frees all pools and routes. Destroying only. */
void dpool_pools_fini(ductile_allocator *a);

#endif
