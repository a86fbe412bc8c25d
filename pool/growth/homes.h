/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Homes: where a granule has been mapped first. What a plan moves within its arena stays mapped at
 * the old address too (docs/dev/decisions/0037). While that memory is free, it can serve at any
 * address that still maps it, and no driver call is needed:
 *
 *     move       A FREE      B GAP        ->  A RETIRING, kept   B LIVE      map, access
 *     go home    A RETIRING  B FREE       ->  A FREE             B RETIRING  none
 *     come back  A FREE      B RETIRING   ->  A RETIRING         B FREE      none
 *
 * At dips, and first thing in a miss, free memory goes home. So each step of a program begins with
 * the same layout, the same place is chosen for its next large request, and what was moved there
 * before comes back. An old address is unmapped when its place is wanted for other memory, when
 * more than half of what is mapped is kept besides, and before its handle can go back to the
 * driver.
 *
 * Only within one arena: order of work on its stream is order of use, whichever address the work
 * names (docs/dev/decisions/0008). Frozen arenas do neither (G1).
 */
#ifndef DUCTILE_POOL_GROWTH_HOMES_H
#define DUCTILE_POOL_GROWTH_HOMES_H

#include "pool/blocks/arena.h"

/* Sends the free memory of the arena home. True when any went. Grow lock held, index lock not. */
bool dpool_go_home(ductile_allocator *a, dpool_arena *arena);

/* Prepares the best place for a request, if old addresses lie in it: what is free elsewhere comes
 * back, other old addresses there are unmapped. True when anything has changed. Grow lock held,
 * index lock not. */
bool dpool_open_place(ductile_allocator *a, dpool_arena *arena, uint64_t size);

#endif
