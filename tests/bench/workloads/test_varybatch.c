/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The synthetic training loop: its events make a trace like any other, follow the seed and nothing
 * else, and move as a training loop's memory does.
 */
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_write.h"
#include "bench/workloads/vary_model.h"
#include "tests/bench/workloads/made_trace.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const vary_options small = {
    .layers = 4,
    .hidden = 256,
    .heads = 4,
    .vocab = 1000,
    .batch = {1, 4},
    .sequence = {16, 128},
    .steps = 6,
    .seed = 1,
    .element_bytes = 2,
    .optimizer = VARY_ADAMW,
};

static trace *build(const vary_options *options) {
    trace_builder b;
    const char *reason = vary_generate(options, &b);
    return finish_trace(&b, reason);
}

/* ---- The model ----------------------------------------------------------------------------- */

Test(vary_model, the_same_seed_gives_the_same_events) {
    trace *first = build(&small);
    trace *second = build(&small);
    cr_expect(same_events(first, second));
    cr_expect_eq(first->live_peak_bytes, second->live_peak_bytes);
    trace_free(first);
    trace_free(second);
}

Test(vary_model, another_seed_gives_other_sizes) {
    vary_options other = small;
    other.seed = 2;
    trace *first = build(&small);
    trace *second = build(&other);
    cr_expect_not(same_events(first, second));
    trace_free(first);
    trace_free(second);
}

Test(vary_model, a_fixed_batch_repeats_itself) {
    vary_options fixed = small;
    fixed.batch = (vary_interval){2, 2};
    fixed.sequence = (vary_interval){64, 64};
    trace *short_run = build(&fixed);
    fixed.steps = 12;
    trace *long_run = build(&fixed);
    cr_expect_eq(short_run->live_peak_bytes, long_run->live_peak_bytes);
    trace_free(short_run);
    trace_free(long_run);
}

/* Weights, their 4-byte copies and two optimizer states stay, and the libraries' workspace. */
Test(vary_model, after_the_last_step_only_weights_and_states_are_live) {
    trace *t = build(&small);
    uint64_t hidden = small.hidden;
    uint64_t per_layer = 12 * hidden * hidden + 13 * hidden;
    uint64_t n_weights = small.layers * per_layer + small.vocab * hidden + 2 * hidden;
    uint64_t expected = n_weights * (2 + 4 + 4 + 4) + (32 << 20);
    uint64_t live = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        uint64_t size = t->events[i].size;
        live = t->events[i].kind == TRACE_ALLOC ? live + size : live - size;
    }
    cr_expect_eq(live, expected);
    trace_free(t);
}

Test(vary_model, recomputing_needs_less_memory_and_more_allocations) {
    vary_options long_sequences = small;
    long_sequences.sequence = (vary_interval){1024, 2048};
    long_sequences.layers = 16;
    trace *keeping = build(&long_sequences);
    long_sequences.recompute = true;
    trace *recomputing = build(&long_sequences);
    cr_expect_lt(2 * recomputing->live_peak_bytes, keeping->live_peak_bytes * 3 / 2);
    cr_expect_gt(recomputing->n_ops, keeping->n_ops);
    trace_free(keeping);
    trace_free(recomputing);
}

Test(vary_model, momentum_alone_needs_less_than_adam) {
    vary_options sgd = small;
    sgd.optimizer = VARY_SGD;
    trace *with_adam = build(&small);
    trace *with_sgd = build(&sgd);
    cr_expect_lt(with_sgd->live_peak_bytes, with_adam->live_peak_bytes);
    trace_free(with_adam);
    trace_free(with_sgd);
}

Test(vary_model, what_is_written_reads_back_as_the_same_events) {
    char path[] = "varybatch-XXXXXX";
    char reason[128];
    trace_builder b;
    trace_error error;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    (void)close(fd);
    cr_assert_null(vary_generate(&small, &b));
    cr_assert(trace_save(&b, "", path, reason, sizeof reason), "%s", reason);
    trace_build_drop(&b);
    trace *built = build(&small);
    trace *read = trace_load(path, TRACE_BUSIEST_GPU, &error);
    (void)unlink(path);
    cr_assert_not_null(read, "%s", error.reason);
    cr_expect(same_events(built, read));
    cr_expect_eq(read->n_steps, small.steps);
    trace_free(built);
    trace_free(read);
}

Test(vary_model, options_that_cannot_be_meant_are_refused) {
    vary_options bad = small;
    cr_expect_null(vary_check(&bad));
    bad.heads = 3;
    cr_expect_not_null(vary_check(&bad));
    bad = small;
    bad.batch = (vary_interval){4, 3};
    cr_expect_not_null(vary_check(&bad));
    bad = small;
    bad.layers = 0;
    cr_expect_not_null(vary_check(&bad));
    bad = small;
    bad.hidden = 1 << 20;
    bad.layers = 1 << 20;
    cr_expect_not_null(vary_check(&bad));
}
