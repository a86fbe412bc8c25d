/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host waits for before memory can go, and what each wait proves:
 *
 *     who may still use it                         waited for are            proven then
 *     streams recorded on PENDING blocks           their markers             that use of the block
 *     the same, where spans with waits stand       their markers             that pair of the span
 *     the arena's own stream                       the stream, or a marker   what is FREE in the
 * arena graphs; streams of live blocks, or gone      the whole device          all, of this device
 *     streams of other GPUs, beside live blocks    markers recorded now      what they were
 * recorded on
 *
 * All of it is done without locks, in relaxed mode (the caller's), so that no capture of another
 * thread is broken. A poll afterwards finds what the waits have proven.
 */
#ifndef DUCTILE_POOL_STREAMS_QUIESCE_H
#define DUCTILE_POOL_STREAMS_QUIESCE_H

#include "pool/blocks/arena.h"

/* ---- Before memory goes -------------------------------------------------------------------- */

/* For FREE memory: waits for the work that keeps it from being proven, if that is possible. Linear.
 * ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_quiesce_free(ductile_allocator *a, const dpool_scope *s);

/*
 * Also memory of live blocks, of a pool that nobody uses. ERR_CAPTURING when that would break a
 * capture: beside one only the pool's own streams are waited for, which no graph may then use, nor
 * any other stream; and the errors of dpool_wait_recorded.
 */
ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool);

/* ---- The single waits; no lock held -------------------------------------------------------- */

/*
 * Waits for the oldest memory that recorded streams hold, `bytes` of it if there is so much; for
 * that of own (may be NULL) first. Returns how many bytes were covered: 0 when there are none, or
 * none that can be waited for. Linear in the blocks covered. A poll afterwards frees them; without
 * one the next call finds them again.
 */
uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes);

/* Markers of pending memory: as many waits, each for one, are enough for what is pending now. */
uint64_t dpool_count_pending_marks(ductile_allocator *a);

/* Waits for all work of the device: afterwards all free memory is proven. *idle (may be NULL): the
 * proof. ERR_CAPTURING when the wait would break a known capture; ERR_DRIVER, ... */
ductile_status dpool_wait_device(ductile_allocator *a, dseg_idle *idle);

/*
 * For the work, as of now, of every stream recorded on a block that is LIVE, PAUSED, PENDING or
 * behind a span with waits. A wait for the device covers none of another GPU's work, whose streams
 * may be recorded like ours once that GPU has access: so where one has, each is waited for by a
 * marker of its own (U12), and else this returns at once. Left to the wait for the device are
 * default streams, which are this device's, and streams that are gone whose last marker could not
 * be recorded (U1). ERR_CAPTURING, ERR_DRIVER, ... when a stream cannot be marked or waited for.
 * Linear in blocks and uses.
 */
ductile_status dpool_wait_recorded(ductile_allocator *a, const dpool_scope *s);

/* ---- Is there anything to wait for? -------------------------------------------------------- */

/* Is there FREE memory in granules that is not proven, or a pending block? Both locks held; without
 * the grow lock, pending blocks that a poll holds are not seen. */
bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Does a pool that no reference holds await a wait for the device, because graphs used it? */
bool dpool_awaits_device(ductile_allocator *a, const dpool_scope *s);

#endif
