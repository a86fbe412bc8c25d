/* SPDX-License-Identifier: Apache-2.0 */
/* What the synthetic training loop can be told. */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_OPTIONS_H
#define DUCTILE_BENCH_WORKLOADS_VARY_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum vary_optimizer { VARY_ADAMW, VARY_SGD } vary_optimizer;

typedef struct vary_interval {
    uint64_t min;
    uint64_t max;
} vary_interval;

/* 1 <= min <= max <= most. */
static inline bool vary_interval_is_good(vary_interval i, uint64_t most) {
    return i.min >= 1 && i.min <= i.max && i.max <= most;
}

/* Positive, but for side_streams; vary_check has the bounds. */
typedef struct vary_options {
    uint64_t layers;
    uint64_t hidden;
    uint64_t heads;
    uint64_t vocab;
    vary_interval batch;    /* sequences per step */
    vary_interval sequence; /* tokens in each     */
    uint64_t steps;
    uint64_t seed;
    uint64_t element_bytes; /* of weights, gradients and activations: 2 or 4 */
    vary_optimizer optimizer;
    bool recompute; /* keep only the input of each layer; run it again before its backward */
    uint64_t
        side_streams; /* beside the first: they run the second halves of layers in turn; may be 0 */
} vary_options;

/* NULL if the options are valid; otherwise the reason why not. */
const char *vary_check(const vary_options *options);

#endif
