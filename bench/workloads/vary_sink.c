/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_parts.h"

#include <inttypes.h>

static void note(vary_sink *sink, const char *failure) {
    if (sink->failure == NULL) {
        sink->failure = failure;
    }
}

static void note_written(vary_sink *sink, int written) {
    if (written < 0) {
        note(sink, "the trace cannot be written");
    }
}

vary_tensor vary_alloc(vary_sink *sink, uint64_t bytes) {
    uint32_t block = 0;
    if (sink->failure == NULL) {
        note(sink, trace_build_alloc(&sink->builder, bytes, 0, &block));
    }
    if (sink->failure != NULL) {
        return 0;
    }
    if (sink->text != NULL) {
        note_written(sink, fprintf(sink->text, "a %" PRIu32 " %" PRIu64 " 0\n", block + 1, bytes));
    }
    return block + 1;
}

void vary_free(vary_sink *sink, vary_tensor *tensor) {
    vary_tensor freed = *tensor;
    *tensor = 0;
    if (freed == 0 || sink->failure != NULL) {
        return;
    }
    note(sink, trace_build_free(&sink->builder, freed - 1));
    if (sink->text != NULL) {
        note_written(sink, fprintf(sink->text, "f %" PRIu32 "\n", freed));
    }
}

void vary_end_step(vary_sink *sink) {
    if (sink->failure == NULL) {
        note(sink, trace_build_step(&sink->builder));
    }
    if (sink->text != NULL) {
        note_written(sink, fputs("s\n", sink->text));
    }
}
