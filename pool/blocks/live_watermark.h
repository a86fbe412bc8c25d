/* SPDX-License-Identifier: Apache-2.0 */
/* When compaction is due: the peaks and dips of an arena's live memory. */
#ifndef DUCTILE_POOL_BLOCKS_LIVE_WATERMARK_H
#define DUCTILE_POOL_BLOCKS_LIVE_WATERMARK_H

#include "pool/blocks/arena.h"

/*
 * A compaction is due when live memory has dipped by a third of its peak and rises again, so that
 * it is near its low. A deep dip, to less than three tenths, counts as soon as anything is
 * allocated. From a shallow one live memory must rise by an eighth of the way back; otherwise every
 * wiggle of a long descent would start a compaction. Dips that are small beside the memory that the
 * arena holds do not count. Index lock held.
 */
void dpool_live_rose_locked(const ductile_allocator *a, dpool_arena *arena);
void dpool_live_dipped_locked(const ductile_allocator *a, dpool_arena *arena);

#endif
