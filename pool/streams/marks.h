/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Marks: markers that prove the end of all work on memory that was freed before they were recorded.
 *
 * A context marker stands behind everything that was submitted to the context, on whatever stream.
 * All work that uses a block is submitted before the block is freed. So once the marker is done, no
 * work is under way on what was freed before (U2); no stream has to be named, and none has to live.
 *
 * A record while any stream of the context is being captured fails and breaks that capture. So none
 * is recorded while a capture may be under way (U6): see the option `captures`. There, and with
 * drivers that have no context markers, a marker of one stream proves this for what was freed
 * before an allocation on that stream (proofs.h, joined_age), and other memory waits for the host
 * (host_waits.h).
 *
 * Many may be under way. The host learns of them when it polls.
 */
#ifndef DUCTILE_POOL_STREAMS_MARKS_H
#define DUCTILE_POOL_STREAMS_MARKS_H

#include "pool/blocks/arena.h"
#include "vmm/base/fault.h"

/* May context markers be recorded, as far as options, driver and earlier refusals go? A capture may
 * still forbid it at times. No lock needed. */
bool dpool_has_context_marks(const ductile_allocator *a);

/* Has at least that much memory been freed since the last record? Index lock held. */
bool dpool_mark_is_due_locked(const ductile_allocator *a, uint64_t bytes);

/* More than frees waits for a proof: the next record is due. Index lock held. */
void dpool_want_mark_locked(ductile_allocator *a);

/* Moves the clock on: what is freed from now on is younger than all before (U8). Returns the age of
 * a proof of what was freed before. Index lock not held. */
uint64_t dpool_advance_clock(ductile_allocator *a);

/*
 * Records a mark. Pre: inside an allocation on the stream of the arena, or NULL; index lock not
 * held. Does nothing when nothing was freed since the last one. ERR_CAPTURING, ERR_DRIVER, ... when
 * nothing could be recorded: then nothing is proven (U1).
 */
ductile_status dpool_record_mark(ductile_allocator *a, dpool_arena *arena);

/* The same before the arena is detached from its stream, outside of an allocation. A mark of the
 * stream alone replaces an earlier one that is under way, and stands behind all of its own work. */
ductile_status dpool_record_last_mark(ductile_allocator *a, dpool_arena *arena);

/* Records a context marker. ERR_CAPTURING where none may be recorded; ERR_DRIVER, ... *held (may be
 * NULL): the mark, its marker held for the caller. No lock held. */
ductile_status dpool_mark_context(ductile_allocator *a, dpool_mark *held);

/* Takes a context mark that is done, and those before it, for the proof that they are. No lock
 * held. */
void dpool_accept_mark(ductile_allocator *a, const dpool_mark *done);

/* Reads the marks under way. Grow lock held, index lock not. */
void dpool_poll_marks(ductile_allocator *a);

/* The oldest context marker under way that proves memory of the age, held for the caller; NULL when
 * there is none. Index lock held. */
dvmm_marker *dpool_hold_mark_of_locked(const ductile_allocator *a, uint64_t age);

/* The age below which context markers, done or not, prove FREE memory of the arena; the same on
 * every run, whatever the GPU has done. Index lock held. */
uint64_t dpool_marked_age_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Drops the context markers under way. Destroying only. */
void dpool_marks_fini(ductile_allocator *a);

/* Recounts the context markers under way (A6), and records the first invariant that does not hold
 * in *fault. Both locks held. */
void dpool_marks_check_locked(const ductile_allocator *a, dti_fault *fault);

#endif
