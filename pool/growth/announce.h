/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the user's map callbacks where memory is mapped, and where it is about to leave. No lock
 * is held while one runs, and yet memory must not be handed out before it was announced, nor moved
 * or unmapped before it was said to leave (M1). So whatever is announced belongs to the announcing
 * thread alone: the BUSY blocks of its plan or its trim, which nobody else finds; a pool it has
 * claimed; an import whose address nobody knows yet, or any more. The grow lock is opened for the
 * callbacks and taken again:
 *
 *     plan           donors, window -> BUSY       both locks
 *     LEAVING        the donors                   none
 *     execute        marker, map                  slow
 *     MAPPED         the window, unused donors;   none
 *                    after a failure the donors
 *     commit         BUSY -> LIVE, RETIRING       both
 *
 * Meanwhile other threads may plan and trim, each with a plan of its own. `n_announcing` counts who
 * has opened the lock in the middle: then blocks are BUSY, so that ductile_check looks away, and
 * pausing a pool, whose memory such a plan may be moving, waits.
 *
 * An address that has been left stays mapped for a while (RETIRING), and then goes silently.
 */
#ifndef DUCTILE_POOL_GROWTH_ANNOUNCE_H
#define DUCTILE_POOL_GROWTH_ANNOUNCE_H

#include "pool/growth/plan.h"

/* Around the execution of the plan. Grow lock held before and after. */
void dpool_announce_plan_begin(ductile_allocator *a, const dpool_plan *p);
void dpool_announce_plan_end(ductile_allocator *a, const dpool_plan *p, bool is_done);

/* A BUSY block is about to be unmapped. Grow lock held before and after. */
void dpool_announce_leaving(ductile_allocator *a, const dpool_block *b);

#endif
