/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maintenance that a hit does besides: it polls pending blocks, marks its stream, and compacts.
 * Before arena->maintenance_at none of it is due, and a hit only compares.
 */
#ifndef DUCTILE_POOL_GROWTH_MAINTENANCE_H
#define DUCTILE_POOL_GROWTH_MAINTENANCE_H

#include "pool/blocks/arena.h"

/* The work that is left for when the index lock is unlocked. The arena stays until then. */
typedef struct dpool_maintenance {
    bool mark;
    bool compact;
} dpool_maintenance;

/* Runs before the request is served, which may get memory that became free. Index lock held; may
 * unlock it meanwhile. */
dpool_maintenance dpool_maintenance_begin_locked(ductile_allocator *a, dpool_arena *arena);

/* Does the rest of the maintenance, if any. No lock held. */
void dpool_maintenance_do(ductile_allocator *a, dpool_arena *arena, dpool_maintenance what);

#endif
