/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The synthetic training loop: its events make a trace like any other, follow the seed and nothing
 * else, and move as a training loop's memory does. Its command line refuses what cannot be meant.
 */
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/trace/trace.h"
#include "bench/workloads/churn_measure.h"
#include "bench/workloads/vary_model.h"

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

static trace *build(const vary_options *options, FILE *text) {
    trace *t = calloc(1, sizeof *t);
    cr_assert_not_null(t);
    const char *failure = vary_build(options, text, t);
    cr_assert_null(failure, "%s", failure);
    return t;
}

static bool same_events(const trace *a, const trace *b) {
    return a->n_events == b->n_events &&
           memcmp(a->events, b->events, a->n_events * sizeof *a->events) == 0;
}

/* ---- The model ----------------------------------------------------------------------------- */

Test(vary_model, the_same_seed_gives_the_same_events) {
    trace *first = build(&small, NULL);
    trace *second = build(&small, NULL);
    cr_expect(same_events(first, second));
    cr_expect_eq(first->live_peak_bytes, second->live_peak_bytes);
    trace_free(first);
    trace_free(second);
}

Test(vary_model, another_seed_gives_other_sizes) {
    vary_options other = small;
    other.seed = 2;
    trace *first = build(&small, NULL);
    trace *second = build(&other, NULL);
    cr_expect_not(same_events(first, second));
    trace_free(first);
    trace_free(second);
}

Test(vary_model, a_fixed_batch_repeats_itself) {
    vary_options fixed = small;
    fixed.batch = (vary_interval){2, 2};
    fixed.sequence = (vary_interval){64, 64};
    trace *short_run = build(&fixed, NULL);
    fixed.steps = 12;
    trace *long_run = build(&fixed, NULL);
    cr_expect_eq(short_run->live_peak_bytes, long_run->live_peak_bytes);
    trace_free(short_run);
    trace_free(long_run);
}

/* Weights, their 4-byte copies and two optimizer states stay, and the libraries' workspace. */
Test(vary_model, after_the_last_step_only_weights_and_states_are_live) {
    trace *t = build(&small, NULL);
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
    trace *keeping = build(&long_sequences, NULL);
    long_sequences.recompute = true;
    trace *recomputing = build(&long_sequences, NULL);
    cr_expect_lt(2 * recomputing->live_peak_bytes, keeping->live_peak_bytes * 3 / 2);
    cr_expect_gt(recomputing->n_ops, keeping->n_ops);
    trace_free(keeping);
    trace_free(recomputing);
}

Test(vary_model, momentum_alone_needs_less_than_adam) {
    vary_options sgd = small;
    sgd.optimizer = VARY_SGD;
    trace *with_adam = build(&small, NULL);
    trace *with_sgd = build(&sgd, NULL);
    cr_expect_lt(with_sgd->live_peak_bytes, with_adam->live_peak_bytes);
    trace_free(with_adam);
    trace_free(with_sgd);
}

Test(vary_model, what_is_written_reads_back_as_the_same_events) {
    char path[] = "varybatch-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    FILE *file = fdopen(fd, "w");
    cr_assert_not_null(file);
    trace *built = build(&small, file);
    cr_assert_eq(fclose(file), 0);
    trace_error error;
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

/* ---- The command line they share ----------------------------------------------------------- */

static const bench_option no_options[] = {{0}};
static const bench_command bare = {.name = "bare", .summary = "", .own = no_options};

static bool parses(bench_options *out, int argc, const char *const *words) {
    char *argv[8] = {0};
    char message[256] = "";
    for (int i = 0; i < argc; i++) {
        argv[i] = (char *)(uintptr_t)words[i];
    }
    bool ok = bench_options_parse(&bare, argc, argv, out, NULL, message, sizeof message);
    cr_expect(ok == (message[0] == '\0'), "%s", message);
    return ok;
}

#define PARSES(out, ...)                                                                           \
    parses(out, (int)(sizeof((const char *const[]){"bare", __VA_ARGS__}) / sizeof(char *)),        \
           (const char *const[]){"bare", __VA_ARGS__})

Test(command_line, takes_values_after_a_blank_or_an_equals_sign) {
    bench_options o;
    cr_assert(PARSES(&o, "--capacity", "3G", "--contender=classic,ductile"));
    cr_expect_eq(o.capacity_bytes, (uint64_t)3 << 30);
    cr_assert_eq(o.n_contenders, 2);
    cr_expect_eq(o.contenders[0], &contender_classic);
    cr_expect_eq(o.contenders[1], &contender_ductile);
}

Test(command_line, runs_every_contender_unless_told_otherwise) {
    bench_options o;
    cr_assert(PARSES(&o, "--json"));
    cr_expect(o.json);
    cr_expect_eq(o.n_contenders, 5);
}

Test(command_line, refuses_what_it_does_not_know) {
    bench_options o;
    cr_expect_not(PARSES(&o, "--nonsense"));
    cr_expect_not(PARSES(&o, "word"));
    cr_expect_not(PARSES(&o, "--capacity"));
    cr_expect_not(PARSES(&o, "--capacity", "many"));
    cr_expect_not(PARSES(&o, "--json=yes"));
    cr_expect_not(PARSES(&o, "--contender", "classic,classic"));
    cr_expect_not(PARSES(&o, "--contender", "nobody"));
    cr_expect_not(PARSES(&o, "--device", "tpu"));
    cr_expect_not(PARSES(&o, "--contender", "classic", "--set", "heal=off"));
    cr_expect_not(PARSES(&o, "--set", "no_such_key=1"));
}

Test(command_line, misuse_is_exit_status_2) {
    char *heads[] = {(char[]){"varybatch"}, (char[]){"--heads=7"}};
    char *live[] = {(char[]){"churn"}, (char[]){"--live=0"}};
    cr_expect_eq(run_varybatch(2, heads), 2);
    cr_expect_eq(run_churn(2, live), 2);
}

/* ---- Churn --------------------------------------------------------------------------------- */

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
    cr_assert_eq(r.outcome, CHURN_COMPLETED, "%s", r.message);
    cr_expect_eq(r.stretches[0].ops, 2000);
    cr_expect_eq(r.stretches[CHURN_STRETCHES - 1].ops, 20000);
    cr_expect_gt(r.ns_per_op, 0);
    cr_expect_geq(r.wall_ns_per_op, r.ns_per_op);
    cr_expect_gt(r.stretches[0].host_bytes, 0);
}

Test(churn, running_out_of_memory_is_an_outcome) {
    churn_result r;
    run_churn_of(&contender_classic, (uint64_t)4 << 20, 10000, &r);
    cr_expect_eq(r.outcome, CHURN_OUT_OF_MEMORY);
}

Test(churn, an_absent_contender_is_an_outcome) {
    churn_result r;
    run_churn_of(&contender_cumemallocasync, 0, 100, &r);
    cr_expect_eq(r.outcome, CHURN_ABSENT);
}

Test(churn, sizes_shrink_until_the_blocks_fit) {
    churn_sizes wanted = {65536, (uint64_t)16 << 20};
    churn_sizes kept = churn_fit_sizes(wanted, 100, (uint64_t)139 << 30);
    churn_sizes shrunk = churn_fit_sizes(wanted, 1000000, (uint64_t)139 << 30);
    cr_expect_eq(kept.max, wanted.max);
    cr_expect_lt(shrunk.max, wanted.max);
    cr_expect_geq(shrunk.min, 512);
}
