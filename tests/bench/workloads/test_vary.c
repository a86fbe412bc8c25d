/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The synthetic training loop: its events make a trace like any other, follow the seed and nothing
 * else, and move as a training loop's memory does.
 */
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_write.h"
#include "bench/workloads/vary_model.h"
#include "bench/workloads/vary_sweep.h"
#include "tests/bench/workloads/made_trace.h"

#include <criterion/criterion.h>
#include <math.h>

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

Test(vary_model, the_seed_decides_and_nothing_else) {
    vary_options other = small;
    other.seed = 2;
    expect_seed_decides(build(&small), build(&small), build(&other));
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
    char path[] = "vary-XXXXXX";
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

/* ---- Several streams ----------------------------------------------------------------------- */

static size_t count(const trace *t, trace_kind kind, bool on_a_side) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        bool is_side = t->streams[t->events[i].stream].number != 0;
        n += t->events[i].kind == kind && is_side == on_a_side;
    }
    return n;
}

Test(vary_model, side_streams_take_part_of_the_same_allocations) {
    vary_options on_three = small;
    on_three.side_streams = 2;
    trace *alone = build(&small);
    trace *divided = build(&on_three);
    cr_expect_eq(divided->n_streams, 3);
    cr_expect_eq(divided->live_peak_bytes, alone->live_peak_bytes);
    cr_expect_eq(divided->n_ops, alone->n_ops);
    cr_expect_gt(count(divided, TRACE_ALLOC, true), count(divided, TRACE_ALLOC, false) / 4);
    trace_free(alone);
    trace_free(divided);
}

/* In a step and layer: the input and the gradient of the half that a side stream runs; of what it
 * makes, the output, the gradient of the input, and those of six weights. */
Test(vary_model, what_crosses_between_streams_is_recorded) {
    vary_options on_two = small;
    on_two.side_streams = 1;
    trace *t = build(&on_two);
    cr_expect_eq(count(t, TRACE_USE, true), 2 * small.steps * small.layers);
    cr_expect_eq(count(t, TRACE_USE, false), 8 * small.steps * small.layers);
    trace_free(t);
}

Test(vary_model, more_side_streams_than_a_trace_has_are_refused) {
    vary_options bad = small;
    bad.side_streams = 255;
    cr_expect_null(vary_check(&bad));
    bad.side_streams = 256;
    cr_expect_not_null(vary_check(&bad));
}

/* ---- The sweep ----------------------------------------------------------------------------- */

Test(vary_sweep, the_spread_grows_from_constant_to_the_whole_interval) {
    sweep_plan plan = {.model = small, .n_seeds = 1};
    for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
        vary_options model = sweep_model(&plan, 0, spread);
        cr_expect_eq(model.batch.max, small.batch.max);
        cr_expect_eq(model.sequence.max, small.sequence.max);
    }
    cr_expect_eq(sweep_model(&plan, 0, 0).sequence.min, small.sequence.max);
    cr_expect_eq(sweep_model(&plan, 0, 2).sequence.min, 72);
    cr_expect_eq(sweep_model(&plan, 0, SWEEP_SPREADS - 1).sequence.min, small.sequence.min);
}

Test(vary_sweep, its_settings_are_recomputation_times_streams) {
    sweep_plan plan = {.model = small, .n_seeds = 1};
    bool seen[2][2] = {{false}};
    plan.model.side_streams = 2;
    for (unsigned setting = 0; setting < SWEEP_SETTINGS; setting++) {
        vary_options model = sweep_model(&plan, setting, 0);
        seen[model.recompute][model.side_streams == 2] = true;
    }
    cr_expect(seen[0][0] && seen[0][1] && seen[1][0] && seen[1][1]);
}

static sweep_sample measure(const contender_ops *contender, uint64_t seed) {
    bench_device device;
    char reason[256];
    sweep_sample sample;
    vary_options wide = small;
    wide.sequence.max = 4096;
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    sweep_plan plan = {.model = wide,
                       .n_seeds = 2,
                       .replay = {.device = &device, .n_passes = 1},
                       .judge = &device};
    cr_assert_null(sweep_measure(&plan, 0, SWEEP_SPREADS - 1, seed, &contender, 1, &sample));
    return sample;
}

Test(vary_sweep, near_its_smallest_capacity_a_contender_holds_no_more_than_that_allows) {
    sweep_sample s = measure(&contender_classic, 0);
    const double *is = s.figures;
    cr_assert_eq(s.outcome, RUN_COMPLETED);
    cr_expect_geq(is[SWEEP_HELD_PEAK], is[SWEEP_MIN_CAPACITY]);
    cr_expect_geq(is[SWEEP_MIN_CAPACITY], is[SWEEP_LIVE_PEAK]);
    cr_expect_leq(is[SWEEP_TIGHT_HELD_PEAK], is[SWEEP_MIN_CAPACITY] * 1.02 + (2 << 20));
    cr_expect_gt(is[SWEEP_DRIVER_NS], 0);
    cr_expect_str_empty(s.message);
}

Test(vary_sweep, each_seed_is_another_run) {
    cr_expect_neq(measure(&contender_ductile, 0).figures[SWEEP_LIVE_PEAK],
                  measure(&contender_ductile, 1).figures[SWEEP_LIVE_PEAK]);
}

Test(vary_sweep, an_absent_contender_is_no_run) {
    sweep_sample s = measure(&contender_cumemallocasync, 0);
    cr_expect_eq(s.outcome, RUN_ABSENT);
    cr_expect(isnan(s.figures[SWEEP_MIN_CAPACITY]));
    cr_expect_str_not_empty(s.message);
}
