/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What requests do besides. A hit polls pending blocks, marks its stream, and compacts; before
 * arena->calls.maintenance_at none of it is due, and a hit only compares. A miss tidies before it
 * looks again.
 */
#ifndef DUCTILE_POOL_GROWTH_MAINTENANCE_H
#define DUCTILE_POOL_GROWTH_MAINTENANCE_H

#include "pool/blocks/arena.h"

/* What a hit has to know, bits of it: STOP is alone. The others are work that is left for when the
 * index lock is unlocked; the arena stays until then. */
enum {
    DPOOL_MAINTENANCE_STOP = 1, /* the pool is not awake: its sleep found no pin of this hit */
    DPOOL_MAINTENANCE_MARK = 2,
    DPOOL_MAINTENANCE_COMPACT = 4,
    DPOOL_MAINTENANCE_LATER = DPOOL_MAINTENANCE_MARK | DPOOL_MAINTENANCE_COMPACT
};

/* Runs before the request is served, which may get memory that became free; returns the bits. Index
 * lock held; may unlock it meanwhile. */
unsigned dpool_maintenance_begin_locked(ductile_allocator *a, dpool_arena *arena);

/* Does the rest of the maintenance, if any. No lock held. */
void dpool_maintenance_do(ductile_allocator *a, dpool_arena *arena, unsigned what);

/* Records a mark, inside a slow call on the stream of the arena. Reads the progress of all streams.
 * Unmaps about `most` granules of each arena's retiring addresses, and of what streams and pools
 * have left that are gone; drops arenas without memory. Grow lock held, index lock not; unlocked
 * while map callbacks run. */
void dpool_tidy(ductile_allocator *a, dpool_arena *arena, ductile_stream stream, uint32_t most);

#endif
