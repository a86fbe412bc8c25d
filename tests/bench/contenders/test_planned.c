/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement by plan: packing keeps lives apart, steps are followed and left as they should be, and
 * the contender puts the requests of a step that comes again where its layout has them.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/plan_steps.h"
#include "vmm/driver/open_virtual.h"

#include <criterion/criterion.h>

#include <ductile_virtual.h>

#define MIB ((uint64_t)1 << 20)

/* ---- Packing ------------------------------------------------------------------------------- */

static bool share_memory(const plan_span *a, const plan_span *b) {
    return a->range == b->range && a->offset < b->offset + b->size &&
           b->offset < a->offset + a->size;
}

static bool share_time(const plan_span *a, const plan_span *b) {
    return a->born < b->dies && b->born < a->dies;
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void make_spans(plan_span *spans, size_t n, uint32_t *state) {
    for (size_t i = 0; i < n; i++) {
        uint32_t born = next_random(state) % 100;
        bool stays = next_random(state) % 8 == 0;
        spans[i] = (plan_span){.size = (1 + next_random(state) % 64) * MIB,
                               .born = born,
                               .dies = stays ? PLAN_FOREVER : born + 1 + next_random(state) % 30,
                               .range = next_random(state) % 2,
                               .request = (uint32_t)i};
    }
    spans[0].is_fixed = true;
    spans[0].offset = 100 * MIB;
}

Test(plan_pack, nothing_that_lives_at_the_same_time_shares_memory) {
    enum { N = 120 };
    plan_span spans[N];
    uint32_t state = 1;
    for (int round = 0; round < 30; round++) {
        make_spans(spans, N, &state);
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

static ductile_virtual_gpu *gpu;
static dvmm_driver *driver;
static ductile_stream stream;
static void *self;

static void open_with(const char *setting) {
    char message[160] = "";
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.capacity_bytes = 4096 * MIB;
    cr_assert_eq(ductile_virtual_create(&gpu, &options), DUCTILE_OK);
    cr_assert_eq(dvmm_open_virtual(gpu, &driver, NULL, 0), DUCTILE_OK);
    cr_assert_eq(dvmm_stream_create(driver, &stream), DUCTILE_OK);
    contender_env env = {
        .driver = driver, .gpu = gpu, .settings = &setting, .n_settings = setting != NULL};
    cr_assert_eq(contender_planned.init(&env, &self, message, sizeof message), DUCTILE_OK, "%s",
                 message);
}

static void close_all(void) {
    contender_planned.fini(self);
    ductile_virtual_state state = {.struct_size = sizeof state};
    cr_assert_eq(ductile_virtual_get_state(gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.handles, 0);
    cr_expect_eq(state.mappings, 0);
    cr_expect_eq(state.reservations, 0);
    cr_expect_eq(state.violations, 0);
    cr_expect_eq(dvmm_stream_destroy(driver, stream), DUCTILE_OK);
    dvmm_close(driver);
    ductile_virtual_destroy(gpu);
}

static ductile_addr take(uint64_t mib) {
    ductile_addr address = 0;
    cr_assert_eq(contender_planned.alloc(self, mib * MIB, stream, &address), DUCTILE_OK);
    return address;
}

static void give(ductile_addr address) {
    cr_assert_eq(contender_planned.free(self, address), DUCTILE_OK);
}

static contender_stats stats(void) {
    contender_stats stats = {0};
    contender_planned.stats(self, &stats);
    return stats;
}

/* 80 MiB are live at most. Best fit needs 100: the large request finds 20 MiB free on one side of
 * what stays, and on the other 20 that can grow. */
static void run_awkward_step(void) {
    ductile_addr first = take(20);
    ductile_addr stays = take(20);
    ductile_addr third = take(20);
    give(first);
    give(third);
    ductile_addr large = take(60);
    give(stays);
    give(large);
}

Test(planned, a_step_that_comes_again_uses_what_its_layout_needs) {
    open_with(NULL);
    run_awkward_step();
    contender_stats once = stats();
    cr_expect_eq(once.plan.placed, 0);
    cr_expect_eq(once.reserved_peak_bytes, 100 * MIB);
    for (int i = 0; i < 3; i++) {
        run_awkward_step();
    }
    contender_stats now = stats();
    cr_expect_eq(now.plan.requests, 16);
    cr_expect_geq(now.plan.placed, 11);
    cr_expect_eq(now.reserved_peak_bytes, once.reserved_peak_bytes);
    cr_expect_eq(now.plan.touched_bytes, 80 * MIB);
    close_all();
}

Test(planned, where_memory_is_missing_free_handles_move_if_told) {
    open_with("planned.moves=1");
    ductile_addr first = take(20);
    (void)take(20);
    give(first);
    (void)take(40);
    cr_expect_eq(stats().reserved_bytes, 60 * MIB);
    cr_expect_eq(stats().creates, 3);
    close_all();
}

Test(planned, without_moves_it_grows) {
    open_with(NULL);
    ductile_addr first = take(20);
    (void)take(20);
    give(first);
    (void)take(40);
    cr_expect_eq(stats().reserved_bytes, 80 * MIB);
    close_all();
}

Test(planned, a_trim_between_steps_does_no_harm) {
    open_with("planned.handle_mib=2");
    for (int i = 0; i < 4; i++) {
        run_awkward_step();
        cr_assert_eq(contender_planned.trim(self), DUCTILE_OK);
        cr_expect_eq(stats().reserved_bytes, 0);
    }
    close_all();
}

Test(planned, refuses_settings_that_it_does_not_know) {
    const char *const wrong[] = {"planned.moves=2", "planned.handle_mib=0", "planned.foresight=1",
                                 "planned.handle_mib=2x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char message[160] = "";
        void *refused = NULL;
        contender_env env = {.settings = &wrong[i], .n_settings = 1};
        cr_assert_eq(dvmm_open_virtual(NULL, &driver, NULL, 0), DUCTILE_OK);
        env.driver = driver;
        cr_expect_eq(contender_planned.init(&env, &refused, message, sizeof message),
                     DUCTILE_ERR_INVALID_ARGUMENT, "%s", wrong[i]);
        cr_expect_null(refused);
        cr_expect_neq(message[0], '\0');
        dvmm_close(driver);
    }
}
