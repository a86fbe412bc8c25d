/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds the memory at the peak: its moments and stacks, and the steps. That the bytes of all
 * holders are the live peak, whatever the recording is, is in tests/bench/recordings.txt.
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
    const char *reason = NULL;
    find_steps();
    cr_assert_eq(steps.n, 3);
    cr_assert_null(trace_steps_mark(&b, &steps));
    cr_expect_eq(b.n_steps, 2);
    for (size_t i = 0; i + 1 < steps.n; i++) {
        cr_expect_eq(b.events[steps.ends[i] + i].kind, TRACE_STEP, "mark %zu", i);
    }
    trace *t = trace_make(&b, "x.trace", &reason);
    cr_assert_not_null(t, "%s", reason);
    cr_expect_eq(t->live_peak_bytes, 2000);
    cr_expect_eq(t->n_step_ends, 2);
    trace_free(t);
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
