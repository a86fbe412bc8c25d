/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds nothing any more goes: ranges, arenas, and what was freed in pools that sleep. Where
 * nothing but memory that was pinned is left of a sleeping pool without references, the pool wakes
 * by itself, so that its memory goes as that of others.
 */
#ifndef DUCTILE_POOL_GROWTH_DROP_EMPTY_H
#define DUCTILE_POOL_GROWTH_DROP_EMPTY_H

#include "pool/blocks/arena.h"

/* Gives back the ranges of arenas without memory, and drops those arenas that then hold nothing;
 * with `all` every empty range. Grow lock held, index lock not. */
void dpool_drop_empty(ductile_allocator *a, bool all);

#endif
