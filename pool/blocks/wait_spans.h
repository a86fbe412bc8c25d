/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wait map (record_stream:wait): the FREE memory that its own stream may reuse at once, but
 * only after the GPU has waited for work of other streams.
 *
 *     blocks   |LIVE |FREE . . . . . . . . . . . . . . . . . .|LIVE
 *     spans          .  [stream 2: m1]   [2: m3, 4: m4] . . . .
 *
 * A block that is freed with recorded streams becomes FREE at once, and merges and splits like any
 * other. A span with the unsatisfied (stream, marker) pairs is stored beside the blocks, by
 * address. So the placement of memory does not depend on the progress of the GPU, and a stream
 * waits exactly for the memory that it gets (docs/dev/decisions/0010).
 *
 *     added     The free adds the span.
 *     waited    The first call that hands out or moves a part of the span makes the stream wait for
 *               all of it, and removes the span.
 *     done      The host has seen the work of the span complete. No wait is needed, and the memory
 *               may leave its stream. The span stays, so that the choice among equal fits does not
 *               change.
 *
 * Guarded by the index lock, except where a function says otherwise. No call allocates memory.
 */
#ifndef DUCTILE_POOL_BLOCKS_WAIT_SPANS_H
#define DUCTILE_POOL_BLOCKS_WAIT_SPANS_H

#include "pool/blocks/free_index.h"
#include "pool/blocks/use_store.h"

/* Is the map empty? A thread that has just been given the memory needs no lock to read this. */
static inline bool dpool_waits_are_none(const ductile_allocator *a) {
    return atomic_load_explicit(&a->waits.n, memory_order_relaxed) == 0;
}

/* The first span that ends above addr; NULL when there is none. */
dpool_use *dpool_span_find_locked(const ductile_allocator *a, ductile_addr addr);

void dpool_span_add_locked(ductile_allocator *a, dpool_use *s);
void dpool_span_take_out_locked(ductile_allocator *a, const dpool_use *s);

/* The first span in [from, to), on every run the same one, however far the GPU is; NULL when there
 * is none. */
dpool_use *dpool_span_find_in_locked(const ductile_allocator *a, ductile_addr from,
                                     ductile_addr to);

static inline bool dpool_wait_covers_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    return dpool_span_find_in_locked(a, from, to) != NULL;
}

/* The first span in [from, to) whose work the host does not know to be done; NULL when there is
 * none. */
const dpool_use *dpool_wait_find_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to);

static inline bool dpool_wait_is_due_locked(const ductile_allocator *a, ductile_addr from,
                                            ductile_addr to) {
    return dpool_wait_find_due_locked(a, from, to) != NULL;
}

/* Among the first few blocks of the size of b, the best fit: one that needs no wait, or b when
 * there is none. All stay in the index. */
dpool_block *dpool_wait_prefer_locked(const ductile_allocator *a, const dpool_free_index *index,
                                      dpool_block *b);

/* Drops the spans in [from, to), all of them done, because the memory leaves its address. */
void dpool_wait_forget_done_locked(ductile_allocator *a, ductile_addr from, ductile_addr to);

/* Are the spans in order, apart, and counted? Linear (invariant W1). */
bool dpool_wait_check_locked(const ductile_allocator *a);

#endif
