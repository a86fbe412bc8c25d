/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine, seen from a contender that writes down what it is asked: that every event arrives,
 * once and in order, on the right stream; that a use by another stream really is under way when
 * its block is freed and really is over at the completion; that a pass leaves nothing live. What
 * traces become, and the calls, are in replays.txt.
 */
#include "bench/driver/bench_calls.h"
#include "bench/replay/replay_engine.h"
#include "tests/bench/reading.h"
#include "tests/support/expect.h"
#include "tests/support/script.h"

#include <ductile_virtual.h>

#include <stdarg.h>

enum { MAX_BLOCKS = 64 };

/* ---- A contender that writes down ---------------------------------------------------------- */

/* What it was asked, and whether the work of the stream that was recorded last was over then:
 * "a0A:10", block 0 of 10 bytes on stream A; "r0B", recorded on B; "f0"; "dB", B is done; "p1:0",
 * requests belong to that pool, "p" to none; "x1:0", it ends; "." not over, "!" over. */
static char said[512];
static size_t n_calls; /* but for the looks at that stream */
static uint64_t capacity, held;
static ductile_addr blocks[MAX_BLOCKS]; /* every one ever handed out */
static uint64_t sizes[MAX_BLOCKS];
static size_t n_blocks, n_live;
static ductile_stream streams[8]; /* as they were named first */
static bool has_no_memory;        /* behind the addresses it hands out */
static dvmm_driver *driver;
static ductile_stream recorded;
static ductile_status init_answer;
static reading now;
static replay_result result;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list arguments;
    size_t n = strlen(said);
    va_start(arguments, format);
    (void)vsnprintf(said + n, sizeof said - n, format, arguments);
    va_end(arguments);
}

static char name_of(ductile_stream stream) {
    size_t i = 0;
    while (streams[i] != NULL && streams[i] != stream) {
        cr_assert_lt(++i, sizeof streams / sizeof *streams);
    }
    streams[i] = stream;
    return (char)('A' + i);
}

static size_t index_of(ductile_addr address) {
    size_t i = 0;
    while (i < n_blocks && blocks[i] != address) {
        i++;
    }
    cr_assert_lt(i, n_blocks, "an address that was never handed out");
    return i;
}

static void look_at_recorded(void) {
    if (recorded != NULL) {
        say(" %s", bench_stream_query(driver, recorded) == DUCTILE_OK ? "!" : ".");
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
        (void)bench_mem_free(driver, blocks[n_blocks - 1]);
    }
}

static ductile_status fake_alloc(void *self, uint64_t size, ductile_stream stream,
                                 ductile_addr *out) {
    (void)self;
    look_at_recorded();
    if (capacity != 0 && held + size > capacity) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
    if (has_no_memory) {
        *out = n_blocks + 1;
    } else if (bench_mem_alloc(driver, size, out) != DUCTILE_OK) {
        return DUCTILE_ERR_DRIVER;
    }
    cr_assert_not_null(stream, "the default stream takes part");
    say(" a%zu%c:%llu", n_blocks, name_of(stream), (unsigned long long)size);
    sizes[n_blocks] = size;
    blocks[n_blocks++] = *out;
    held += size;
    n_live++;
    n_calls++;
    return DUCTILE_OK;
}

static ductile_status fake_free(void *self, ductile_addr address) {
    (void)self;
    held -= sizes[index_of(address)];
    n_live--;
    n_calls++;
    say(" f%zu", index_of(address));
    look_at_recorded();
    return DUCTILE_OK;
}

static ductile_status fake_record(void *self, ductile_addr address, ductile_stream stream) {
    (void)self;
    recorded = stream;
    n_calls++;
    say(" r%zu%c", index_of(address), name_of(stream));
    return DUCTILE_OK;
}

static ductile_status fake_done(void *self, ductile_stream stream) {
    (void)self;
    n_calls++;
    say(" d%c", name_of(stream));
    return DUCTILE_OK;
}

static void say_pool(char what, ductile_pool_id pool) {
    n_calls++;
    say(" %c", what);
    if (!trace_pool_is_none(pool)) {
        say("%llu:%llu", (unsigned long long)pool.first, (unsigned long long)pool.second);
    }
}

static ductile_pool_id used;

static ductile_status fake_use_pool(void *self, ductile_pool_id from, ductile_pool_id to) {
    (void)self;
    cr_expect(from.first == used.first && from.second == used.second);
    used = to;
    say_pool('p', to);
    return DUCTILE_OK;
}

static ductile_status fake_end_pool(void *self, ductile_pool_id pool) {
    (void)self;
    say_pool('x', pool);
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

static void drop_now(void) {
    drop_reading(&now);
}

TestSuite(replay, .fini = drop_now);

static run_outcome replay(const char *text, replay_spec spec) {
    bench_device device;
    char reason[128];
    drop_now();
    said[0] = '\0';
    recorded = NULL;
    n_calls = held = 0;
    memset(streams, 0, sizeof streams);
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    cr_assert(read_bytes_as_trace(text, strlen(text), TRACE_FULLEST_GPU, &now));
    spec.trace = &now.t;
    spec.plan.device = &device;
    spec.plan.contender = spec.plan.contender != NULL ? spec.plan.contender : &fake;
    spec.n_passes = spec.n_passes > 0 ? spec.n_passes : 1;
    replay_run(&spec, &result);
    return result.outcome;
}

/* ---- Traces in text ------------------------------------------------------------------------ */

/* " 1:2": the second gate of stream 1; with "!" the allocator is told of the use. */
static void say_gates(const trace *t, const trace_event *e) {
    for (size_t i = e->size; i < e->size + e->stream; i++) {
        const trace_gate *gate = &t->gates[i];
        say(" %u:%llu%s", gate->stream, (unsigned long long)gate->number,
            e->kind == TRACE_FREE_GATED && gate->says_use ? "!" : "");
    }
}

/* Of a block its slot; of an allocation size and stream, too. */
static void say_event(const trace *t, const trace_event *e) {
    switch ((trace_kind)e->kind) {
    case TRACE_ALLOC:
        say("a %u %llu %u", e->slot, (unsigned long long)e->size, e->stream);
        return;
    case TRACE_USE:
        say("u %u %u", e->slot, e->stream);
        return;
    case TRACE_FREE:
        say("f %u", e->slot);
        return;
    case TRACE_FREE_GATED:
        say("f %u behind", e->slot);
        break;
    case TRACE_OPEN:
        say("open");
        break;
    case TRACE_STEP:
    case TRACE_STREAM_END:
    case TRACE_POOL_END:
        say("?");
        return;
    }
    say_gates(t, e);
}

static void say_events(const trace *t) {
    said[0] = '\0';
    for (size_t i = 0; i < t->n_events; i++) {
        say("%s", i > 0 ? "; " : "");
        say_event(t, &t->events[i]);
    }
}

/* "passes:3" of what stands behind "with"; 1: nothing does. */
static uint64_t option(const scenario *s, const char *name) {
    const char *at = strstr(s->conf, name);
    return at != NULL ? strtoull(at + strlen(name), NULL, 10) : 1;
}

static replay_spec spec_of(const scenario *s, const contender_ops *contender) {
    replay_spec spec = {.plan.contender = contender, .n_passes = option(s, "passes:")};
    for (unsigned i = 0; i < 4; i++) {
        spec.plan.pace.schedule =
            s->schedules == 1u << i ? (ductile_schedule)i : spec.plan.pace.schedule;
    }
    spec.plan.pace.lag = spec.plan.pace.schedule == DUCTILE_SCHEDULE_LAGGING ? s->lag : 0;
    return spec;
}

static void play(const scenario *s) {
    contender_ops contender = fake;
    char text[512] = "";
    contender.stream_done = strstr(s->conf, "told") != NULL ? fake_done : NULL;
    if (strstr(s->conf, "pools") != NULL) {
        contender.use_pool = fake_use_pool;
        contender.end_pool = fake_end_pool;
    }
    (void)snprintf(text, sizeof text, "# version %llu\n%s\n",
                   (unsigned long long)option(s, "version:"), s->lines[0]);
    for (char *at = text; (at = strchr(at, ';')) != NULL;) {
        *at = '\n';
    }
    cr_expect_eq(replay(text, spec_of(s, &contender)), RUN_COMPLETED, "%s", s->name);
    cr_expect(n_live == 0 && result.violations == 0, "%s", s->name);
    for (size_t i = 1; i < s->n_lines; i++) {
        bool is_calls = strncmp(s->lines[i], "calls", 5) == 0;
        if (!is_calls) {
            say_events(&now.t);
        }
        cr_expect_str_eq(said, s->lines[i] + (is_calls ? 5 : 8), "%s: %s", s->name, said);
    }
}

Test(replay, every_trace_becomes_these_events_and_calls) {
    script all;
    assert_fine(script_read(&all, REPLAYS));
    for (size_t i = 0; i < all.n; i++) {
        play(&all.all[i]);
    }
    free(all.all);
    free(all.text);
}

/* ---- What is counted ----------------------------------------------------------------------- */

static const char few[] = "a 1 10 0\na 2 20 0\nf 1\n";

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
    (void)replay(few, (replay_spec){.n_passes = 2});
    cr_assert_eq(n_calls, 8);
    cr_assert_eq(result.last.ops, 3, "frees at the end of a pass are no operations of the trace");
    cr_assert_lt(result.loop_ns_per_op, 1e6, "calls that do nothing take no milliseconds");
    cr_assert_geq(result.loop_ns_per_op, 0);
}

Test(replay, timed_calls_are_the_calls_of_an_untimed_replay) {
    (void)replay(few, (replay_spec){.n_passes = 3, .times_calls = true});
    cr_assert_eq(n_calls, 12);
    cr_assert_eq(result.cold_calls.calls, 3);
    cr_assert_eq(result.warm_calls.calls, 6);
    cr_assert_leq(result.warm_calls.median_ns, result.warm_calls.worst_ns);
}

Test(replay, a_single_pass_has_no_warm_calls) {
    (void)replay(few, (replay_spec){.times_calls = true});
    cr_assert_eq(result.cold_calls.calls, 3);
    cr_assert_eq(result.warm_calls.calls, 0);
}

/* ---- What goes wrong ----------------------------------------------------------------------- */

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
    cr_assert_eq(replay(text, (replay_spec){.plan.contender = &careless}), RUN_COMPLETED);
    cr_assert_eq(result.violations, 0, "the replay looked without being told to");
    cr_assert_eq(replay(text, (replay_spec){.plan.contender = &careless, .checks = true}),
                 RUN_COMPLETED);
    cr_assert_gt(result.violations, 0);
    cr_assert_eq(
        replay(text, (replay_spec){.plan.contender = &contender_expandable, .checks = true}),
        RUN_COMPLETED);
    cr_assert_eq(result.violations, 0, "%s", result.last_violation);
}

Test(replay, out_of_memory_stops_and_says_where) {
    cr_assert_eq(
        replay("a 1 10 0\na 2 20 0\na 3 30 0\nf 1\n", (replay_spec){.plan.capacity_bytes = 40}),
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
    uint64_t events[MAX_BLOCKS];
    uint64_t live[MAX_BLOCKS];
    uint64_t reserved[MAX_BLOCKS];
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
