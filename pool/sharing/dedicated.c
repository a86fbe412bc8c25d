/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are one physical handle: whoever registers memory by handle (NCCL, RDMA) then finds
 * one, and not a row of them. Freed, the memory is the arena's like any other, but larger handles
 * move as a whole or not at all. */
#include "pool/sharing/dedicated.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/transitions.h"
#include "pool/blocks/wait_spans.h"
#include "pool/pools/pools.h"
#include "pool/pressure/ladder.h"

#include "vmm/base/align.h"

#include <ductile_share.h>

/* ---- A handle that is free already --------------------------------------------------------- */

typedef struct span {
    uint32_t low;
    uint32_t high;
} span;

static span granules_inside(const ductile_allocator *a, const dpool_block *b) {
    uint64_t offset = b->addr - b->region->seg->range.addr;
    return (span){(uint32_t)((offset + a->granule - 1) / a->granule),
                  (uint32_t)((offset + b->size) / a->granule)};
}

/* The first handle of exactly n granules wholly inside the FREE block; empty when there is none. */
static span find_handle(const ductile_allocator *a, const dpool_block *b, uint32_t n) {
    const dseg_slot *slots = b->region->seg->slots;
    span s = granules_inside(a, b);
    for (uint32_t g = s.low; g + n <= s.high; g++) {
        if (slots[g].offset == 0 && slots[g].handle->n_granules == n) {
            return (span){g, g + n};
        }
    }
    return (span){0, 0};
}

static dpool_block *take_handle_locked(ductile_allocator *a, dpool_block *b, span s,
                                       uint64_t requested) {
    const dseg_segment *seg = b->region->seg;
    dpool_block *taken =
        dpool_carve_free_locked(a, b, dseg_addr(seg, s.low), dseg_addr(seg, s.high));
    dpool_make_live_locked(a, taken, requested);
    return taken;
}

dpool_block *dpool_serve_one_handle_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                           uint64_t requested) {
    bool has_room = a->nodes.n_spare >= 2 && dpool_map_has_room(&a->map);
    if (!has_room || !dpool_waits_are_none(a)) {
        return NULL; /* free memory may need a wait on the GPU first: new memory does not */
    }
    dpool_block *b = dpool_index_below(&arena->index, NULL);
    for (; b != NULL && b->size >= size; b = dpool_index_below(&arena->index, b)) {
        span s = find_handle(a, b, (uint32_t)(size / a->granule));
        if (s.high != 0) {
            return take_handle_locked(a, b, s, requested);
        }
    }
    return NULL;
}

/* ---- The public call ----------------------------------------------------------------------- */

static ductile_status alloc(ductile_allocator *a, size_t size, ductile_stream stream,
                            ductile_addr *out) {
    bool has_routes = atomic_load_explicit(&a->has_routes, memory_order_relaxed);
    dpool_private_pool *pool = NULL;
    dpool_block *b = NULL;
    ductile_status status = has_routes ? dpool_pool_of(a, stream, &pool) : DUCTILE_OK;
    if (status != DUCTILE_OK) {
        return status;
    }
    uint64_t bytes = dti_round_up(size, a->granule);
    if (bytes > a->granule) { /* one granule moves like any other */
        atomic_store_explicit(&a->has_large_handles, true, memory_order_relaxed);
    }
    status = dpool_alloc_one_handle(a, pool, bytes, size, stream, &b);
    if (has_routes) {
        dpool_unpin(a, pool);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    ductile_addr addr = b->addr;
    if (a->options.zero != 0) {
        status = dseg_zero(&a->store, addr, size, stream);
    }
    if (status != DUCTILE_OK) {
        (void)ductile_free(a, addr);
        return status;
    }
    *out = addr;
    return DUCTILE_OK;
}

ductile_status ductile_alloc_one_handle(ductile_allocator *a, size_t size, ductile_stream stream,
                                        ductile_addr *out) {
    if (a == NULL || out == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = 0;
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK || size == 0) {
        return status;
    }
    return size > DPOOL_MAX_REQUEST ? dpool_refuse_impossible(a, size, stream)
                                    : alloc(a, size, stream, out);
}
