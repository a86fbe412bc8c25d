/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compaction: when the live memory of an arena dips, the lowest gaps of each run without LIVE
 * blocks are filled with handles from the top of the run, so that memory that recycling scattered
 * is contiguous again. Each allocation call compacts one bounded piece, until no gap is left to
 * fill.
 *
 *     [FREE][ GAP ][FREE][ GAP ][FREE]LIVE     ->     [FREE FREE FREE][ GAP           ]LIVE
 */
#ifndef DUCTILE_POOL_GROWTH_COMPACT_H
#define DUCTILE_POOL_GROWTH_COMPACT_H

#include "pool/blocks/arena.h"

/* Compacts one piece, unless another thread holds the grow lock. No lock held. */
void dpool_compact(ductile_allocator *a, dpool_arena *arena);

#endif
