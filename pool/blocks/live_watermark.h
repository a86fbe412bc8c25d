/* SPDX-License-Identifier: Apache-2.0 */
/* When compaction is due: the peaks and dips of an arena's live memory. */
#ifndef DUCTILE_POOL_BLOCKS_LIVE_WATERMARK_H
#define DUCTILE_POOL_BLOCKS_LIVE_WATERMARK_H

#include "pool/blocks/arena.h"

/*
 * When: live memory has dipped by a third of its peak and rises again, so it is near its low. A
 * deep dip, to less than three tenths, counts as soon as anything is allocated; from a shallow one
 * it must rise by an eighth of the way back, or every wiggle of a long descent would start a
 * compaction. Dips that are small beside the memory the arena holds do not count.
 */
void dpool_live_rose_locked(dpool_arena *arena);
void dpool_live_dipped_locked(dpool_arena *arena);

#endif
