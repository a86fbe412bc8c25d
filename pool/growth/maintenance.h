/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requests do besides. A hit polls pending blocks, marks its stream, and compacts; before
 * arena->maintenance_at none of it is due, and a hit only compares. A miss tidies before it looks
 * again.
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

/* Records a mark, inside a slow call on the stream of the arena. Reads the progress of all streams.
 * Unmaps about `most` granules of each arena's retiring addresses, and of what streams and pools
 * have left that are gone; drops arenas without memory. Grow lock held, index lock not; unlocked
 * while map callbacks run. */
void dpool_tidy(ductile_allocator *a, dpool_arena *arena, ductile_stream stream, uint32_t most);

#endif
