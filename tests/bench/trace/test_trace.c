/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trace becomes for a replay: slots, streams, gates and samples. Its lines, good and bad,
 * are in tests/bench/recordings.txt.
 */
#include "tests/bench/reading.h"

static reading now;

static const trace *read_good(const char *text) {
    cr_assert(read_bytes_as_trace(text, strlen(text), TRACE_BUSIEST_GPU, &now), "line %llu: %s",
              (unsigned long long)now.error.line, now.error.reason);
    return &now.t;
}

static void drop_now(void) {
    drop_reading(&now);
}

TestSuite(trace, .fini = drop_now);

static void assert_event(const trace *t, size_t index, trace_kind kind, uint64_t size,
                         uint32_t slot, uint16_t stream) {
    const trace_event *e = &t->events[index];
    cr_expect_eq(e->kind, kind, "event %zu", index);
    cr_expect_eq(e->size, size, "event %zu", index);
    cr_expect_eq(e->slot, slot, "event %zu", index);
    cr_expect_eq(e->stream, stream, "event %zu", index);
}

/* A free of `slot` behind one gate. */
static void assert_gated(const trace *t, size_t index, uint32_t slot, uint16_t stream,
                         uint64_t number) {
    const trace_event *e = &t->events[index];
    cr_assert_eq(e->kind, TRACE_FREE_GATED, "event %zu", index);
    cr_assert_eq(e->stream, 1, "event %zu has %u gates", index, e->stream);
    cr_expect_eq(e->slot, slot, "event %zu", index);
    cr_expect_eq(t->gates[e->size].stream, stream, "event %zu", index);
    cr_expect_eq(t->gates[e->size].number, number, "event %zu", index);
}

/* The first n gates of one stream open. */
static void assert_opens(const trace *t, size_t index, uint16_t stream, uint64_t n) {
    const trace_event *e = &t->events[index];
    cr_assert_eq(e->kind, TRACE_OPEN, "event %zu", index);
    cr_assert_eq(e->stream, 1, "event %zu opens %u gates", index, e->stream);
    cr_expect_eq(t->gates[e->size].stream, stream, "event %zu", index);
    cr_expect_eq(t->gates[e->size].number, n, "event %zu", index);
}

/* ---- Good traces --------------------------------------------------------------------------- */

Test(trace, slots_are_dense_and_used_again) {
    const trace *t = read_good("a 900 100 0\na 17 50 0\nf 900\na 5 80 0\nf 5\nf 17\n");
    cr_assert_eq(t->n_slots, 2);
    assert_event(t, 0, TRACE_ALLOC, 100, 0, 0);
    assert_event(t, 1, TRACE_ALLOC, 50, 1, 0);
    assert_event(t, 2, TRACE_FREE, 100, 0, 0);
    assert_event(t, 3, TRACE_ALLOC, 80, 0, 0);
    assert_event(t, 4, TRACE_FREE, 80, 0, 0);
    assert_event(t, 5, TRACE_FREE, 50, 1, 0);
}

Test(trace, streams_are_ordered_by_number) {
    const trace *t = read_good("a 1 100 7\na 2 100 0\na 3 100 3\n");
    cr_assert_eq(t->n_streams, 3);
    cr_assert_eq(t->streams[0].number, 0);
    cr_assert_eq(t->streams[1].number, 3);
    cr_assert_eq(t->streams[2].number, 7);
    cr_assert_eq(t->events[0].stream, 2);
    cr_assert_eq(t->events[1].stream, 0);
    cr_assert_eq(t->events[2].stream, 1);
}

/* ---- Uses by another stream ---------------------------------------------------------------- */

Test(trace, a_completed_free_waits_at_a_gate_of_the_next_higher_stream) {
    const trace *t = read_good("a 1 100 0\na 2 50 3\nf 1\nc 1\n");
    cr_assert_eq(t->n_file_events, 4);
    cr_assert_eq(t->n_ops, 3);
    assert_gated(t, 2, 0, 1, 1);
    assert_opens(t, 3, 1, 1);
    cr_assert(t->gates[0].says_use, "nothing else tells the allocator of the use");
    cr_assert_eq(t->streams[1].n_gates, 1);
    cr_assert_eq(t->streams[1].max_closed_gates, 1);
}

Test(trace, above_the_highest_stream_comes_the_lowest) {
    const trace *t = read_good("a 1 100 0\na 2 50 3\nf 2\nc 2\n");
    assert_gated(t, 2, 1, 0, 1);
}

Test(trace, gates_of_a_stream_open_in_order) {
    const trace *t = read_good("a 1 10 0\na 2 10 0\na 3 10 0\na 4 1 1\n"
                               "f 1\nf 2\nf 3\nc 2\nc 1\nc 3\n");
    assert_opens(t, 7, 1, 0); /* the first is still closed */
    assert_opens(t, 8, 1, 2); /* the first, and the second behind it */
    assert_opens(t, 9, 1, 3);
    cr_assert_eq(t->streams[1].max_closed_gates, 3);
}

Test(trace, with_a_single_stream_the_free_moves_to_the_completion) {
    const trace *t = read_good("a 1 100 0\nf 1\na 2 60 0\nc 1\n");
    cr_assert_eq(t->n_file_events, 4);
    cr_assert_eq(t->n_events, 3);
    assert_event(t, 1, TRACE_ALLOC, 60, 1, 0);
    assert_event(t, 2, TRACE_FREE, 100, 0, 0);
    cr_assert_eq(t->live_peak_bytes, 160);
}

/* ---- Version 2 ----------------------------------------------------------------------------- */

#define V2 "# version 2\n"

Test(trace, a_use_names_its_stream_and_is_no_operation) {
    const trace *t = read_good(V2 "a 1 100 0\nu 1 5\nf 1\n");
    cr_assert_eq(t->n_file_events, 3);
    cr_assert_eq(t->n_ops, 2);
    cr_assert_eq(t->n_streams, 2, "a stream that allocates nothing is one, too");
    assert_event(t, 1, TRACE_USE, 100, 0, 1);
    assert_event(t, 2, TRACE_FREE, 100, 0, 0);
}

Test(trace, a_completed_free_waits_at_a_gate_of_every_stream_that_was_named) {
    const trace *t = read_good(V2 "a 1 100 0\nu 1 7\nu 1 3\nu 1 7\nu 1 0\nf 1\nc 1\n");
    const trace_event *freed = &t->events[5];
    cr_assert_eq(freed->kind, TRACE_FREE_GATED);
    cr_assert_eq(freed->stream, 2, "7 once, 3, and not its own");
    cr_assert_eq(t->gates[freed->size].stream + t->gates[freed->size + 1].stream, 1 + 2);
    cr_assert_not(t->gates[freed->size].says_use, "the u lines have said so");
    cr_assert_eq(t->events[6].kind, TRACE_OPEN);
    cr_assert_eq(t->events[6].stream, 2);
}

Test(trace, uses_of_two_blocks_open_in_the_order_of_their_frees) {
    const trace *t = read_good(V2 "a 1 10 0\na 2 10 0\nu 1 1\nu 2 1\nf 2\nf 1\nc 1\nc 2\n");
    assert_gated(t, 4, 1, 1, 1);
    assert_gated(t, 5, 0, 1, 2);
    assert_opens(t, 6, 1, 0);
    assert_opens(t, 7, 1, 2);
}

/* ---- Samples ------------------------------------------------------------------------------- */

Test(trace, samples_hold_every_turn_of_a_short_trace) {
    const trace *t = read_good("a 1 100 0\na 2 50 0\nf 1\nf 2\n");
    static const uint64_t live[] = {100, 150, 50, 0};
    cr_assert_eq(t->n_samples, 4);
    for (size_t i = 0; i < 4; i++) {
        cr_expect_eq(t->samples[i].event, i);
        cr_expect_eq(t->samples[i].live_bytes, live[i]);
    }
}

Test(trace, samples_of_a_long_trace_hold_its_peak_and_its_end) {
    enum { N = 30011 };
    char *text = malloc((size_t)N * 40);
    size_t size = 0;
    cr_assert_not_null(text);
    for (int i = 0; i < N; i++) {
        int bytes = i == 12345 ? 1000000 : 1 + i % 100;
        size += (size_t)sprintf(text + size, "a %d %d 0\nf %d\n", i, bytes, i);
    }
    const trace *t = read_good(text);
    free(text);
    uint64_t most = 0;
    for (size_t i = 0; i < t->n_samples; i++) {
        most = t->samples[i].live_bytes > most ? t->samples[i].live_bytes : most;
        cr_assert(i == 0 || t->samples[i].event > t->samples[i - 1].event);
    }
    cr_assert_eq(most, t->live_peak_bytes);
    cr_assert_eq(t->samples[t->n_samples - 1].event, t->n_events - 1);
    cr_assert_leq(t->n_samples, TRACE_SAMPLES + 1);
}

Test(trace, a_file_has_at_most_256_streams) {
    char text[257 * 16];
    size_t size = 0;
    for (int i = 0; i < 257; i++) {
        size += (size_t)sprintf(text + size, "a %d 1 %d\n", i, i);
    }
    cr_assert_not(read_bytes_as_trace(text, size, TRACE_BUSIEST_GPU, &now));
    cr_assert_eq(now.error.line, 257);
}
