/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One contender, a steady number of live blocks of random sizes, and random frees each followed by
 * an allocation.
 */
#ifndef DUCTILE_BENCH_WORKLOADS_CHURN_MEASURE_H
#define DUCTILE_BENCH_WORKLOADS_CHURN_MEASURE_H

#include "bench/replay/testbed.h"

/* Sizes are spread evenly over the orders of magnitude from min to max. */
typedef struct churn_sizes {
    uint64_t min;
    uint64_t max;
} churn_sizes;

typedef struct churn_spec {
    testbed_plan plan; /* of one stream */
    churn_sizes sizes;
    uint64_t live; /* blocks */
    uint64_t ops;  /* allocations and frees that are timed; rounded up to whole pairs */
    uint64_t seed;
} churn_spec;

/* What a stretch of the timed operations cost, and how the contender stood at its end. */
typedef struct churn_stretch {
    uint64_t ops; /* since the start of timing, this stretch included */
    double ns_per_op;
    double wall_ns_per_op;
    contender_stats stats;
    uint64_t host_bytes; /* resident memory of this process */
} churn_stretch;

enum { CHURN_STRETCHES = 10 };

typedef struct churn_result {
    run_outcome outcome;
    char message[256]; /* unless completed */
    churn_stretch stretches[CHURN_STRETCHES];
    double ns_per_op; /* over all of them */
    double wall_ns_per_op;
} churn_result;

/* The sizes, halved as often as it takes for `live` blocks to fill at most half of `bytes`. */
churn_sizes churn_fit_sizes(churn_sizes wanted, uint64_t live, uint64_t bytes);

void churn_measure(const churn_spec *spec, churn_result *result);

#endif
