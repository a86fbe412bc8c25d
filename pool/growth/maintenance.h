/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allocation does besides where it is a hit: it looks at pending blocks, marks its stream,
 * heals. Before arena->maintenance_at none of it is due, and a hit only compares.
 */
#ifndef DUCTILE_POOL_GROWTH_MAINTENANCE_H
#define DUCTILE_POOL_GROWTH_MAINTENANCE_H

#include "pool/blocks/arena.h"

/* What is left to do once the index lock is open. The arena stays until then. */
typedef struct dpool_maintenance {
    bool mark;
    bool compact;
} dpool_maintenance;

/* Before the request is served, which may then get what has become free. The index lock is held,
 * and may be open for a while. */
dpool_maintenance dpool_maintenance_begin_locked(ductile_allocator *a, dpool_arena *arena);

/* The rest; only if there is any. No lock held. */
void dpool_maintenance_do(ductile_allocator *a, dpool_arena *arena, dpool_maintenance what);

#endif
