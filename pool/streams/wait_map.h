/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wait map (record_stream:wait): which memory its own stream may have at once, but only behind
 * a wait on the GPU for other streams' work.
 *
 *     blocks   |LIVE |FREE . . . . . . . . . . . . . . . . . .|LIVE
 *     spans          .  [stream 2: m1]   [2: m3, 4: m4] . . . .
 *
 * A block that was freed with recorded streams becomes FREE at once, merges and splits like any
 * other, and knows nothing of it; a span with the unsatisfied (stream, marker) pairs stands beside
 * the blocks, by address. So where memory is placed does not depend on how far the GPU is, and a
 * wait is made exactly for what is handed out (docs/decisions/0010).
 *
 *     added     by the free
 *     settled   by the first call that hands out or moves any part of it: the own stream has
 *               waited for all of it, and the span goes
 *     done      the host has seen all its work completed: no wait is needed, and the memory may
 *               leave its stream; the span stays, so that the choice among equals stays the same
 *
 * Guarded by the index lock, except where a function says otherwise. No call allocates memory.
 */
#ifndef DUCTILE_POOL_STREAMS_WAIT_MAP_H
#define DUCTILE_POOL_STREAMS_WAIT_MAP_H

#include "pool/blocks/arena.h"

/* A freed block with more recorded streams than this is PENDING instead. */
enum { DPOOL_MOST_WAITS = 32 };

/* Nothing to look for in the map? No lock needed by who has just been given the memory. */
static inline bool dpool_waits_are_none(const ductile_allocator *a) {
    return atomic_load_explicit(&a->waits.n, memory_order_relaxed) == 0;
}

/* The PENDING block in transit with these uses, all marked, becomes FREE, with a span. */
void dpool_wait_add_locked(ductile_allocator *a, dpool_use *uses);

/* May that block have a span? Not when a record failed, nor where streams must not wait. */
bool dpool_wait_is_possible_locked(const ductile_allocator *a, const dpool_use *uses);

/* The first span in [from, to), the same on every run, whatever the GPU has done; NULL for none. */
const dpool_use *dpool_wait_find_locked(const ductile_allocator *a, ductile_addr from,
                                        ductile_addr to);

static inline bool dpool_wait_covers_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    return dpool_wait_find_locked(a, from, to) != NULL;
}

/* The first one whose work the host does not know done; NULL for none. */
const dpool_use *dpool_wait_find_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to);

static inline bool dpool_wait_is_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    return dpool_wait_find_due_locked(a, from, to) != NULL;
}

/* Of the best fits, which have the size of b, one that needs no wait, if there is one among the
 * first few; otherwise b. All of them stay in the index. */
dpool_block *dpool_wait_prefer_locked(const ductile_allocator *a, const dpool_free_index *index,
                                      dpool_block *b);

/*
 * The block's own stream waits for all spans in it, which then are gone (U9). Pre: inside a call
 * that names the stream; b is LIVE or BUSY and nobody else's; index lock not held. On failure some
 * may be left: ERR_CAPTURING when the stream cannot wait now, or must not.
 */
ductile_status dpool_wait_settle(ductile_allocator *a, dpool_block *b);

/* The same for a block that was just taken for a request. It is FREE again and NULL is returned
 * when its stream cannot wait. No lock held but perhaps the grow lock. */
dpool_block *dpool_wait_hand_out(ductile_allocator *a, dpool_block *b);

/* The smallest block of the arena that needs no wait, LIVE, for a stream that cannot wait. */
dpool_block *dpool_wait_serve_around_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                            uint64_t requested);

/* Asks for up to `most` markers whether they are done, going round. Index lock not held. */
void dpool_wait_poll(ductile_allocator *a, uint32_t most);

/* Drops the spans in [from, to), all of them done, where memory leaves its address. */
void dpool_wait_forget_done_locked(ductile_allocator *a, ductile_addr from, ductile_addr to);

/* Waits on the host for one marker of the first span in [*from, to) with one not known done, and
 * says where that span is. False when there is none. No lock held. */
bool dpool_wait_on_host(ductile_allocator *a, ductile_addr *from, ductile_addr to);

/* No call waits for this stream from now on. */
void dpool_wait_bar_locked(ductile_allocator *a, ductile_stream stream, uint64_t thread);

/* Drops all spans. Destroying only. */
void dpool_wait_map_fini(ductile_allocator *a);

/* Is the map in order, its spans apart and counted? Linear (invariant W1). */
bool dpool_wait_check_locked(const ductile_allocator *a);

#endif
