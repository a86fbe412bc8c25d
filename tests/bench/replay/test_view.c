/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a report draws of a replay. The idea: a trace small enough to know every number of it, and
 * the sums that hold at every moment under every contender.
 */
#include "bench/replay/view.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_text.h"

#include <criterion/criterion.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

static trace *t;
static bench_device device;
static replay_result result;
static view v;

/* The trace to be replayed. */
static void read_trace(const char *text) {
    trace_builder b = {0};
    trace_error error = {0};
    const char *reason = NULL;
    input in = input_of_memory(text, strlen(text));
    cr_assert(trace_read_text(&in, &b, &error), "%s", error.reason);
    t = trace_make(&b, "x.trace", &reason);
    cr_assert_not_null(t, "%s", reason);
}

static replay_spec spec_of(const contender_ops *contender) {
    char reason[256];
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, reason, sizeof reason));
    return (replay_spec){.trace = t, .device = &device, .contender = contender, .n_passes = 1};
}

static bool look_at(const contender_ops *contender) {
    replay_spec spec = spec_of(contender);
    return view_replay(&spec, &v, &result);
}

static void drop_all(void) {
    view_fini(&v);
    trace_free(t);
}

TestSuite(view, .fini = drop_all);

/* 64 and 32 MiB; the first is freed before 96 MiB come, for which neither hole suffices. */
static const char holes[] = "a 1 67108864 0\na 2 33554432 0\nf 1\ns\na 3 100663296 0\nf 2\n";

static void check_points(const char *name) {
    for (size_t i = 0; i < v.n_points; i++) {
        const view_memory *m = &v.points[i].memory;
        cr_expect_eq(m->held, m->live + m->pending + m->free + m->cached, "%s: point %zu", name, i);
        cr_expect_geq(m->live, v.points[i].asked, "%s: point %zu", name, i);
        cr_expect_leq(m->largest_hole, m->free, "%s: point %zu", name, i);
    }
}

Test(view, what_is_held_is_live_pending_free_and_cached_at_every_moment) {
    const contender_ops *all[] = {&contender_ductile, &contender_expandable, &contender_classic};
    read_trace(holes);
    for (size_t i = 0; i < 3; i++) {
        cr_assert(look_at(all[i]));
        cr_expect_eq(result.outcome, RUN_COMPLETED);
        cr_expect_gt(v.n_points, 3);
        check_points(all[i]->name);
        view_fini(&v);
    }
}

Test(view, memory_from_before_the_recording_is_there_at_once) {
    read_trace("a 1 512 0\na 2 512 0\na 3 512 0\na 4 512 0\nf 1\n");
    t->n_from_before = 3;
    cr_assert(look_at(&contender_classic));
    cr_expect_eq(v.n_points, 3);
    cr_expect_eq(v.points[0].event, 2);
    cr_expect_eq(v.points[0].asked, 1536);
}

Test(view, a_contender_that_does_not_know_its_memory_has_no_view) {
    read_trace(holes);
    cr_expect_not(look_at(&contender_cumemalloc));
}

Test(view, a_stop_says_what_was_refused_and_what_was_free) {
    read_trace(holes);
    replay_spec spec = spec_of(&contender_classic);
    view_try(&spec, 120 * MIB, &v); /* the hole of 64 MiB goes back, and 88 MiB do not suffice */
    view_try(&spec, 200 * MIB, &v);
    cr_assert_eq(v.n_stops, 2);
    cr_expect_not(v.stops[0].completed);
    cr_expect_eq(v.stops[0].event, 3);
    cr_expect_eq(v.stops[0].request_bytes, 96 * MIB);
    cr_expect_eq(v.stops[0].memory.live, 32 * MIB);
    cr_expect(v.stops[1].completed);
}

Test(view, the_map_names_the_block_that_a_cell_shows) {
    read_trace(holes);
    bool is_shown[4] = {0};
    cr_assert(look_at(&contender_classic));
    for (size_t i = 0; i < v.map.n_columns * MEMORY_MAP_ROWS; i++) {
        cr_assert_leq(v.map.blocks_shown[i], 3);
        is_shown[v.map.blocks_shown[i]] = true;
        cr_assert_eq(v.map.blocks_shown[i] != 0, v.map.cells[i] >= MEMORY_MAP_FIRST_LIVE);
    }
    cr_expect(is_shown[1] && is_shown[2] && is_shown[3]);
}

/* The bytes of a column's cells of one kind. */
static uint64_t bytes_of(size_t column, bool live) {
    uint64_t n = 0;
    for (size_t i = 0; i < MEMORY_MAP_ROWS; i++) {
        uint32_t cell = v.map.cells[column * MEMORY_MAP_ROWS + i];
        n += live ? cell >= MEMORY_MAP_FIRST_LIVE : cell == 1;
    }
    return n * v.map.row_bytes;
}

Test(view, the_map_shows_live_and_free_memory_in_proportion) {
    read_trace(holes);
    cr_assert(look_at(&contender_classic));
    cr_assert_eq(v.map.n_columns, v.n_points);
    for (size_t i = 0; i < v.n_points; i++) {
        const view_memory *m = &v.points[i].memory;
        uint64_t slack = 4 * v.map.row_bytes;
        cr_expect_leq(bytes_of(i, true), m->live + slack, "column %zu", i);
        cr_expect_geq(bytes_of(i, true) + slack, m->live, "column %zu", i);
        cr_expect_leq(bytes_of(i, false), m->free + slack, "column %zu", i);
        cr_expect_geq(bytes_of(i, false) + slack, m->free, "column %zu", i);
    }
}
