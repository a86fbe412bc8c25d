/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that its own stream may have at once, but only behind a wait on the GPU for other streams'
 * work: making those waits, and finding out that they are not needed (spans: wait_spans.h).
 *
 * Guarded by the index lock, except where a function says otherwise. No call allocates memory.
 */
#ifndef DUCTILE_POOL_STREAMS_GPU_WAITS_H
#define DUCTILE_POOL_STREAMS_GPU_WAITS_H

#include "pool/blocks/arena.h"
#include "pool/blocks/wait_spans.h"

/* A freed block with more recorded streams than this is PENDING instead. */
enum { DPOOL_MOST_WAITS = 32 };

/* The PENDING block in transit with these uses, all marked, becomes FREE, with a span. */
void dpool_wait_add_locked(ductile_allocator *a, dpool_use *uses);

/* May that block have a span? Not when a record failed, nor for more streams than that. */
bool dpool_wait_is_possible(const dpool_use *uses);

/*
 * The block's own stream waits for all spans in it, which then are gone (U9). Pre: inside a call
 * that names the stream; b is LIVE or BUSY and nobody else's; index lock not held. On failure some
 * may be left: ERR_CAPTURING when the stream cannot wait now.
 */
ductile_status dpool_wait_on_gpu(ductile_allocator *a, dpool_block *b);

/* The same for a block that was just taken for a request. It is FREE again and NULL is returned
 * when its stream cannot wait. No lock held but perhaps the grow lock. */
dpool_block *dpool_wait_hand_out(ductile_allocator *a, dpool_block *b);

/* The smallest block of the arena that needs no wait, LIVE, for a stream that cannot wait. */
dpool_block *dpool_wait_serve_around_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                            uint64_t requested);

/* Asks for up to `most` markers whether they are done, going round. Index lock not held. */
void dpool_wait_poll(ductile_allocator *a, uint32_t most);

/* Waits on the host for the work behind all spans of the scope; *any: there was some. The error of
 * the first marker that cannot be waited for. No lock held. */
ductile_status dpool_wait_on_host(ductile_allocator *a, const dpool_scope *s, bool *any);

/* Drops all spans. Destroying only. */
void dpool_waits_fini(ductile_allocator *a);

#endif
