/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine, seen from a contender that writes down what it is asked: that every event arrives,
 * once and in order, on the right stream; that a use by another stream really is under way when
 * its block is freed and really is over at the completion; that a pass leaves nothing live.
 */
#include "bench/replay/replay_engine.h"
#include "tests/bench/reading.h"

#include <ductile_virtual.h>

enum { MAX_CALLS = 64 };

typedef struct call {
    char kind; /* a, f, r; q: what a query of the recorded stream said at that moment */
    uint64_t size;
    ductile_addr address;
    ductile_stream stream;
    ductile_status answer;
} call;

static call calls[MAX_CALLS];
static size_t n_calls;
static size_t n_live;
static uint64_t capacity;
static uint64_t held;
static ductile_addr blocks[MAX_CALLS]; /* every one ever handed out */
static uint64_t sizes[MAX_CALLS];
static size_t n_blocks;
static bool has_no_memory; /* behind the addresses it hands out */
static dvmm_driver *driver;
static ductile_stream recorded; /* the latest stream that was recorded */
static ductile_status init_answer;
static reading now;
static replay_result result;

static void note(call c) {
    cr_assert_lt(n_calls, MAX_CALLS);
    calls[n_calls++] = c;
}

static void note_query(void) {
    if (recorded != NULL) {
        note((call){.kind = 'q', .answer = dvmm_stream_query(driver, recorded)});
    }
}

static ductile_status fake_init(const contender_env *env, void **self, char *message, size_t size) {
    (void)snprintf(message, size, "not today");
    *self = init_answer == DUCTILE_OK ? &n_calls : NULL;
    driver = env->driver;
    capacity = env->capacity_bytes;
    return init_answer;
}

static void fake_fini(void *self) {
    (void)self;
    for (; n_blocks > 0 && !has_no_memory; n_blocks--) {
        (void)dvmm_mem_free(driver, blocks[n_blocks - 1]);
    }
}

static size_t index_of(ductile_addr address) {
    size_t i = 0;
    while (i < n_blocks && blocks[i] != address) {
        i++;
    }
    cr_assert_lt(i, n_blocks, "an address that was never handed out");
    return i;
}

static ductile_status fake_alloc(void *self, uint64_t size, ductile_stream stream,
                                 ductile_addr *out) {
    (void)self;
    note_query();
    if (capacity != 0 && held + size > capacity) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    if (has_no_memory) {
        *out = n_blocks + 1;
    } else if (dvmm_mem_alloc(driver, size, out) != DUCTILE_OK) {
        return DUCTILE_ERR_DRIVER;
    }
    sizes[n_blocks] = size;
    blocks[n_blocks++] = *out;
    held += size;
    n_live++;
    note((call){.kind = 'a', .size = size, .address = *out, .stream = stream});
    return DUCTILE_OK;
}

static ductile_status fake_free(void *self, ductile_addr address) {
    (void)self;
    held -= sizes[index_of(address)];
    n_live--;
    note((call){.kind = 'f', .address = address});
    note_query();
    return DUCTILE_OK;
}

static ductile_status fake_record(void *self, ductile_addr address, ductile_stream stream) {
    (void)self;
    recorded = stream;
    note((call){.kind = 'r', .address = address, .stream = stream});
    return DUCTILE_OK;
}

static ductile_status fake_trim(void *self) {
    (void)self;
    return DUCTILE_OK;
}

static void fake_stats(void *self, contender_stats *out) {
    (void)self;
    *out = (contender_stats){.reserved_bytes = held,
                             .creates = n_calls,
                             .pressure_waits = 2 * n_calls,
                             .pressure_returns = 3 * n_calls,
                             .pressure_returned_bytes = 4 * n_calls};
}

static const contender_ops fake = {
    .name = "fake",
    .summary = "writes down what it is asked",
    .init = fake_init,
    .fini = fake_fini,
    .alloc = fake_alloc,
    .free = fake_free,
    .record_stream = fake_record,
    .trim = fake_trim,
    .stats = fake_stats,
};

static ductile_status fake_done(void *self, ductile_stream stream) {
    (void)self;
    note((call){.kind = 'd', .stream = stream});
    return DUCTILE_OK;
}

static void drop_now(void) {
    drop_reading(&now);
}

TestSuite(replay, .fini = drop_now);

static run_outcome replay(const char *text, replay_spec spec) {
    bench_device device;
    char reason[128];
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    cr_assert(read_bytes_as_trace(text, strlen(text), TRACE_BUSIEST_GPU, &now));
    spec.trace = &now.t;
    spec.device = &device;
    spec.contender = spec.contender != NULL ? spec.contender : &fake;
    spec.n_passes = spec.n_passes > 0 ? spec.n_passes : 1;
    replay_run(&spec, &result);
    return result.outcome;
}

static void assert_kinds(const char *expected) {
    char kinds[MAX_CALLS + 1] = "";
    for (size_t i = 0; i < n_calls; i++) {
        kinds[i] = calls[i].kind;
    }
    cr_assert_str_eq(kinds, expected);
}

static void assert_run(const char *text, replay_spec spec, const char *kinds) {
    cr_assert_eq(replay(text, spec), RUN_COMPLETED);
    assert_kinds(kinds);
}

Test(replay, every_event_arrives_in_order_with_its_size) {
    assert_run("a 1 10 0\na 2 20 0\nf 1\na 3 30 0\nf 3\nf 2\n", (replay_spec){0}, "aafaff");
    cr_assert_eq(calls[1].size, 20);
    cr_assert_eq(calls[2].address, calls[0].address);
    cr_assert_eq(calls[4].address, calls[3].address);
    cr_assert_eq(result.last.ops, 6);
}

Test(replay, streams_of_the_trace_are_streams_of_their_own) {
    (void)replay("a 1 10 0\na 2 20 5\na 3 30 0\n", (replay_spec){0});
    cr_assert_not_null(calls[0].stream, "the default stream takes part");
    cr_assert_neq(calls[0].stream, calls[1].stream);
    cr_assert_eq(calls[0].stream, calls[2].stream);
}

static const char ends[] = "# version 3\na 1 10 0\nu 1 5\nf 1\ne 5\na 2 10 0\nd 5\nf 2\n";
static const replay_spec lazily = {.pace = {.schedule = DUCTILE_SCHEDULE_LAZY}};

Test(replay, an_end_is_told_and_the_next_stream_is_another) {
    contender_ops told = fake;
    replay_spec spec = lazily;
    told.stream_done = fake_done;
    spec.contender = &told;
    assert_run(ends, spec, "arfqdqafq");
    cr_assert_eq(calls[4].stream, calls[1].stream);
    cr_assert_eq(calls[3].answer, DUCTILE_ERR_NOT_READY, "the use ended by itself");
    cr_assert_eq(calls[5].answer, DUCTILE_OK, "the new one has the old one's work");
}

Test(replay, who_cannot_be_told_keeps_the_stream) {
    assert_run(ends, lazily, "arfqqafq");
    cr_assert_eq(calls[4].answer, DUCTILE_ERR_NOT_READY);
}

Test(replay, what_lives_at_the_end_of_a_pass_is_freed) {
    assert_run("a 1 10 0\na 2 20 0\nf 1\n", (replay_spec){.n_passes = 3}, "aaffaaffaaff");
    cr_assert_eq(n_live, 0);
    cr_assert_eq(result.last.ops, 3, "frees at the end of a pass are no operations of the trace");
}

static void assert_calls(const contender_stats *stats, uint64_t n) {
    cr_assert_eq(stats->creates, n);
    cr_assert_eq(stats->pressure_waits, 2 * n);
    cr_assert_eq(stats->pressure_returns, 3 * n);
    cr_assert_eq(stats->pressure_returned_bytes, 4 * n);
}

Test(replay, counts_are_over_all_passes_and_of_each) {
    (void)replay("a 1 10 0\nf 1\n", (replay_spec){.n_passes = 3});
    assert_calls(&result.total, 6);
    assert_calls(&result.last.stats, 2);
    assert_calls(&result.first.stats, 2);
    assert_calls(&result.all.stats, 6);
    cr_assert_eq(result.first.ops, 2);
}

Test(replay, what_the_loop_costs_is_measured_without_the_contender) {
    (void)replay("a 1 10 0\na 2 20 0\nf 1\n", (replay_spec){.n_passes = 2});
    assert_kinds("aaffaaff");
    cr_assert_lt(result.loop_ns_per_op, 1e6, "calls that do nothing take no milliseconds");
    cr_assert_geq(result.loop_ns_per_op, 0);
}

Test(replay, timed_calls_are_the_calls_of_an_untimed_replay) {
    (void)replay("a 1 10 0\na 2 20 0\nf 1\n", (replay_spec){.n_passes = 3, .times_calls = true});
    assert_kinds("aaffaaffaaff");
    cr_assert_eq(result.cold_calls.calls, 3);
    cr_assert_eq(result.warm_calls.calls, 6);
    cr_assert_leq(result.warm_calls.median_ns, result.warm_calls.worst_ns);
}

Test(replay, a_single_pass_has_no_warm_calls) {
    (void)replay("a 1 10 0\nf 1\n", (replay_spec){.times_calls = true});
    cr_assert_eq(result.cold_calls.calls, 2);
    cr_assert_eq(result.warm_calls.calls, 0);
}

Test(replay, another_streams_use_is_under_way_from_the_free_to_the_completion) {
    assert_run("a 1 10 0\na 2 20 1\nf 1\na 3 1 0\nc 1\na 4 1 0\n", (replay_spec){0},
               "aarfqqaqafqfqfq"); /* three frees at the end of the pass */
    cr_assert_eq(calls[2].stream, calls[1].stream, "not the next higher stream");
    cr_assert_eq(calls[2].address, calls[0].address);
    cr_assert_eq(calls[4].answer, DUCTILE_ERR_NOT_READY, "over at the free already");
    cr_assert_eq(calls[5].answer, DUCTILE_ERR_NOT_READY, "over before the completion");
    cr_assert_eq(calls[7].answer, DUCTILE_OK, "still under way after the completion");
    cr_assert_eq(result.violations, 0);
}

Test(replay, gates_count_anew_in_every_pass) {
    cr_assert_eq(replay("a 1 10 0\na 2 20 1\nf 1\nc 1\n", (replay_spec){.n_passes = 2}),
                 RUN_COMPLETED);
    size_t n_queries = 0;
    for (size_t i = 0; i < n_calls; i++) {
        n_queries += calls[i].kind == 'q';
        bool right_behind_free = i > 1 && calls[i].kind == 'q' && calls[i - 2].kind == 'r';
        cr_assert(!right_behind_free || calls[i].answer == DUCTILE_ERR_NOT_READY, "call %zu", i);
    }
    cr_assert_gt(n_queries, 2);
}

Test(replay, a_use_that_never_completes_ends_with_its_pass) {
    cr_assert_eq(
        replay("a 1 10 0\na 2 1 1\na 3 5 0\nf 1\nf 3\nc 3\n", (replay_spec){.n_passes = 2}),
        RUN_COMPLETED);
    cr_assert_eq(n_live, 0);
    cr_assert_eq(result.violations, 0);
}

Test(replay, a_named_use_is_recorded_where_it_stands) {
    assert_run("# version 2\na 1 10 0\na 2 20 1\nu 1 1\na 3 30 0\nf 1\n", (replay_spec){0},
               "aarqafqfqfq");
    cr_assert_eq(calls[2].address, calls[0].address);
    cr_assert_eq(calls[2].stream, calls[1].stream);
    cr_assert_eq(calls[6].answer, DUCTILE_OK, "work completes at once unless told otherwise");
}

Test(replay, a_named_use_completes_as_the_pace_has_it) {
    static const char text[] = "# version 2\na 1 10 0\na 2 20 1\nu 1 1\nf 1\na 3 30 0\na 4 40 0\n";
    const bench_pace lag = {.schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 2};
    assert_run(text, (replay_spec){.pace = lag}, "aarfqqaqafqfqfq");
    cr_assert_eq(calls[4].answer, DUCTILE_ERR_NOT_READY, "one event after the use");
    cr_assert_eq(calls[5].answer, DUCTILE_OK, "two events after the use");
}

Test(replay, nothing_completes_by_itself_on_a_lazy_device) {
    static const char text[] = "# version 2\na 1 10 0\na 2 20 1\nu 1 1\nf 1\na 3 30 0\n";
    const bench_pace lazy = {.schedule = DUCTILE_SCHEDULE_LAZY};
    cr_assert_eq(replay(text, (replay_spec){.pace = lazy}), RUN_COMPLETED);
    for (size_t i = 0; i < n_calls; i++) {
        cr_assert(calls[i].kind != 'q' || calls[i].answer == DUCTILE_ERR_NOT_READY);
    }
}

Test(replay, named_uses_end_together_at_the_completion) {
    assert_run("# version 2\na 1 10 0\nu 1 1\nu 1 2\nf 1\na 2 1 0\nc 1\na 3 1 0\n",
               (replay_spec){0}, "arrfqqaqafqfq");
    cr_assert_eq(calls[4].answer, DUCTILE_ERR_NOT_READY, "over at the free already");
    cr_assert_eq(calls[5].answer, DUCTILE_ERR_NOT_READY, "over before the completion");
    cr_assert_eq(calls[7].answer, DUCTILE_OK, "still under way after the completion");
}

Test(replay, a_use_of_what_is_not_mapped_is_a_failure) {
    has_no_memory = true; /* as of a contender that unmaps too early */
    cr_assert_eq(replay("# version 2\na 1 10 0\nu 1 1\na 2 1 0\nf 1\n", (replay_spec){0}),
                 RUN_FAILED);
}

static ductile_status forget(void *self, ductile_addr address, ductile_stream stream) {
    (void)self;
    (void)address;
    (void)stream;
    return DUCTILE_OK;
}

/* On a device that does everything at once: what is missing is the order. */
Test(replay, a_check_finds_memory_that_is_handed_out_too_early) {
    static const char text[] =
        "# version 2\na 1 4194304 0\nu 1 1\nf 1\na 2 4194304 0\nf 2\na 3 4194304 0\n";
    contender_ops careless = contender_expandable;
    careless.record_stream = forget;
    cr_assert_eq(replay(text, (replay_spec){.contender = &careless}), RUN_COMPLETED);
    cr_assert_eq(result.violations, 0, "the replay looked without being told to");
    drop_now();
    cr_assert_eq(replay(text, (replay_spec){.contender = &careless, .checks = true}),
                 RUN_COMPLETED);
    cr_assert_gt(result.violations, 0);
    drop_now();
    cr_assert_eq(replay(text, (replay_spec){.contender = &contender_expandable, .checks = true}),
                 RUN_COMPLETED);
    cr_assert_eq(result.violations, 0, "%s", result.last_violation);
}

Test(replay, out_of_memory_stops_and_says_where) {
    cr_assert_eq(replay("a 1 10 0\na 2 20 0\na 3 30 0\nf 1\n", (replay_spec){.capacity_bytes = 40}),
                 RUN_OUT_OF_MEMORY);
    cr_assert_eq(result.stopped_at_event, 2);
    cr_assert_eq(result.stopped_in_pass, 1);
    cr_assert_eq(result.last.ops, 2);
    cr_assert_eq(n_live, 0);
}

Test(replay, an_absent_contender_is_a_result) {
    init_answer = DUCTILE_ERR_UNSUPPORTED;
    cr_assert_eq(replay("a 1 10 0\n", (replay_spec){0}), RUN_ABSENT);
    cr_assert_str_eq(result.message, "not today");
}

Test(replay, a_contender_that_cannot_start_is_a_failure) {
    init_answer = DUCTILE_ERR_DRIVER;
    cr_assert_eq(replay("a 1 10 0\n", (replay_spec){0}), RUN_FAILED);
}

/* ---- Samples ------------------------------------------------------------------------------- */

typedef struct samples {
    size_t n;
    uint64_t events[MAX_CALLS];
    uint64_t live[MAX_CALLS];
    uint64_t reserved[MAX_CALLS];
} samples;

static void keep_sample(void *user, const replay_spec *spec, const replay_moment *at) {
    samples *s = user;
    (void)spec;
    s->events[s->n] = at->event;
    s->live[s->n] = at->live_bytes;
    s->reserved[s->n++] = at->stats.reserved_bytes;
}

Test(replay, samples_show_live_and_held_memory_at_the_same_moment) {
    samples seen = {0};
    replay_watch watch = {.sample = keep_sample, .user = &seen};
    (void)replay("a 1 10 0\na 2 20 0\nf 1\nf 2\n", (replay_spec){.watch = &watch});
    cr_assert_eq(seen.n, 4);
    for (size_t i = 0; i < seen.n; i++) {
        cr_expect_eq(seen.events[i], i);
        cr_expect_eq(seen.live[i], seen.reserved[i], "sample %zu", i);
    }
}

Test(replay, events_of_samples_count_through_all_passes) {
    samples seen = {0};
    replay_watch watch = {.sample = keep_sample, .user = &seen};
    (void)replay("a 1 10 0\na 2 20 0\nf 1\nf 2\n", (replay_spec){.watch = &watch, .n_passes = 2});
    cr_assert_gt(seen.n, 2);
    for (size_t i = 1; i < seen.n; i++) {
        cr_expect_gt(seen.events[i], seen.events[i - 1]);
    }
    cr_assert_geq(seen.events[seen.n - 1], 4);
}
