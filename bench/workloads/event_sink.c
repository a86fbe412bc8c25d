/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/event_sink.h"

event_tensor sink_alloc_on(event_sink *sink, uint64_t bytes, uint64_t stream) {
    uint32_t block = 0;
    if (sink->failure == NULL) {
        sink->failure = trace_build_alloc(&sink->builder, bytes, stream, &block);
    }
    return sink->failure == NULL ? block + 1 : 0;
}

event_tensor sink_alloc(event_sink *sink, uint64_t bytes) {
    return sink_alloc_on(sink, bytes, 0);
}

void sink_use(event_sink *sink, event_tensor tensor, uint64_t stream) {
    if (sink->failure == NULL) {
        sink->failure = trace_build_use(&sink->builder, tensor - 1, stream);
    }
}

void sink_free(event_sink *sink, event_tensor *tensor) {
    if (*tensor != 0 && sink->failure == NULL) {
        sink->failure = trace_build_free(&sink->builder, *tensor - 1);
    }
    *tensor = 0;
}

void sink_end_stream(event_sink *sink, uint64_t stream, bool is_told) {
    if (sink->failure == NULL) {
        sink->failure = trace_build_end_stream(&sink->builder, stream, is_told);
    }
}

void sink_end_step(event_sink *sink) {
    if (sink->failure == NULL) {
        sink->failure = trace_build_step(&sink->builder);
    }
}

const char *sink_finish(event_sink *sink, trace_builder *out) {
    if (sink->failure != NULL) {
        trace_build_drop(&sink->builder);
    }
    *out = sink->builder;
    return sink->failure;
}
