/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A LLaMA whose parameters lie in host memory: each layer is copied to the GPU ahead of its use, on
 * a side stream that allocates it, and freed behind it; gradients leave the same way. Activations
 * come and go on the main stream, recomputed in backward. A program that makes another copying
 * stream now and then leaves the earlier ones behind: each side stream works for a stretch and then
 * is silent.
 *
 *   stream 1   prefetches ====|
 *   stream 2                  |==========|
 *   stream 3                             |=====|          silent streams hold what they freed
 *   main       compute ----------------------------------->
 */
#ifndef DUCTILE_BENCH_WORKLOADS_OFFLOAD_MODEL_H
#define DUCTILE_BENCH_WORKLOADS_OFFLOAD_MODEL_H

#include "bench/trace/trace_build.h"
#include "bench/workloads/vary_options.h"

/* All positive; offload_check has the bounds. */
typedef struct offload_options {
    uint64_t layers;
    uint64_t hidden;
    uint64_t vocab;
    vary_interval batch;    /* sequences per step */
    vary_interval sequence; /* tokens in each     */
    uint64_t steps;
    uint64_t streams; /* side streams */
    uint64_t depth;   /* layers on the GPU at once, the one in use included */
    uint64_t seed;
} offload_options;

/* NULL if the options are valid; otherwise the reason why not. */
const char *offload_check(const offload_options *options);

/* Fills the builder. Returns NULL, or a reason. Pre: offload_check has nothing to say. */
const char *offload_generate(const offload_options *options, trace_builder *out);

#endif
