/* SPDX-License-Identifier: Apache-2.0 */
/*
 * find:stale_writes: a free fills the memory with a pattern, behind the work of the block's stream,
 * and the allocation that gets it next looks whether the pattern is still there. What differs was
 * written after the free, and is told through the log callback.
 *
 *     LIVE -> PENDING -> filled on its stream -> FREE ... LIVE: copied to the host and compared
 *
 * A block is PENDING while it is filled, so that no thread gets it before the fill is issued. With
 * recorded streams the fill comes when their work is done.
 *
 * Not filled: dedicated blocks, which are unmapped and not handed out again; memory of capture
 * pools, which launches of graphs write while it is free; pinned memory, which others may write; a
 * stream that is being captured, that is gone, or that belongs to another context or thread; blocks
 * that are freed while their pool is paused, or while a capture may begin. Not checked: memory that
 * has moved to another address or went back to the driver; a request of a stream that is being
 * captured.
 */
#ifndef DUCTILE_POOL_STREAMS_FILL_H
#define DUCTILE_POOL_STREAMS_FILL_H

#include "pool/blocks/arena.h"

/* The byte that freed memory is filled with: a NaN or an impossible number to most programs. */
enum { DPOOL_FILL_BYTE = 0xDF };

/* May the memory of the block be filled? Index lock held. */
bool dpool_fill_is_possible_locked(const ductile_allocator *a, const dpool_block *b);

/* Fills a PENDING block that only this thread knows of, if that is possible. No wait for the GPU;
 * index lock not held. */
void dpool_fill_block(ductile_allocator *a, dpool_block *b);

/* Checks what is filled of a LIVE block that no caller has seen yet: waits for its stream. Without
 * find:stale_writes it does nothing. No lock held. */
void dpool_fill_check(ductile_allocator *a, const dpool_block *b);

/* Destroying only. */
void dpool_fill_fini(ductile_allocator *a);

#endif
