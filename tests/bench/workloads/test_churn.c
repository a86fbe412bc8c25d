/* SPDX-License-Identifier: Apache-2.0 */
/* Churn: that its figures cover the operations it was told to time, and how a run can end. */
#include "bench/workloads/churn_measure.h"

#include <criterion/criterion.h>

static void run_churn_of(const contender_ops *ops, uint64_t capacity, uint64_t live,
                         churn_result *result) {
    bench_device device;
    char reason[128] = "";
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    const stage_plan plan = {
        .device = &device, .contender = ops, .capacity_bytes = capacity, .n_streams = 1};
    const churn_spec spec = {
        .plan = &plan, .sizes = {512, 65536}, .live = live, .ops = 20000, .seed = 1};
    churn_measure(&spec, result);
}

Test(churn, times_all_operations_in_ten_stretches) {
    churn_result r;
    run_churn_of(&contender_expandable, 0, 500, &r);
    cr_assert_eq(r.outcome, RUN_COMPLETED, "%s", r.message);
    cr_expect_eq(r.stretches[0].ops, 2000);
    cr_expect_eq(r.stretches[CHURN_STRETCHES - 1].ops, 20000);
    cr_expect_gt(r.ns_per_op, 0);
    cr_expect_geq(r.wall_ns_per_op, r.ns_per_op);
    cr_expect_gt(r.stretches[0].host_bytes, 0);
}

Test(churn, running_out_of_memory_is_an_outcome) {
    churn_result r;
    run_churn_of(&contender_classic, (uint64_t)4 << 20, 10000, &r);
    cr_expect_eq(r.outcome, RUN_OUT_OF_MEMORY);
}

Test(churn, an_absent_contender_is_an_outcome) {
    churn_result r;
    run_churn_of(&contender_cumemallocasync, 0, 100, &r);
    cr_expect_eq(r.outcome, RUN_ABSENT);
}

Test(churn, sizes_shrink_until_the_blocks_fit) {
    churn_sizes wanted = {65536, (uint64_t)16 << 20};
    churn_sizes kept = churn_fit_sizes(wanted, 100, (uint64_t)139 << 30);
    churn_sizes shrunk = churn_fit_sizes(wanted, 1000000, (uint64_t)139 << 30);
    cr_expect_eq(kept.max, wanted.max);
    cr_expect_lt(shrunk.max, wanted.max);
    cr_expect_geq(shrunk.min, 512);
}
