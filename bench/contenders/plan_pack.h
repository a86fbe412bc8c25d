/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing spans of memory whose lifetimes are known into ranges of addresses: the largest first,
 * each into the smallest gap that is free for its whole life, or else as low as possible.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_PLAN_PACK_H
#define DUCTILE_BENCH_CONTENDERS_PLAN_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_FOREVER UINT32_MAX

typedef struct plan_span {
    uint64_t size;
    uint64_t offset; /* from the start of its range: given where it is fixed, else the result */
    uint32_t born, dies; /* lives in [born, dies), on any clock */
    uint32_t range;
    uint32_t request; /* the caller's */
    bool is_fixed;
} plan_span;

/* Changes the order of the spans. False: no host memory. */
bool plan_pack(plan_span *spans, size_t n);

#endif
