/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces that this program writes: reading one back gives what was written, and what
 * was older means the same as before.
 */
#include "bench/trace/trace_write.h"
#include "tests/bench/reading.h"

typedef struct text {
    char *bytes;
    size_t size;
} text;

/* What convert makes of a text trace. Release with free. */
static text rewrite(const char *old) {
    trace_builder builder = {0};
    trace_error error;
    text new = {0};
    FILE *memory = open_memstream(&new.bytes, &new.size);
    cr_assert_not_null(memory);
    input in = input_of_memory(old, strlen(old));
    cr_assert(trace_read_text(&in, &builder, &error), "%s", error.reason);
    cr_assert(trace_write(&builder, memory));
    (void)fclose(memory);
    trace_build_drop(&builder);
    return new;
}

static void assert_rewritten(const char *old, const char *expected) {
    text new = rewrite(old);
    cr_expect_str_eq(new.bytes, expected);
    free(new.bytes);
}

Test(trace_write, version_2_comes_back_as_it_was) {
    const char *whole =
        "# version 2\na 0 100 0\nu 0 5\ns\na 1 50 5\nu 1 0\nu 1 7\nf 1\nf 0\nc 1\ns\n";
    assert_rewritten(whole, whole);
}

Test(trace_write, ends_of_streams_make_it_version_3) {
    const char *whole = "# version 3\na 0 100 7\nf 0\ne 7\na 1 50 7\nf 1\nd 7\n";
    assert_rewritten(whole, whole);
}

Test(trace_write, refused_requests_make_it_version_4) {
    const char *whole = "# version 4\na 0 100 7\nr 1 900 7 512 64\nr 2 800 0 512 0\nf 0\n";
    assert_rewritten(whole, whole);
}

Test(trace_write, ids_are_numbered_anew_and_comments_go) {
    assert_rewritten("# version 2\n# mine\na 900 100 0\na 7 50 0\nf 7\n",
                     "# version 2\na 0 100 0\na 1 50 0\nf 1\n");
}

Test(trace_write, what_version_1_means_is_said_in_version_2) {
    assert_rewritten(
        "a 1 100 0\na 2 50 3\na 3 50 9\nf 1\nc 1\nf 3\nc 3\nf 2\n",
        "# version 2\na 0 100 0\na 1 50 3\na 2 50 9\nu 0 3\nf 0\nc 0\nu 2 0\nf 2\nc 2\n"
        "f 1\n");
}

Test(trace_write, with_a_single_stream_the_free_stands_at_the_completion) {
    assert_rewritten("a 1 100 0\nf 1\na 2 60 0\nc 1\n", "# version 2\na 0 100 0\na 1 60 0\nf 0\n");
}

Test(trace_write, a_rewritten_trace_has_the_same_envelope) {
    const char *old =
        "a 1 10 0\na 2 10 0\na 3 10 0\na 4 1 1\nf 1\nf 2\ns\nf 3\nc 2\nc 1\na 5 9 0\nc 3\n";
    text new = rewrite(old);
    reading before;
    reading after;
    cr_assert(read_bytes_as_trace(old, strlen(old), TRACE_BUSIEST_GPU, &before));
    cr_assert(read_bytes_as_trace(new.bytes, new.size, TRACE_BUSIEST_GPU, &after));
    cr_expect_eq(after.t.live_peak_bytes, before.t.live_peak_bytes);
    cr_expect_eq(after.t.n_ops, before.t.n_ops);
    cr_expect_eq(after.t.n_steps, before.t.n_steps);
    cr_expect_eq(after.t.n_gates, before.t.n_gates);
    for (size_t i = 0; i < after.t.n_gates; i++) {
        cr_expect_eq(after.t.gates[i].stream, before.t.gates[i].stream);
        cr_expect_eq(after.t.gates[i].number, before.t.gates[i].number);
    }
    drop_reading(&before);
    drop_reading(&after);
    free(new.bytes);
}
