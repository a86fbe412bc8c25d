/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which private pool the memory at an address belonged to. Blocks of a history do not say it, nor
 * do most of its segments: those that were held at the end do. So a history is walked from its end
 * to its beginning; what is taken in is the latest that was put over an address.
 */
#ifndef DUCTILE_BENCH_TRACE_SEGMENT_POOLS_H
#define DUCTILE_BENCH_TRACE_SEGMENT_POOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SEGMENT_POOL_UNKNOWN = UINT16_MAX };

/* What was put over one node's addresses as a whole; the latest on the way to a leaf counts. */
typedef struct segment_pools_node {
    uint32_t turn; /* from 1 on; 0: nothing */
    uint16_t pool;
} segment_pools_node;

/* All zero is empty. */
typedef struct segment_pools {
    uint64_t *bounds; /* cell i is from bounds[i] to bounds[i + 1] */
    size_t n_bounds;
    uint32_t capacity;
    segment_pools_node *nodes; /* a tree over the cells, which are its leaves */
    uint32_t n_turns;
} segment_pools;

/* Before segment_pools_begin: memory that will be put. False: the host has no memory left. */
bool segment_pools_expect(segment_pools *s, uint64_t address, uint64_t size);
bool segment_pools_begin(segment_pools *s);
/* Memory that was expected belongs to the pool, as far as the walk will tell. */
void segment_pools_put(segment_pools *s, uint64_t address, uint64_t size, uint16_t pool);
/* 0: none. UNKNOWN where nothing was put. */
uint16_t segment_pools_at(const segment_pools *s, uint64_t address);
/* Up to where it is that of an address that was expected. */
uint64_t segment_pools_end(const segment_pools *s, uint64_t address);
void segment_pools_drop(segment_pools *s);

#endif
