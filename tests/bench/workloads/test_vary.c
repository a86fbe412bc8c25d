/* SPDX-License-Identifier: Apache-2.0 */
/* The sweep over the synthetic training loop. What that loop does is in tests/bench/models.txt. */
#include "bench/workloads/vary_sweep.h"

#include <criterion/criterion.h>
#include <math.h>

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
                       .replay = {.plan.device = &device, .n_passes = 1},
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
