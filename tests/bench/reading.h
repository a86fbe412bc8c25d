/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a trace from memory, as trace_load does from a file. */
#ifndef TESTS_BENCH_READING_H
#define TESTS_BENCH_READING_H

#include "bench/trace/pickle.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_snapshot.h"
#include "bench/trace/trace_text.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reading {
    trace t;
    trace_error error;
} reading;

/* From memory of exactly that size, so that a sanitizer sees any byte read behind it. */
static inline bool read_bytes_as_trace(const void *bytes, size_t size, int gpu, reading *out) {
    trace_builder builder = {0};
    void *copy = malloc(size > 0 ? size : 1);
    cr_assert_not_null(copy);
    memcpy(copy, bytes, size);
    *out = (reading){0};
    builder.is_snapshot = pickle_recognise(copy, size);
    input in = input_of_memory(copy, size);
    bool ok = builder.is_snapshot ? trace_read_snapshot(&in, gpu, &builder, &out->error)
                                  : trace_read_text(&in, &builder, &out->error);
    free(copy);
    if (ok) {
        const char *reason = trace_finish(&builder, &out->t);
        ok = reason == NULL || trace_refuse(&out->error, 0, "%s", reason);
    }
    trace_build_drop(&builder);
    return ok;
}

static inline void drop_reading(reading *r) {
    trace_drop_events(&r->t);
}

#endif
