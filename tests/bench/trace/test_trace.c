/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is counted of a trace, and its samples. Its lines, good and bad, are in
 * tests/bench/recordings.txt, and what it becomes for a replay in replay/replays.txt.
 */
#include "tests/bench/reading.h"

static reading now;

static const trace *read_good(const char *text) {
    cr_assert(read_bytes_as_trace(text, strlen(text), TRACE_FULLEST_GPU, &now), "line %llu: %s",
              (unsigned long long)now.error.line, now.error.reason);
    return &now.t;
}

static void drop_now(void) {
    drop_reading(&now);
}

TestSuite(trace, .fini = drop_now);

Test(trace, counts_lines_operations_and_gates) {
    const trace *t =
        read_good("# version 2\na 1 10 0\na 2 10 0\nu 1 1\nu 2 1\nf 2\nf 1\nc 1\nc 2\n");
    cr_expect_eq(t->n_file_events, 8);
    cr_expect_eq(t->n_ops, 4, "neither uses nor completions");
    cr_expect_eq(t->streams[1].n_gates, 2);
    cr_expect_eq(t->streams[1].max_closed_gates, 2);
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
    cr_assert_not(read_bytes_as_trace(text, size, TRACE_FULLEST_GPU, &now));
    cr_assert_eq(now.error.line, 257);
}
