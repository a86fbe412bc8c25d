/* SPDX-License-Identifier: Apache-2.0 */
/* Where the events of a synthetic program go. */
#ifndef DUCTILE_BENCH_WORKLOADS_EVENT_SINK_H
#define DUCTILE_BENCH_WORKLOADS_EVENT_SINK_H

#include "bench/trace/trace_build.h"

/* The number of a tensor in memory; 0: no tensor. */
typedef uint32_t event_tensor;

/* After the first failure all calls do nothing, so that the model needs no checks. */
typedef struct event_sink {
    trace_builder builder;
    const char *failure;
} event_sink;

event_tensor sink_alloc_on(event_sink *sink, uint64_t bytes, uint64_t stream);
event_tensor sink_alloc(event_sink *sink, uint64_t bytes);             /* on stream 0 */
void sink_use(event_sink *sink, event_tensor tensor, uint64_t stream); /* record_stream */
void sink_free(event_sink *sink, event_tensor *tensor); /* and sets it to 0; ignores 0 */
void sink_end_stream(event_sink *sink, uint64_t stream, bool is_told);
void sink_end_step(event_sink *sink);

/* The builder, or nothing and the reason. */
const char *sink_finish(event_sink *sink, trace_builder *out);

#endif
