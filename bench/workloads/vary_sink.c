/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_sink.h"

vary_tensor vary_alloc(vary_sink *sink, uint64_t bytes) {
    uint32_t block = 0;
    if (sink->failure == NULL) {
        sink->failure = trace_build_alloc(&sink->builder, bytes, 0, &block);
    }
    return sink->failure == NULL ? block + 1 : 0;
}

void vary_free(vary_sink *sink, vary_tensor *tensor) {
    if (*tensor != 0 && sink->failure == NULL) {
        sink->failure = trace_build_free(&sink->builder, *tensor - 1);
    }
    *tensor = 0;
}

void vary_end_step(vary_sink *sink) {
    if (sink->failure == NULL) {
        sink->failure = trace_build_step(&sink->builder);
    }
}
