/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement by plan: packing keeps lives apart, and steps are followed and left as they should be.
 * What the contender makes of steps that come again is in tests/bench/recordings.txt.
 */
#include "bench/contenders/plan_steps.h"
#include "tests/bench/program.h"
#include "tests/support/rng.h"

/* ---- Packing ------------------------------------------------------------------------------- */

static bool share_memory(const plan_span *a, const plan_span *b) {
    return a->range == b->range && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

static bool share_time(const plan_span *a, const plan_span *b) {
    return a->born < b->dies && b->born < a->dies;
}

static void make_spans(plan_span *spans, size_t n, rng *r) {
    for (size_t i = 0; i < n; i++) {
        uint32_t born = (uint32_t)rng_below(r, 100);
        bool stays = rng_below(r, 8) == 0;
        spans[i] =
            (plan_span){.size = rng_between(r, 1, 64) * MIB,
                        .born = born,
                        .dies = stays ? PLAN_FOREVER : born + (uint32_t)rng_between(r, 1, 30),
                        .range = (uint32_t)rng_below(r, 2),
                        .request = (uint32_t)i};
    }
    spans[0].is_fixed = true;
    spans[0].offset = 100 * MIB;
}

Test(plan_pack, nothing_that_lives_at_the_same_time_shares_memory) {
    enum { N = 120 };
    plan_span spans[N];
    rng r = rng_seeded(1);
    for (int round = 0; round < 30; round++) {
        make_spans(spans, N, &r);
        cr_assert(plan_pack(spans, N, (plan_order)(round % PLAN_ORDERS)));
        for (size_t i = 0; i < N; i++) {
            cr_expect(!spans[i].is_fixed || spans[i].offset == 100 * MIB);
            for (size_t k = 0; k < i; k++) {
                cr_assert_not(share_memory(&spans[i], &spans[k]) &&
                              share_time(&spans[i], &spans[k]));
            }
        }
    }
}

Test(plan_pack, what_lives_one_after_the_other_shares_memory) {
    plan_span spans[] = {{.size = 30 * MIB, .born = 0, .dies = 2},
                         {.size = 20 * MIB, .born = 2, .dies = 4},
                         {.size = 10 * MIB, .born = 3, .dies = 5}};
    cr_assert(plan_pack(spans, 3, PLAN_BY_SIZE));
    cr_expect_eq(plan_bytes(spans, 3, 10 * MIB), 30 * MIB);
}

Test(plan_pack, handles_are_counted_once_and_by_range) {
    plan_span spans[] = {{.size = 5 * MIB, .born = 0, .dies = 2, .range = 0},
                         {.size = 5 * MIB, .born = 1, .dies = 2, .range = 0},
                         {.size = 5 * MIB, .born = 0, .dies = 2, .range = 1}};
    cr_assert(plan_pack(spans, 3, PLAN_BY_AREA));
    cr_expect_eq(plan_bytes(spans, 3, 20 * MIB), 40 * MIB);
}

/* ---- Steps --------------------------------------------------------------------------------- */

static plan_steps steps;

static void drop_steps(void) {
    plan_steps_fini(&steps);
}

TestSuite(plan_steps, .fini = drop_steps);

static uint32_t request(uint64_t size, bool *is_new) {
    uint32_t index = plan_steps_follow(&steps, size, 0, is_new);
    (void)plan_steps_add(&steps, size, 0);
    return index;
}

static void run_step(const uint64_t *sizes, size_t n) {
    bool is_new;
    plan_steps_begin(&steps);
    for (size_t i = 0; i < n; i++) {
        (void)request(sizes[i], &is_new);
    }
}

Test(plan_steps, a_step_that_comes_again_is_followed_from_its_first_request) {
    const uint64_t sizes[] = {9, 8, 7, 6, 5};
    bool is_new = false;
    run_step(sizes, 5);
    plan_steps_begin(&steps);
    for (uint32_t i = 0; i < 5; i++) {
        cr_expect_eq(request(sizes[i], &is_new), i);
        cr_expect_eq(is_new, i == 0);
    }
    plan_steps_begin(&steps);
    cr_expect_eq(steps.n_kept, 1, "it was kept twice");
}

Test(plan_steps, one_that_turns_into_another_goes_on_with_that) {
    const uint64_t first[] = {9, 8, 7, 6, 5};
    const uint64_t second[] = {9, 8, 3, 2, 1};
    bool is_new = false;
    run_step(first, 5);
    run_step(second, 5);
    plan_steps_begin(&steps);
    (void)request(9, &is_new);
    (void)request(8, &is_new);
    cr_expect_eq(request(7, &is_new), 2);
    cr_expect(is_new, "the later one was to be followed until here");
    cr_expect_eq(steps.followed, &steps.kept[0]);
}

Test(plan_steps, what_is_missing_is_skipped_and_what_is_strange_has_no_place) {
    const uint64_t sizes[] = {9, 8, 7, 6, 5};
    bool is_new = false;
    run_step(sizes, 5);
    plan_steps_begin(&steps);
    cr_expect_eq(request(9, &is_new), 0);
    cr_expect_eq(request(7, &is_new), 2);
    cr_expect_eq(request(100, &is_new), PLAN_NONE);
    cr_expect_eq(request(6, &is_new), 3);
}

Test(plan_steps, a_refused_one_is_followed_again_in_the_next_step_only) {
    const uint64_t sizes[] = {9, 8, 7, 6, 5};
    bool is_new = false;
    run_step(sizes, 5);
    plan_steps_begin(&steps);
    (void)request(9, &is_new);
    plan_steps_refuse(&steps);
    cr_expect_eq(request(8, &is_new), PLAN_NONE);
    plan_steps_begin(&steps);
    cr_expect_eq(request(9, &is_new), 0);
}

/* ---- The contender ------------------------------------------------------------------------- */

static void run_awkward_step(void) {
    ductile_addr first = take(20 * MIB);
    ductile_addr stays = take(20 * MIB);
    ductile_addr third = take(20 * MIB);
    give(first);
    give(third);
    ductile_addr large = take(60 * MIB);
    give(stays);
    give(large);
}

Test(planned, a_trim_between_steps_does_no_harm) {
    start_with(&contender_planned, 4096 * MIB, "planned.handle_mib=2", DUCTILE_SCHEDULE_EAGER);
    for (int i = 0; i < 4; i++) {
        run_awkward_step();
        cr_assert_eq(now.ops->trim(now.self), DUCTILE_OK);
        cr_expect_eq(stats().reserved_bytes, 0);
    }
    end_as_it_is();
}

/* Other settings that are wrong are in tests/bench/misuse.txt. */
Test(planned, refuses_foresight_where_no_replay_is_known) {
    static const char *const setting = "planned.foresight=1";
    char message[160] = "";
    bench_device device;
    stage opened;
    cr_assert(bench_device_find(BENCH_DEVICE_VIRTUAL, 0, &device, message, sizeof message));
    const stage_plan plan = {
        .device = &device, .contender = &contender_planned, .settings = &setting, .n_settings = 1};
    cr_expect_eq(stage_open(&opened, &plan, message, sizeof message), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_expect_str_not_empty(message);
}
