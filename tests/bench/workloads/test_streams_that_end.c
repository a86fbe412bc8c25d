/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The synthetic programs that leave streams behind: offload, whose side streams fall silent, and
 * oneshot, whose streams end. Both follow the seed and nothing else.
 */
#include "bench/workloads/offload_model.h"
#include "bench/workloads/oneshot_model.h"
#include "tests/bench/workloads/made_trace.h"

#include <criterion/criterion.h>

#include <string.h>

static const offload_options small = {
    .layers = 4,
    .hidden = 256,
    .vocab = 1000,
    .batch = {1, 4},
    .sequence = {16, 128},
    .steps = 6,
    .streams = 5,
    .depth = 2,
    .seed = 1,
};

static const oneshot_options brief = {
    .steps = 50, .mib = {4, 64}, .blocks = {1, 5}, .numbers = 3, .is_told = true, .seed = 1};

static trace *offload(const offload_options *options) {
    trace_builder b;
    cr_assert_null(offload_check(options));
    const char *reason = offload_generate(options, &b);
    return finish_trace(&b, reason);
}

static trace *oneshot(const oneshot_options *options) {
    trace_builder b;
    cr_assert_null(oneshot_check(options));
    const char *reason = oneshot_generate(options, &b);
    return finish_trace(&b, reason);
}

static uint64_t live_at_end(const trace *t) {
    uint64_t live = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        const trace_event *e = &t->events[i];
        live += e->kind == TRACE_ALLOC ? e->size : 0;
        live -= e->kind == TRACE_FREE ? e->size : 0;
    }
    return live;
}

/* ---- offload ------------------------------------------------------------------------------- */

Test(offload, the_seed_decides_and_nothing_else) {
    offload_options other = small;
    other.seed = 2;
    expect_seed_decides(offload(&small), offload(&small), offload(&other));
}

/* Once a side stream has allocated, no earlier one does so again. */
Test(offload, each_side_stream_serves_one_stretch_and_then_is_silent) {
    trace *t = offload(&small);
    uint16_t latest = 0;
    bool has_served[TRACE_MAX_STREAMS] = {false};
    for (size_t i = 0; i < t->n_events; i++) {
        const trace_event *e = &t->events[i];
        if (e->kind == TRACE_ALLOC && e->stream != 0) {
            cr_assert_geq(e->stream, latest, "event %zu", i);
            latest = e->stream;
            has_served[e->stream] = true;
        }
    }
    for (size_t i = 1; i < t->n_streams; i++) {
        cr_expect(has_served[i], "stream %zu", i);
    }
    cr_expect_gt(t->n_streams, 3);
    cr_expect_leq(t->n_streams, small.streams + 1);
    trace_free(t);
}

Test(offload, the_number_of_side_streams_changes_nothing_else) {
    offload_options one = small;
    one.streams = 1;
    trace *many = offload(&small);
    trace *single = offload(&one);
    cr_assert_eq(many->n_events, single->n_events);
    for (size_t i = 0; i < many->n_events; i++) {
        cr_assert_eq(many->events[i].size, single->events[i].size, "event %zu", i);
        cr_assert_eq(many->events[i].stream > 0, single->events[i].stream > 0, "event %zu", i);
    }
    trace_free(many);
    trace_free(single);
}

/* Of what the side streams allocate, `depth` layers are there at once. */
Test(offload, as_many_layers_are_on_the_gpu_as_its_depth_says) {
    uint64_t hidden = small.hidden;
    uint64_t inner = 768; /* 8 / 3 of it, in whole 256s */
    uint64_t layer = 2 * (4 * hidden * hidden + 3 * hidden * inner + 2 * hidden);
    trace *t = offload(&small);
    uint64_t live = 0;
    uint64_t most = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        const trace_event *e = &t->events[i];
        live += e->kind == TRACE_ALLOC && e->stream != 0 ? e->size : 0;
        live -= e->kind == TRACE_FREE && e->stream != 0 ? e->size : 0;
        most = live > most ? live : most;
    }
    cr_expect_eq(most, small.depth * layer);
    cr_expect_eq(live, 0);
    trace_free(t);
}

Test(offload, only_the_ends_of_the_model_stay) {
    trace *t = offload(&small);
    cr_expect_eq(live_at_end(t), 2 * small.vocab * small.hidden * 2);
    cr_expect_eq(t->n_steps, small.steps);
    trace_free(t);
}

Test(offload, what_makes_no_sense_is_refused) {
    offload_options o = small;
    o.streams = 256;
    cr_expect_not_null(offload_check(&o));
    o = small;
    o.batch = (vary_interval){4, 1};
    cr_expect_not_null(offload_check(&o));
    o = small;
    o.layers = o.hidden = o.vocab = 1 << 20;
    cr_expect_not_null(offload_check(&o));
}

/* ---- oneshot ------------------------------------------------------------------------------- */

Test(oneshot, the_seed_decides_and_nothing_else) {
    oneshot_options other = brief;
    other.seed = 2;
    expect_seed_decides(oneshot(&brief), oneshot(&brief), oneshot(&other));
}

/* All blocks of a stream, and all that was recorded on it, are freed when it ends. */
Test(oneshot, every_step_ends_its_stream_with_nothing_on_it) {
    trace *t = oneshot(&brief);
    uint64_t live[TRACE_MAX_STREAMS] = {0};
    uint64_t n_ends = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        const trace_event *e = &t->events[i];
        live[e->stream] += e->kind == TRACE_ALLOC ? e->size : 0;
        live[e->stream] -= e->kind == TRACE_FREE ? e->size : 0;
        if (e->kind == TRACE_STREAM_END) {
            cr_expect_eq(live[e->stream], 0, "event %zu", i);
            cr_expect_eq(e->size, 1, "told");
            cr_expect_neq(e->stream, 0, "the main stream");
            n_ends++;
        }
    }
    cr_expect_eq(n_ends, brief.steps);
    cr_expect_eq(t->n_streams, brief.numbers + 1);
    trace_free(t);
}

Test(oneshot, what_makes_no_sense_is_refused) {
    oneshot_options o = brief;
    o.numbers = 256;
    cr_expect_not_null(oneshot_check(&o));
    o = brief;
    o.blocks = (vary_interval){1, 65};
    cr_expect_not_null(oneshot_check(&o));
    o = brief;
    o.mib = (vary_interval){0, 1};
    cr_expect_not_null(oneshot_check(&o));
}
