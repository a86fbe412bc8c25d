/* SPDX-License-Identifier: Apache-2.0 */
/* Where the events of the synthetic training loop go. */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_SINK_H
#define DUCTILE_BENCH_WORKLOADS_VARY_SINK_H

#include "bench/trace/trace_build.h"

/* The number of a tensor in memory; 0: no tensor. */
typedef uint32_t vary_tensor;

/* After the first failure all calls do nothing, so that the model needs no checks. */
typedef struct vary_sink {
    trace_builder builder;
    const char *failure;
} vary_sink;

vary_tensor vary_alloc(vary_sink *sink, uint64_t bytes);
void vary_free(vary_sink *sink, vary_tensor *tensor); /* and sets it to 0; ignores 0 */
void vary_end_step(vary_sink *sink);

#endif
