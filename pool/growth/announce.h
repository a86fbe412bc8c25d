/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifies the map callbacks of the user where memory is mapped, and where it is about to leave. No
 * lock is held while a callback runs, yet memory must not be handed out before MAPPED was
 * announced, nor moved or unmapped before LEAVING was (M1). So all announced memory belongs to the
 * announcing thread alone: the BUSY blocks of its plan or its trim, which no other thread finds; a
 * pool that it has claimed; an import whose address is not known yet, or no longer. The thread
 * unlocks the grow lock for the callbacks and locks it again:
 *
 *     plan           donors, window -> BUSY       both locks
 *     LEAVING        the donors                   none
 *     execute        waits, map                   grow
 *     MAPPED         the window, unused donors;   none
 *                    after a failure the donors
 *     commit         BUSY -> LIVE, RETIRING       both
 *
 * Meanwhile other threads may plan and trim, each with a plan of its own. `n_announcing` counts the
 * threads that have unlocked the grow lock in the middle. While there are any, blocks are BUSY:
 * ductile_check checks nothing, and a pool's sleep waits, since such a plan may move its memory.
 *
 * An address that memory has left stays mapped for a while (RETIRING), and is unmapped unannounced.
 */
#ifndef DUCTILE_POOL_GROWTH_ANNOUNCE_H
#define DUCTILE_POOL_GROWTH_ANNOUNCE_H

#include "pool/growth/plan.h"

#include <ductile_share.h>

/* Called before and after the execution of the plan. Grow lock held before and after. */
void dpool_announce_plan_begin(ductile_allocator *a, const dpool_plan *p);
void dpool_announce_plan_end(ductile_allocator *a, const dpool_plan *p, bool is_done);

/* A BUSY block of whole handles has been mapped, or is about to leave. Grow lock held before and
 * after. */
void dpool_announce_block(ductile_allocator *a, ductile_map_change change, const dpool_block *b);

#endif
