/* SPDX-License-Identifier: Apache-2.0 */
/* Churn: that its figures cover the operations it was told to time. How a run ends is in
 * tests/bench/models.txt. */
#include "bench/workloads/churn_measure.h"

#include <criterion/criterion.h>

Test(churn, times_all_operations_in_ten_stretches) {
    bench_device device;
    char reason[128] = "";
    churn_result r;
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    const churn_spec spec = {.plan = {.device = &device, .contender = &contender_expandable},
                             .sizes = {512, 65536},
                             .live = 500,
                             .ops = 20000,
                             .seed = 1};
    churn_measure(&spec, &r);
    cr_assert_eq(r.outcome, RUN_COMPLETED, "%s", r.message);
    cr_expect_eq(r.stretches[0].ops, 2000);
    cr_expect_eq(r.stretches[CHURN_STRETCHES - 1].ops, 20000);
    cr_expect_gt(r.ns_per_op, 0);
    cr_expect_geq(r.wall_ns_per_op, r.ns_per_op);
    cr_expect_gt(r.stretches[0].host_bytes, 0);
}
