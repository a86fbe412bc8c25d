/* SPDX-License-Identifier: Apache-2.0 */
/* Traces that the workloads' models make, as their tests look at them. */
#ifndef DUCTILE_TESTS_BENCH_WORKLOADS_MADE_TRACE_H
#define DUCTILE_TESTS_BENCH_WORKLOADS_MADE_TRACE_H

#include "bench/trace/trace_finish.h"

#include <criterion/criterion.h>

#include <string.h>

/* What the model has put into the builder; `reason`: what it said, NULL where all went well. The
 * caller frees it. */
static inline trace *finish_trace(trace_builder *b, const char *reason) {
    cr_assert_null(reason, "%s", reason);
    trace *t = trace_make(b, "made", &reason);
    cr_assert_not_null(t, "%s", reason);
    return t;
}

static inline bool same_events(const trace *a, const trace *b) {
    return a->n_events == b->n_events &&
           memcmp(a->events, b->events, a->n_events * sizeof *a->events) == 0;
}

/* Of three traces the first two come of one seed, the third of another. Frees them. */
static inline void expect_seed_decides(trace *first, trace *again, trace *other) {
    cr_expect(same_events(first, again));
    cr_expect_not(same_events(first, other));
    trace_free(first);
    trace_free(again);
    trace_free(other);
}

#endif
