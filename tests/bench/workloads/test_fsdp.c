/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharded training step: that work on the virtual GPU takes the time it is given, and that an
 * allocator which hands out memory too early is found. Its program is in tests/bench/models.txt.
 */
#include "bench/trace/trace_finish.h"
#include "bench/workloads/fsdp_run.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static trace *events;
static bench_device device;
static fsdp_result result;

static void build(const fsdp_options *options) {
    char reason[128];
    cr_assert_null(fsdp_check(options), "%s", fsdp_check(options));
    cr_assert(fsdp_build(options, &program));
    trace_builder b;
    const char *why = fsdp_generate(&program, &b);
    cr_assert_null(why, "%s", why);
    events = trace_make(&b, "fsdp", &why);
    cr_assert_not_null(events, "%s", why);
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
}

static void drop_now(void) {
    fsdp_drop(&program);
    trace_free(events);
    events = NULL;
}

TestSuite(fsdp, .fini = drop_now);

static fsdp_run_spec spec_of(const contender_ops *contender, uint64_t seed) {
    return (fsdp_run_spec){
        .program = &program, .device = &device, .contender = contender, .seed = seed};
}

static const fsdp_result *run(fsdp_run_spec spec) {
    fsdp_run(&spec, &result);
    return &result;
}

/* The other stream does nothing. */
static const fsdp_result *run_alone(const contender_ops *contender, const char *setting,
                                    size_t stream) {
    fsdp_run_spec spec = spec_of(contender, 1);
    spec.settings = &setting;
    spec.n_settings = setting != NULL;
    spec.is_idle[FSDP_N_STREAMS - 1 - stream] = true;
    return run(spec);
}

/* ---- Work on streams ----------------------------------------------------------------------- */

/* Against what the host takes to issue it. */
static void make_work_long(void) {
    for (size_t i = 0; i < program.n_ops; i++) {
        program.ops[i].ns *= 1000;
    }
}

Test(fsdp, a_stream_alone_takes_the_sum_of_its_work) {
    uint64_t sum[FSDP_N_STREAMS] = {0};
    build(&small);
    for (size_t i = 0; i < program.n_ops; i++) {
        const fsdp_op *op = &program.ops[i];
        sum[op->stream] += op->kind == FSDP_GATHER || op->kind == FSDP_WORK ? op->ns * 1000 : 0;
    }
    make_work_long();
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        cr_assert_eq(run_alone(&contender_expandable, NULL, i)->outcome, RUN_COMPLETED);
        cr_expect_gt((double)result.elapsed_ns, 0.9 * (double)sum[i], "stream %zu", i);
        cr_expect_lt((double)result.elapsed_ns, 1.15 * (double)sum[i], "stream %zu", i);
    }
}

Test(fsdp, the_streams_overlap) {
    uint64_t alone[FSDP_N_STREAMS];
    build(&small);
    make_work_long();
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        alone[i] = run_alone(&contender_expandable, NULL, i)->elapsed_ns;
    }
    uint64_t together = run(spec_of(&contender_expandable, 1))->elapsed_ns;
    cr_assert_lt(together, alone[0] + alone[1]);
    cr_assert_geq(together, alone[0]);
    cr_assert_geq(together, alone[1]);
}

Test(fsdp, no_contender_hands_out_memory_that_is_in_use) {
    build(&small);
    for (size_t i = 0; all_contenders[i] != NULL; i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            run(spec_of(all_contenders[i], seed));
            if (result.outcome == RUN_ABSENT) {
                continue;
            }
            const char *name = all_contenders[i]->name;
            cr_expect_eq(result.outcome, RUN_COMPLETED, "%s: %s", name, result.message);
            cr_expect_gt(result.n_tags, 0);
            cr_expect_eq(result.wrong_tags, 0, "%s, seed %llu", name, (unsigned long long)seed);
            cr_expect_eq(result.violations, 0, "%s", name);
        }
    }
}

/* ---- Ductile's two ways -------------------------------------------------------------------- */

/* Large against a granule; the host runs far ahead. */
static const fsdp_options large = {.layers = 12,
                                   .hidden = 4096,
                                   .ranks = 64,
                                   .tokens_min = 2048,
                                   .tokens_max = 8192,
                                   .steps = 4,
                                   .prefetch = 3,
                                   .hold = 1,
                                   .seed = 1};

static const fsdp_result *run_ductile(const char *setting, uint64_t seed) {
    fsdp_run_spec spec = spec_of(&contender_ductile, seed);
    spec.settings = &setting;
    spec.n_settings = 1;
    run(spec);
    cr_assert_eq(result.outcome, RUN_COMPLETED, "%s", result.message);
    cr_assert_eq(result.wrong_tags, 0, "seed %llu", (unsigned long long)seed);
    cr_assert_eq(result.violations, 0);
    return &result;
}

Test(fsdp, with_wait_the_peak_is_the_same_on_every_run_and_near_what_is_live) {
    build(&large);
    uint64_t peak = run_ductile("record_stream=wait", 1)->stats.reserved_peak_bytes;
    cr_expect_leq((double)peak, (double)events->live_peak_bytes / 0.98);
    for (uint64_t seed = 2; seed <= 5; seed++) {
        run_ductile("record_stream=wait", seed);
        cr_expect_eq(result.stats.reserved_peak_bytes, peak);
        cr_expect_eq(result.stats.stream_syncs, 0, "the host waited");
        cr_expect_gt(result.stats.event_waits, 0);
    }
}

Test(fsdp, with_poll_the_peak_is_what_a_host_that_runs_ahead_makes_it) {
    build(&large);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        run_ductile("record_stream=poll", seed);
        cr_expect_gt(result.stats.reserved_peak_bytes, events->live_peak_bytes / 2 * 3);
        cr_expect_eq(result.stats.event_waits, 0, "streams were tied together");
        cr_expect_eq(result.stats.stream_syncs, 0);
    }
}

/* A host that may not run ahead finds memory that is done with. */
Test(fsdp, with_a_limiter_no_way_to_allocate_holds_what_all_gathers_of_a_step_take) {
    const contender_ops *polling[] = {&contender_ductile, &contender_expandable};
    fsdp_options limited = large;
    limited.limiter = limited.prefetch + 1;
    for (size_t i = 0; i < 2; i++) {
        build(&large);
        uint64_t ahead = run(spec_of(polling[i], 1))->stats.reserved_peak_bytes;
        cr_expect_gt(result.gap_mean_ns, 0);
        drop_now();
        build(&limited);
        run(spec_of(polling[i], 1));
        cr_expect_lt(result.stats.reserved_peak_bytes, ahead / 2, "%s", polling[i]->name);
        cr_expect_lt((double)result.stats.reserved_peak_bytes,
                     1.2 * (double)events->live_peak_bytes);
        cr_expect_eq(result.wrong_tags + result.violations, 0);
        drop_now();
    }
}

/* Communication is the shorter of the two and hides behind compute. */
Test(fsdp, with_poll_the_streams_overlap_as_if_nobody_waited) {
    uint64_t alone[FSDP_N_STREAMS];
    const char *poll = "record_stream=poll";
    build(&large);
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        alone[i] = run_alone(&contender_ductile, poll, i)->steady_ns;
    }
    double together = (double)run_ductile(poll, 1)->steady_ns;
    double longer = (double)(alone[0] > alone[1] ? alone[0] : alone[1]);
    double shorter = (double)(alone[0] > alone[1] ? alone[1] : alone[0]);
    cr_expect_lt(together, longer + 0.1 * shorter);
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
    make_work_long();
    cr_assert_eq(run(spec_of(&careless, 1))->outcome, RUN_COMPLETED);
    cr_assert_gt(result.wrong_tags, 0);
    cr_assert_gt(result.violations, 0);
    cr_assert_eq(run(spec_of(&contender_expandable, 1))->wrong_tags, 0);
}
