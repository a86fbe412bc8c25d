/* SPDX-License-Identifier: Apache-2.0 */
/* Where the events of the synthetic training loop go. */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_SINK_H
#define DUCTILE_BENCH_WORKLOADS_VARY_SINK_H

#include "bench/trace/trace_build.h"

/* A tensor in memory; 0 is none. */
typedef uint32_t vary_tensor;

/* After the first failure everything is ignored, so that the model reads as straight code. */
typedef struct vary_sink {
    trace_builder builder;
    const char *failure;
} vary_sink;

vary_tensor vary_alloc(vary_sink *sink, uint64_t bytes);
void vary_free(vary_sink *sink, vary_tensor *tensor); /* and sets it to none; none is fine */
void vary_end_step(vary_sink *sink);

#endif
