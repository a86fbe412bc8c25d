/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the GPU waits for memory that its own stream may reuse only after work of other streams,
 * and finds out when they are no longer needed (spans: wait_spans.h). Guarded by the index lock,
 * except where a function says otherwise. No call allocates memory.
 */
#ifndef DUCTILE_POOL_STREAMS_GPU_WAITS_H
#define DUCTILE_POOL_STREAMS_GPU_WAITS_H

#include "pool/blocks/arena.h"
#include "pool/blocks/wait_spans.h"

/* A freed block with more recorded streams than this is PENDING instead. */
enum { DPOOL_MOST_WAITS = 32 };

/* Makes the PENDING block in transit with these uses, all marked, FREE, with a span. */
void dpool_wait_add_locked(ductile_allocator *a, dpool_use *uses);

/* May the block have a span? False when a record failed, or when it has too many streams. */
bool dpool_wait_is_possible(const dpool_use *uses);

/*
 * Makes the stream of the block wait for all spans in it, and removes them (U9). Pre: inside a call
 * that names the stream; b is LIVE or BUSY and owned by this thread; index lock not held. On
 * failure some spans may remain: ERR_CAPTURING when the stream cannot wait now.
 */
ductile_status dpool_wait_on_gpu(ductile_allocator *a, dpool_block *b);

/* Makes the stream of a block wait that was just taken for a request. When the stream cannot wait,
 * the block becomes FREE again and the result is NULL.
 * No lock held, except perhaps the grow lock. */
dpool_block *dpool_wait_before_return(ductile_allocator *a, dpool_block *b);

/* Takes the smallest sufficient block of the arena that needs no wait, LIVE, for a stream that
 * cannot wait. */
dpool_block *dpool_alloc_without_waits_locked(ductile_allocator *a, dpool_arena *arena,
                                              uint64_t size, uint64_t requested);

/* Queries up to `most` markers, going round. Index lock not held. */
void dpool_wait_poll(ductile_allocator *a, uint32_t most);

/* The work behind the marker, which is held, of the span at that address is done. No lock held. */
void dpool_wait_take_answer(ductile_allocator *a, dvmm_marker *m, ductile_addr span);

/* Drops all spans. Destroying only. */
void dpool_waits_fini(ductile_allocator *a);

#endif
