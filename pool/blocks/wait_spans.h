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
 *     waited    by the first call that hands out or moves any part of it: the own stream has
 *               waited for all of it, and the span goes
 *     done      the host has seen all its work completed: no wait is needed, and the memory may
 *               leave its stream; the span stays, so that the choice among equals stays the same
 *
 * Guarded by the index lock, except where a function says otherwise. No call allocates memory.
 */
#ifndef DUCTILE_POOL_BLOCKS_WAIT_SPANS_H
#define DUCTILE_POOL_BLOCKS_WAIT_SPANS_H

#include "pool/blocks/free_index.h"
#include "pool/blocks/use_store.h"

/* Nothing to look for in the map? No lock needed by who has just been given the memory. */
static inline bool dpool_waits_are_none(const ductile_allocator *a) {
    return atomic_load_explicit(&a->waits.n, memory_order_relaxed) == 0;
}

/* The first span that ends behind addr; NULL for none. */
dpool_use *dpool_span_find_locked(const ductile_allocator *a, ductile_addr addr);

void dpool_span_add_locked(ductile_allocator *a, dpool_use *s);
void dpool_span_take_out_locked(ductile_allocator *a, const dpool_use *s);

/* The first span in [from, to), the same on every run, whatever the GPU has done; NULL for none. */
dpool_use *dpool_span_find_in_locked(const ductile_allocator *a, ductile_addr from,
                                     ductile_addr to);

static inline bool dpool_wait_covers_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    return dpool_span_find_in_locked(a, from, to) != NULL;
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

/* Drops the spans in [from, to), all of them done, where memory leaves its address. */
void dpool_wait_forget_done_locked(ductile_allocator *a, ductile_addr from, ductile_addr to);

/* Is the map in order, its spans apart and counted? Linear (invariant W1). */
bool dpool_wait_check_locked(const ductile_allocator *a);

#endif
