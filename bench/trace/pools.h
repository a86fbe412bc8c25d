/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private pools that a recording names, by numbers from 1 on. As in PyTorch two numbers
 * identify a pool: (n, 0) is a captured graph's own, (0, n) one of the program, a MemPool or a
 * handle that graphs share. What has the number 0 is in no pool.
 */
#ifndef DUCTILE_BENCH_TRACE_POOLS_H
#define DUCTILE_BENCH_TRACE_POOLS_H

#include "bench/base/hash_map.h"

#include <ductile.h>

/* The highest number of one. */
enum { TRACE_MAX_POOLS = UINT16_MAX - 1 };

/* All zero: none. */
typedef struct trace_pools {
    ductile_pool_id *ids; /* of pool i: ids[i - 1] */
    size_t n;
    uint32_t capacity;
    hash_map numbers;
} trace_pools;

static inline bool trace_pool_is_none(ductile_pool_id id) {
    return id.first == 0 && id.second == 0;
}

/* 0: the pool is none, or not named. */
uint16_t trace_pools_find(const trace_pools *p, ductile_pool_id id);
/* The number of a pool that may be new. Returns NULL, or a reason. */
const char *trace_pools_add(trace_pools *p, ductile_pool_id id, uint16_t *number);
/* The same pools, with the same numbers. Returns NULL, or a reason. */
const char *trace_pools_copy(trace_pools *to, const trace_pools *from);
void trace_pools_drop(trace_pools *p);

#endif
