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
#ifndef DUCTILE_POOL_SERVICES_FILL_FILL_H
#define DUCTILE_POOL_SERVICES_FILL_FILL_H

#include "pool/base/events.h"
#include "pool/services/fill/fill_map.h"

/* The byte that freed memory is filled with: a NaN or an impossible number to most programs. */
enum { DPOOL_FILL_BYTE = 0xDF };

typedef struct dpool_fill_buffer dpool_fill_buffer;

typedef struct dpool_fill {
    dpool_service service;
    /* guarded by the index lock */
    dpool_fill_map *maps; /* of all regions but dedicated ones */
    dpool_fill_buffer *spare_buffers;
    uint64_t filled, checked, mismatches;
} dpool_fill;

/* ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_fill_begin(ductile_allocator *a);

#endif
