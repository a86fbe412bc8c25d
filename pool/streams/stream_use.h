/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that use a block besides its own (record_stream). At the free a marker is recorded on
 * each; the block is PENDING until all are done. A marker that could not be recorded keeps the
 * block pending until a context marker from after the free is done: a failed record never means
 * "free" (U1).
 *
 * Markers of uses are numbered under the index lock, before they are recorded and behind the work
 * that they are to prove: of two on one stream the one with the higher number proves all that the
 * other one does, in whatever order threads came to record them (U11).
 */
#ifndef DUCTILE_POOL_STREAMS_STREAM_USE_H
#define DUCTILE_POOL_STREAMS_STREAM_USE_H

#include "pool/blocks/arena.h"

/* Adds a use to the live block at addr. No lock held. */
ductile_status dpool_use_add(ductile_allocator *a, ductile_addr addr, ductile_stream stream);

/* Marks the uses of a stream that ends, so that later calls need not pass it to the driver.
 * *is_named: a free that began before is not finished, and the caller must call again. Grow lock
 * held, index lock not. */
ductile_status dpool_uses_end(ductile_allocator *a, ductile_stream stream, bool *is_named);

/* Is a free under way that records a marker on the stream? Linear. Both locks held. */
bool dpool_uses_name_locked(const ductile_allocator *a, ductile_stream stream);

/* Makes a block that has just left the address map with its uses PENDING; it is in transit until
 * polls may see it. Index lock held. */
void dpool_pending_begin_locked(ductile_allocator *a, dpool_block *b);

/* Is the PENDING block with these uses in no list yet? Index lock held. */
static inline bool dpool_is_in_transit(const dpool_use *uses) {
    return uses->pending_next == uses;
}

/* Records the markers, and puts the block into the pending list; false when the block became free
 * at once instead, behind a wait on the GPU. No lock held. */
bool dpool_pending_record(ductile_allocator *a, dpool_use *uses);

/* Takes the pending list out of the arena. *proven_age: what context markers have proven by then.
 * Grow lock held, index lock not. */
dpool_pending_list dpool_pending_take(ductile_allocator *a, dpool_arena *arena,
                                      uint64_t *proven_age);

/* Puts the list back in front: its blocks were freed before those added meanwhile. Grow lock held;
 * the index lock may be held. */
void dpool_pending_put_back_locked(ductile_allocator *a, dpool_arena *arena,
                                   dpool_pending_list kept);
void dpool_pending_put_back(ductile_allocator *a, dpool_arena *arena, dpool_pending_list kept);

/* Makes blocks FREE whose uses are all done, a list linked by pending_next, and drops the uses.
 * Index lock not held. */
void dpool_pending_finish(ductile_allocator *a, dpool_use *done);

/* Makes some of these blocks FREE and drops their uses; returns the rest. Index lock held. */
dpool_use *dpool_pending_finish_some_locked(ductile_allocator *a, dpool_use *done);

/* Marks uses that could not be marked at the free because a capture was under way: those of
 * `stream`, or with `all` those of every stream that this thread may name. Grow lock held, index
 * lock not. */
void dpool_mark_unmarked(ductile_allocator *a, ductile_stream stream, bool all);

#endif
