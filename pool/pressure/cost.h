/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request costs that lacks memory, rung by rung, for the statistics: whether the host waited
 * for the GPU, and what went back to the driver. Taken from the allocator's own counters before and
 * after a rung: where several threads lack memory at a time, what one has caused may count for
 * another as well.
 */
#ifndef DUCTILE_POOL_PRESSURE_COST_H
#define DUCTILE_POOL_PRESSURE_COST_H

#include "pool/base/allocator.h"

/* So far, in the allocator's life. */
typedef struct dpool_cost {
    uint64_t host_waits;
    uint64_t released_bytes;
} dpool_cost;

/* No lock needed. */
dpool_cost dpool_cost_now(ductile_allocator *a);

/* Counts what a rung has cost since `before`. Index lock not held. */
void dpool_count_cost(ductile_allocator *a, const dpool_cost *before);

#endif
