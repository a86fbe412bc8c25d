/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds the memory at the peak. The idea: the bytes of all holders are the live peak that the
 * replay reports, whatever the recording is, and each block is counted with its own stack.
 */
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_holders.h"
#include "bench/trace/trace_text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static trace_builder b;
static trace_steps steps;
static trace_holders holders;

static void read_builder(const char *text) {
    trace_error error = {0};
    input in = input_of_memory(text, strlen(text));
    cr_assert(trace_read_text(&in, &b, &error), "%s", error.reason);
}

static void find_steps(void) {
    cr_assert_null(trace_steps_find(&b, &steps));
}

static void find_holders(void) {
    find_steps();
    cr_assert_null(trace_holders_find(&b, &steps, &holders));
}

static void drop_all(void) {
    trace_holders_drop(&holders);
    trace_steps_drop(&steps);
    trace_build_drop(&b);
    holders = (trace_holders){0};
    steps = (trace_steps){0};
    b = (trace_builder){0};
}

TestSuite(holders, .fini = drop_all);
TestSuite(trace, .fini = drop_all);

static uint64_t sum_of_holders(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < holders.n; i++) {
        sum += holders.all[i].bytes;
    }
    return sum;
}

/* Takes the builder; returns the live peak that a replay has. */
static uint64_t live_peak_of(size_t *peak_event, size_t *n_step_ends) {
    const char *reason = NULL;
    trace *t = trace_make(&b, "x.trace", &reason);
    cr_assert_not_null(t, "%s", reason);
    uint64_t peak = t->live_peak_bytes;
    *peak_event = t->peak_event;
    *n_step_ends = t->n_step_ends;
    trace_free(t);
    return peak;
}

static void check_sum(const char *text) {
    read_builder(text);
    size_t unused;
    find_holders();
    cr_expect_eq(sum_of_holders(), holders.peak_bytes);
    cr_expect_eq(holders.peak_bytes, live_peak_of(&unused, &unused));
    drop_all();
}

Test(holders, their_bytes_are_the_live_peak) {
    check_sum("a 1 10 0\na 2 20 0\nf 1\na 3 5 0\ns\na 4 40 0\nf 4\nf 2\nf 3\n");
}

Test(holders, memory_that_another_stream_uses_counts_until_that_ends) {
    check_sum("# version 2\na 1 10 0\nu 1 1\nf 1\na 2 30 0\nc 1\nf 2\n");
    check_sum("a 1 10 0\na 9 1 1\nf 1\na 2 30 0\nc 1\nf 2\n");
    check_sum("a 1 10 0\nf 1\na 2 30 0\nc 1\nf 2\n"); /* one stream: freed at c */
}

Test(holders, what_was_asked_for_and_refused_at_the_peak_is_told_apart) {
    check_sum("# version 4\na 1 10 0\nr 2 90 0 0 0\na 3 20 0\n");
    read_builder("# version 4\na 1 10 0\nr 2 90 0 0 0\na 3 20 0\n");
    uint64_t refused = 0;
    find_holders();
    for (size_t i = 0; i < holders.n; i++) {
        refused += holders.all[i].is_refused ? holders.all[i].bytes : 0;
    }
    cr_expect_eq(refused, 90);
}

Test(holders, the_fullest_moment_of_each_part_is_kept) {
    read_builder("a 1 10 0\na 2 90 0\nf 2\ns\na 3 20 0\nf 3\nf 1\n");
    find_holders();
    static const uint64_t live[] = {10, 100, 10, 10, 30, 10, 0}; /* behind each line */
    cr_assert_eq(holders.n_moments, 7);
    for (size_t i = 0; i < 7; i++) {
        uint64_t sum = 0;
        for (size_t k = 0; k < holders.n; k++) {
            sum += holders.all[k].moments[i];
        }
        cr_expect_eq(sum, live[i], "part %zu", i);
    }
    cr_expect_eq(holders.moment_events[4], 3, "marks are no events of a trace");
}

Test(holders, memory_freed_but_in_use_is_told_apart) {
    read_builder("# version 2\na 1 10 0\nu 1 1\nf 1\na 2 30 0\nc 1\nf 2\n");
    uint64_t freed = 0;
    find_holders();
    for (size_t i = 0; i < holders.n; i++) {
        freed += holders.all[i].freed;
    }
    cr_expect_eq(freed, 10);
}

Test(holders, each_block_is_counted_with_its_stack) {
    read_builder("a 1 10 0\na 2 20 0\na 3 40 0\n");
    uint32_t stack = 0;
    cr_assert(trace_stacks_add(&b.stacks, "here", 4, &stack));
    cr_assert(trace_stacks_note(&b.stacks, 0, stack));
    cr_assert(trace_stacks_note(&b.stacks, 2, stack));
    find_holders();
    uint64_t here = 0;
    for (size_t i = 0; i < holders.n; i++) {
        here += holders.all[i].stack == stack ? holders.all[i].bytes : 0;
    }
    cr_expect_eq(here, 50);
}

Test(holders, step_peaks_are_each_steps_own) {
    read_builder("a 1 10 0\na 2 20 0\nf 2\ns\na 3 5 0\nf 3\ns\na 4 50 0\nf 4\ns\n");
    find_holders();
    cr_assert_eq(holders.n_steps, 3);
    cr_expect_eq(holders.step_peaks[0], 30);
    cr_expect_eq(holders.step_peaks[1], 15);
    cr_expect_eq(holders.step_peaks[2], 60);
}

Test(trace, knows_where_its_peak_and_the_ends_of_its_steps_are) {
    read_builder("a 1 10 0\ns\na 2 20 0\nf 1\ns\nf 2\n");
    size_t peak_event;
    size_t n_step_ends;
    cr_expect_eq(live_peak_of(&peak_event, &n_step_ends), 30);
    cr_expect_eq(peak_event, 1); /* marks are no events of a replay */
    cr_expect_eq(n_step_ends, 2);
}

/* Three times: 8 blocks come and go. */
static void read_waves(void) {
    char text[4096] = "";
    int id = 0;
    for (int wave = 0; wave < 3; wave++) {
        for (int i = 0; i < 20; i++) {
            (void)sprintf(text + strlen(text), "a %d 100 0\n", id + i);
        }
        for (int i = 0; i < 20; i++) {
            (void)sprintf(text + strlen(text), "f %d\n", id + i);
        }
        id += 20;
    }
    read_builder(text);
}

Test(trace, steps_that_were_found_can_be_marked) {
    read_waves();
    size_t unused;
    size_t n_step_ends;
    find_steps();
    cr_assert_eq(steps.n, 3);
    cr_assert_null(trace_steps_mark(&b, &steps));
    cr_expect_eq(b.n_steps, 2);
    for (size_t i = 0; i + 1 < steps.n; i++) {
        cr_expect_eq(b.events[steps.ends[i] + i].kind, TRACE_STEP, "mark %zu", i);
    }
    cr_expect_eq(live_peak_of(&unused, &n_step_ends), 2000);
    cr_expect_eq(n_step_ends, 2);
}

Test(stacks, a_text_has_one_number) {
    trace_stacks s = {0};
    uint32_t first = 0;
    uint32_t second = 0;
    uint32_t again = 0;
    cr_assert(trace_stacks_add(&s, "one", 3, &first));
    cr_assert(trace_stacks_add(&s, "two", 3, &second));
    cr_assert(trace_stacks_add(&s, "one", 3, &again));
    cr_expect_eq(first, again);
    cr_expect_neq(first, second);
    cr_expect_eq(s.n, 2);
    cr_expect_eq(trace_stacks_of(&s, 77), 0);
    cr_assert(trace_stacks_note(&s, 5000, second));
    cr_expect_eq(trace_stacks_of(&s, 5000), second);
    cr_expect_eq(trace_stacks_of(&s, 4999), 0);
    trace_stacks_drop(&s);
}

Test(holders, refused_requests_make_no_steps) {
    read_builder("# version 4\na 1 10 0\nr 2 90 0 0 0\na 3 20 0\nr 4 80 0 0 0\n"
                 "a 5 10 0\nr 6 70 0 0 0\na 7 10 0\n");
    find_steps();
    cr_expect_eq(steps.n, 1);
}
