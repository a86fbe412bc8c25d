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

/*
 * When: live memory has dipped by a third of its peak and rises again, so it is near its low. A
 * deep dip, to less than three tenths, counts as soon as anything is allocated; from a shallow one
 * it must rise by an eighth of the way back, or every wiggle of a long descent would heal. Dips
 * that are small beside the memory the arena holds do not count.
 */
void dpool_note_rise_locked(dpool_arena *arena);
void dpool_note_dip_locked(dpool_arena *arena);

/* One piece of healing, unless somebody else holds the grow lock. No lock held. */
void dpool_heal(ductile_allocator *a, dpool_arena *arena);

#endif
