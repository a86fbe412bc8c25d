/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocations of a transformer's training loop, as a PyTorch-like framework makes them, with a
 * batch and a sequence length drawn anew for every step.
 *
 *   vary_model.c    weights, gradients, optimizer, the schedule of steps
 *   vary_layers.c   forward and backward of one layer and of the loss
 *   vary_sink.c     where the events go: a trace, and a file when asked for
 */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_MODEL_H
#define DUCTILE_BENCH_WORKLOADS_VARY_MODEL_H

#include "bench/trace/trace.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum vary_optimizer { VARY_ADAMW, VARY_SGD } vary_optimizer;

typedef struct vary_interval {
    uint64_t min;
    uint64_t max;
} vary_interval;

/* All positive; vary_check has the bounds. */
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
} vary_options;

/* NULL, or why these options cannot be meant. */
const char *vary_check(const vary_options *options);

/* Fills *out, which is all zero, with the loop's events; also writes them to `text`, in the trace
 * format, unless that is NULL. Returns NULL, or a reason. Release with trace_free. */
const char *vary_build(const vary_options *options, FILE *text, trace *out);

#endif
