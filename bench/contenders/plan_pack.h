/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing spans of memory whose lifetimes are known into ranges of addresses: one after
 * the other, each into the smallest gap that is free for its whole life, or else as low as
 * possible.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_PLAN_PACK_H
#define DUCTILE_BENCH_CONTENDERS_PLAN_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLAN_FOREVER UINT32_MAX

typedef struct plan_span {
    uint64_t size;
    uint64_t offset;     /* from the start of its range: given where it is fixed, else the result */
    uint64_t rank;       /* plan_pack's own */
    uint32_t born, dies; /* lives in [born, dies), on any clock */
    uint32_t range;
    uint32_t request; /* the caller's */
    bool is_fixed;
} plan_span;

/* Which span is placed first: one that stays for ever, then the larger; the larger; the larger
 * times its life. */
typedef enum plan_order { PLAN_BY_STAY, PLAN_BY_SIZE, PLAN_BY_AREA, PLAN_ORDERS } plan_order;

/* Changes the order of the spans: by range now. False: no host memory. */
bool plan_pack(plan_span *spans, size_t n, plan_order order);
/* How many bytes the spans lie in, in whole handles. Pre: they are packed. 0: no host memory. */
uint64_t plan_bytes(const plan_span *spans, size_t n, uint64_t handle_bytes);

#endif
