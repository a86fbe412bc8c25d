/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waits of the host before memory can go, and what each of them proves:
 *
 *     possible users                          the host waits for    proven then
 *     streams recorded on PENDING blocks      their markers         that use of the block
 *     streams recorded in spans with waits    their markers         that pair of the span
 *     all of the context, graphs too          a context marker      all FREE memory
 *         where none may be recorded:         the whole device      all FREE memory
 *         beside a capture:                   the stream            what it was joined for
 *     a stream of another context             it, or its marker     that, and what both prove
 *     streams of other GPUs, at live blocks   markers, made now     the blocks they used
 *
 * "What it was joined for" is memory of its arena that was freed before an allocation on the stream
 * (arena.h, joined_age): the program may free first and order the stream behind other streams'
 * work later.
 *
 * The caller is in relaxed mode, so that no capture of another thread is broken, and holds no lock.
 * A poll afterwards applies what the waits have proven.
 */
#ifndef DUCTILE_POOL_STREAMS_QUIESCE_H
#define DUCTILE_POOL_STREAMS_QUIESCE_H

#include "pool/blocks/arena.h"

/* ---- Before memory goes -------------------------------------------------------------------- */

/* For FREE memory of a pool, NULL for all: waits for the work that keeps it from being proven,
 * where that is possible. What could not be waited for is not proven, and stays. Linear. */
void dpool_quiesce_free(ductile_allocator *a, const dpool_private_pool *of);

/* For all memory of a pool, live blocks included, that no call uses. ERR_CAPTURING when the wait
 * would break a capture; ERR_DRIVER, ... when a recorded stream cannot be waited for. *idle: the
 * proof. */
ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool,
                                  dseg_idle *idle);

/* For all memory, live blocks included, while no other call runs: destroying. Waits for recorded
 * streams of other GPUs, for streams of other contexts, and for the device; beside a capture of
 * another thread, which that would break, for each stream, and then no graph may use the memory and
 * no stream be recorded: ERR_CAPTURING. *idle: the proof, if there is one. */
ductile_status dpool_quiesce_all(ductile_allocator *a, dseg_idle *idle);

/* ---- The single waits; no lock held -------------------------------------------------------- */

/*
 * Waits for the oldest memory that recorded streams hold, `bytes` of it if there is so much; for
 * that of own (may be NULL) first. Returns how many bytes were covered: 0 when there are none, or
 * none that can be waited for. Linear in the blocks covered. A poll afterwards frees them; without
 * one the next call finds them again.
 */
uint64_t dpool_wait_oldest(ductile_allocator *a, const dpool_arena *own, uint64_t bytes);

/* The number of markers of pending memory. That many waits, one for each, suffice for what is
 * pending now. */
uint64_t dpool_count_pending_marks(ductile_allocator *a);

/* Marks uses that a capture kept from being marked, once it is over: where they are of another
 * context, or of a GPU that has access, no proof for the context stands in for them.
 * No lock held. */
void dpool_mark_what_captures_left(ductile_allocator *a);

/* Waits for all work, by a context marker where one may be recorded, else for the whole device:
 * afterwards all free memory of streams of our context is proven. Then for each stream of another
 * context, if that may prove free memory of its own; not for one that cannot be waited for.
 * ERR_CAPTURING when the wait would break a known capture; ERR_DRIVER, ... *idle (may be NULL): the
 * proof for our context. */
ductile_status dpool_wait_for_all_work(ductile_allocator *a, dseg_idle *idle);

/* ---- Is there anything to wait for? -------------------------------------------------------- */

/* May the memory of the FREE block be unmapped (U3)? Index lock held. */
bool dpool_is_proven_locked(const ductile_allocator *a, const dpool_block *b);

/* The topmost run of its granules that may be; where a capture forbids the wait for the device,
 * what was freed lately is not among them. Index lock held. */
dseg_span dpool_proven_part_locked(const ductile_allocator *a, const dpool_block *b);

/* Is there FREE memory in granules that is not proven, or a pending block? Both locks held; without
 * the grow lock, pending blocks that a poll holds are not seen. */
bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Is there leaving memory (growth/dedicated.h) that may go once it is proven, and is not? */
bool dpool_awaits_leaving_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Does a pool that no reference holds await a proof for the whole device,
 * because graphs used it? */
bool dpool_awaits_device(ductile_allocator *a);

#endif
