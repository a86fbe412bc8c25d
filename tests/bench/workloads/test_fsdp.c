/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharded training step: that work on the virtual GPU takes the time it is given, and that an
 * allocator which hands out memory too early is found. Its program, and what its runs hold, are in
 * tests/bench/models.txt.
 */
#include "bench/workloads/fsdp_run.h"

#include <criterion/criterion.h>

static const fsdp_options small = {.layers = 4,
                                   .hidden = 256,
                                   .ranks = 4,
                                   .tokens_min = 100,
                                   .tokens_max = 500,
                                   .steps = 3,
                                   .prefetch = 2,
                                   .hold = 1,
                                   .seed = 1};

static fsdp_program program;
static fsdp_result result;

/* Its work is long against what the host takes to issue it. */
static void build(const fsdp_options *options) {
    cr_assert_null(fsdp_check(options), "%s", fsdp_check(options));
    cr_assert(fsdp_build(options, &program));
    for (size_t i = 0; i < program.n_ops; i++) {
        program.ops[i].ns *= 1000;
    }
}

static void drop_now(void) {
    fsdp_drop(&program);
}

TestSuite(fsdp, .fini = drop_now);

/* Of these streams; the others do nothing. */
static const fsdp_result *run(const contender_ops *contender, bool computes, bool communicates) {
    bench_device device;
    char reason[128];
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    const fsdp_run_spec spec = {
        .program = &program,
        .plan = {.device = &device, .contender = contender},
        .seed = 1,
        .is_idle = {[FSDP_COMPUTE] = !computes, [FSDP_COMMUNICATION] = !communicates}};
    fsdp_run(&spec, &result);
    cr_assert_eq(result.outcome, RUN_COMPLETED, "%s", result.message);
    return &result;
}

static uint64_t time_of(size_t stream) {
    return run(&contender_expandable, stream == FSDP_COMPUTE, stream == FSDP_COMMUNICATION)
        ->elapsed_ns;
}

Test(fsdp, a_stream_alone_takes_the_sum_of_its_work_and_they_overlap) {
    uint64_t sum[FSDP_N_STREAMS] = {0};
    uint64_t alone[FSDP_N_STREAMS];
    build(&small);
    for (size_t i = 0; i < program.n_ops; i++) {
        const fsdp_op *op = &program.ops[i];
        sum[op->stream] += op->kind == FSDP_GATHER || op->kind == FSDP_WORK ? op->ns : 0;
    }
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        alone[i] = time_of(i);
        cr_expect_gt((double)alone[i], 0.9 * (double)sum[i], "stream %zu", i);
        cr_expect_lt((double)alone[i], 1.15 * (double)sum[i], "stream %zu", i);
    }
    uint64_t together = run(&contender_expandable, true, true)->elapsed_ns;
    cr_assert_lt(together, alone[0] + alone[1]);
    cr_assert_geq(together, alone[0]);
    cr_assert_geq(together, alone[1]);
}

/* ---- A contender that forgets record_stream ------------------------------------------------ */

static ductile_status forget(void *self, ductile_addr address, ductile_stream stream) {
    (void)self;
    (void)address;
    (void)stream;
    return DUCTILE_OK;
}

/* Gathers do not wait for compute: nothing but the allocator keeps them off memory in use. */
Test(fsdp, memory_that_is_handed_out_too_early_is_found) {
    contender_ops careless = contender_expandable;
    fsdp_options slow_compute = small;
    careless.record_stream = forget;
    slow_compute.tokens_min = slow_compute.tokens_max = 20000;
    build(&slow_compute);
    run(&careless, true, true);
    cr_assert_gt(result.wrong_tags, 0);
    cr_assert_gt(result.violations, 0);
    cr_assert_eq(run(&contender_expandable, true, true)->wrong_tags, 0);
}
