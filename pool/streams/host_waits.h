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
 * (proofs.h, joined_age): the program may free first and order the stream behind other streams'
 * work later.
 *
 * The caller is in relaxed mode, so that no capture of another thread is broken, and holds no lock.
 * A poll afterwards applies what the waits have proven.
 */
#ifndef DUCTILE_POOL_STREAMS_HOST_WAITS_H
#define DUCTILE_POOL_STREAMS_HOST_WAITS_H

#include "pool/blocks/arena.h"

/* ---- Memory behind recorded streams -------------------------------------------------------- */

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

/* Waits for the work of all that is pending now. */
void dpool_wait_for_pending(ductile_allocator *a);

/* Waits for the work of all spans of a pool, NULL for all; *any: there were some. Returns the error
 * of the first marker that could not be waited for. */
ductile_status dpool_wait_on_host(ductile_allocator *a, const dpool_private_pool *of, bool *any);

/* ---- All work of the context --------------------------------------------------------------- */

/* Records a context marker, and waits for it: afterwards all memory that was freed before the call
 * is proven. ERR_CAPTURING where none may be recorded; ERR_DRIVER, ... */
ductile_status dpool_wait_for_context_mark(ductile_allocator *a);

/* Waits for the newest context marker under way, which also a capture allows. False when there is
 * none, or when the wait failed. */
bool dpool_wait_for_newest_mark(ductile_allocator *a);

/* Waits for a context marker, which disturbs less, where one may be recorded; else for the whole
 * device. ERR_CAPTURING when that would break a known capture. */
ductile_status dpool_wait_for_context(ductile_allocator *a);

/* Waits for all work, by a context marker where one may be recorded, else for the whole device:
 * afterwards all free memory of streams of our context is proven. Then for each stream of another
 * context, if that may prove free memory of its own; not for one that cannot be waited for.
 * ERR_CAPTURING when the wait would break a known capture; ERR_DRIVER, ... *idle (may be NULL): the
 * proof for our context. */
ductile_status dpool_wait_for_all_work(ductile_allocator *a, dseg_idle *idle);

/* ---- Single streams ------------------------------------------------------------------------ */

/* Which streams are waited for one by one. */
typedef struct dpool_stream_choice {
    const dpool_private_pool *of; /* NULL: all pools */
    bool has_live;     /* all, because live blocks are in use; else where it may prove something */
    bool only_foreign; /* those of other contexts */
} dpool_stream_choice;

/* Where live blocks are in use, a stream that cannot be waited for is an error. */
ductile_status dpool_wait_for_streams(ductile_allocator *a, const dpool_stream_choice *c);

/* Is there an arena of the pool, NULL for all, whose memory or old addresses a wait may prove? */
bool dpool_any_is_worth_a_wait(ductile_allocator *a, const dpool_private_pool *of);

/* Called before a slow call on the stream: waits when too many addresses are retiring. Relaxes the
 * capture mode by itself. */
void dpool_wait_retired(ductile_allocator *a, struct dpool_private_pool *pool,
                        ductile_stream stream);

/* ---- Markers ------------------------------------------------------------------------------- */

/* For the marker, if there is one and all went well `before`; drops it. */
ductile_status dpool_wait_and_drop(ductile_allocator *a, dvmm_marker *m, ductile_status before);

/* Something could not be waited for: why? */
ductile_status dpool_what_is_wrong(const ductile_allocator *a);

#endif
