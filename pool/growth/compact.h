/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Healing: when an arena's live memory dips, the lowest gaps of each run without LIVE blocks are
 * filled with handles from the run's own top, so that what recycling scattered lies together
 * again. In bounded pieces, one in each allocation call, until nothing is left to heal.
 *
 *     [FREE][ GAP ][FREE][ GAP ][FREE]LIVE     ->     [FREE FREE FREE][ GAP           ]LIVE
 */
#ifndef DUCTILE_POOL_GROWTH_COMPACT_H
#define DUCTILE_POOL_GROWTH_COMPACT_H

#include "pool/blocks/arena.h"

/* One piece of healing, unless somebody else holds the grow lock. No lock held. */
void dpool_compact(ductile_allocator *a, dpool_arena *arena);

#endif
