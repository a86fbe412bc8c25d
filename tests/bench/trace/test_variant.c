/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other runs made of a recorded one: what is shuffled, what is scaled, and that frees stay with
 * their blocks. How steps are found is in tests/bench/recordings.txt and models.txt.
 */
#include "bench/trace/trace_text.h"
#include "bench/trace/trace_variant.h"
#include "bench/workloads/vary_model.h"

#include <criterion/criterion.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static trace_builder recorded;
static trace_varier varier;

static void drop_all(void) {
    trace_varier_drop(&varier);
    trace_build_drop(&recorded);
}

static void open_text(const char *text) {
    trace_error error;
    input in = input_of_memory(text, strlen(text));
    cr_assert(trace_read_text(&in, &recorded, &error), "%s", error.reason);
    cr_assert_null(trace_varier_init(&varier, &recorded));
}

/* A trace being written. */
typedef struct script {
    char text[4096];
    size_t n;
} script;

__attribute__((format(printf, 2, 3))) static void say(script *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    s->n += (size_t)vsnprintf(s->text + s->n, sizeof s->text - s->n, format, arguments);
    va_end(arguments);
    cr_assert_lt(s->n, sizeof s->text);
}

static trace_builder vary(uint64_t seed) {
    trace_builder b;
    const char *reason = trace_vary(&varier, seed, &b);
    cr_assert_null(reason, "%s", reason);
    return b;
}

/* ---- Variants ------------------------------------------------------------------------------ */

TestSuite(variant, .fini = drop_all);

static const vary_options loop = {.layers = 4,
                                  .hidden = 256,
                                  .heads = 4,
                                  .vocab = 1000,
                                  .batch = {1, 8},
                                  .sequence = {16, 256},
                                  .steps = 9,
                                  .seed = 3,
                                  .element_bytes = 2,
                                  .optimizer = VARY_ADAMW};

static bool same_events(const trace_builder *a, const trace_builder *b) {
    return a->n_events == b->n_events &&
           memcmp(a->events, b->events, a->n_events * sizeof *a->events) == 0;
}

Test(variant, the_seed_decides_and_nothing_else) {
    cr_assert_null(vary_generate(&loop, &recorded));
    cr_assert_null(trace_varier_init(&varier, &recorded));
    trace_builder first = vary(1);
    trace_builder again = vary(1);
    trace_builder other = vary(2);
    cr_expect(same_events(&first, &again));
    cr_expect_not(same_events(&first, &other));
    cr_expect_eq(first.n_blocks, recorded.n_blocks);
    cr_expect_eq(first.n_steps, loop.steps);
    trace_build_drop(&first);
    trace_build_drop(&again);
    trace_build_drop(&other);
}

/* Ten steps: each allocates a block of its own size and one that all have; a weight stays. */
static void open_ten(void) {
    script s = {0};
    say(&s, "a 1 1000000 0\n");
    for (int i = 0; i < 10; i++) {
        say(&s, "a %d %d 0\na %d 300000 0\na %d 4096 0\nf %d\nf %d\nf %d\ns\n", 10 + i,
            (i + 1) * 1000000, 30 + i, 50 + i, 10 + i, 30 + i, 50 + i);
    }
    open_text(s.text);
}

/* The step that a block of its own size was made from; 0 when it has another size. */
static uint64_t origin_of(uint64_t size) {
    for (uint64_t i = 1; i <= 10; i++) {
        double factor = (double)size / ((double)i * 1e6);
        if (factor > 0.699 && factor < 1.101 && size % 512 == 0) {
            return i;
        }
    }
    return 0;
}

Test(variant, sizes_that_vary_are_scaled_and_others_are_not) {
    open_ten();
    trace_builder b = vary(5);
    size_t n_scaled = 0;
    for (size_t i = 0; i < b.n_blocks; i++) {
        uint64_t size = b.blocks[i].size;
        bool is_fixed = size == 300000 || size == 4096 || (i == 0 && size == 1000000);
        cr_expect(is_fixed || origin_of(size) > 0, "%llu", (unsigned long long)size);
        n_scaled += !is_fixed;
    }
    cr_expect_eq(n_scaled, 10);
    trace_build_drop(&b);
}

Test(variant, the_first_step_stays_first_and_the_others_move) {
    open_ten();
    trace_builder b = vary(5);
    double least = 1e6 * 0.699;
    double most = 1e6 * 1.101;
    cr_expect_eq(b.blocks[0].size, 1000000, "the weight");
    cr_expect((double)b.blocks[1].size > least && (double)b.blocks[1].size < most);
    bool is_ordered = true;
    for (size_t step = 1; step < 10; step++) {
        uint64_t size = b.blocks[1 + 3 * step].size;
        is_ordered = is_ordered && size > b.blocks[1 + 3 * (step - 1)].size;
    }
    cr_expect_not(is_ordered, "sizes rise as they were recorded");
    trace_build_drop(&b);
}

/* Where all steps are alike, what does not have the size of something that lasts is scaled. */
Test(variant, of_equal_steps_all_but_the_sizes_of_weights_are_scaled) {
    script s = {0};
    say(&s, "a 1 2000000 0\n");
    for (int i = 0; i < 6; i++) {
        say(&s, "a %d 1000000 0\na %d 3000000 0\na %d 2000000 0\nf %d\nf %d\nf %d\ns\n", 10 + i,
            30 + i, 50 + i, 10 + i, 30 + i, 50 + i);
    }
    open_text(s.text);
    trace_builder b = vary(1);
    for (size_t i = 0; i < 6; i++) {
        cr_expect_eq(b.blocks[1 + 3 * i].size, 1000000, "a copy of the weight");
        cr_expect_neq(b.blocks[2 + 3 * i].size, 3000000, "an activation");
        cr_expect_eq(b.blocks[3 + 3 * i].size, 2000000, "a gradient");
    }
    trace_build_drop(&b);
}

/* A step's output is used in the next step, by another stream, and freed there. */
static void open_carried(void) {
    script s = {0};
    say(&s, "# version 2\na 1 5000000 0\n");
    for (int i = 0; i < 12; i++) {
        say(&s, "a %d 512 0\nf %d\n", 100 + i, 100 + i);
        if (i > 0) {
            say(&s, "u %d 3\nf %d\n", 9 + i, 9 + i);
        }
        say(&s, "a %d 70000 0\ns\n", 10 + i);
    }
    open_text(s.text);
}

Test(variant, what_was_freed_a_step_later_still_is) {
    open_carried();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        trace_builder b = vary(seed);
        size_t step = 0;
        size_t born = SIZE_MAX; /* the step of the latest output */
        size_t n_frees = 0;
        for (size_t i = 0; i < b.n_events; i++) {
            const trace_event *e = &b.events[i];
            bool is_output = e->kind != TRACE_STEP && b.blocks[e->slot].size != 512 &&
                             b.blocks[e->slot].size != 5000000;
            if (is_output && e->kind == TRACE_ALLOC) {
                born = step;
            } else if (is_output && e->kind == TRACE_FREE) {
                cr_expect_eq(born + 1, step, "seed %llu", (unsigned long long)seed);
                cr_expect_eq(b.events[i - 1].kind, TRACE_USE);
                n_frees++;
            }
            step += e->kind == TRACE_STEP;
        }
        /* The recorded last one lived on, and so does the last of the new order. */
        cr_expect(n_frees == 10 || n_frees == 11, "%zu", n_frees);
        trace_build_drop(&b);
    }
}

/* ---- Files --------------------------------------------------------------------------------- */

static trace *load(uint64_t seed, uint64_t n_passes) {
    char path[] = "variant-XXXXXX";
    trace_error error = {0};
    int file = mkstemp(path);
    FILE *out = fdopen(file, "w");
    cr_assert_not_null(out);
    (void)fputs("a 1 1000000 0\n", out);
    for (int i = 0; i < 8; i++) {
        (void)fprintf(out, "a %d %d 0\na %d 70000 2\nf %d\nf %d\ns\n", 10 + i, 400000 * (i + 1),
                      30 + i, 10 + i, 30 + i);
    }
    (void)fclose(out);
    trace *t = trace_load_varied(path, TRACE_FULLEST_GPU, seed, n_passes, &error);
    (void)unlink(path);
    cr_assert_not_null(t, "%s", error.reason);
    return t;
}

Test(variant, each_pass_is_another_run_with_the_bounds_of_all) {
    trace *t = load(7, 3);
    const trace *second = t->next_pass;
    cr_assert_not_null(second);
    cr_assert_not_null(second->next_pass);
    cr_expect_null(second->next_pass->next_pass);
    cr_expect_eq(t->n_events, second->n_events);
    cr_expect_neq(memcmp(t->events, second->events, t->n_events * sizeof *t->events), 0);
    cr_expect_eq(t->live_peak_bytes, second->live_peak_bytes);
    cr_expect_eq(t->n_slots, second->n_slots);
    cr_expect(t->is_varied);
    cr_expect_eq(t->vary_seed, 7);
    trace_free(t);
}
