/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contenders follow PyTorch's published rules to the block: what a rule says is read off the
 * addresses they return; what they hold, by sizes, splits, growth and the cap, and on recorded
 * runs, is in tests/bench/recordings.txt.
 */
#include "bench/contenders/contender.h"
#include "bench/contenders/torch_set.h"
#include "bench/driver/bench_calls.h"
#include "tests/bench/program.h"
#include "vmm/driver/open_virtual.h"

#include <stdlib.h>

/* ---- Containers ---------------------------------------------------------------------------- */

Test(torch_set, finds_the_first_key_at_or_above) {
    enum { N = 2000 };
    torch_set set = {0};
    torch_node *nodes = calloc(N, sizeof *nodes);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t key = i * 7919 % N; /* a permutation: 7919 is prime */
        torch_set_insert(&set, &nodes[key], 2 * key, key);
    }
    for (uint64_t key = 0; key < N; key += 3) {
        torch_set_remove(&set, &nodes[key]);
    }
    for (uint64_t wanted = 0; wanted < 2 * N; wanted++) {
        uint64_t key = (wanted + 1) / 2;
        key += key % 3 == 0;
        torch_node *found = torch_set_find_at_least(&set, wanted, 0);
        cr_assert(found == (key < N ? &nodes[key] : NULL), "key %llu", (unsigned long long)wanted);
    }
    uint64_t n = 0;
    uint64_t last = 0;
    for (torch_node *at = torch_set_find_first(&set); at != NULL; at = torch_set_find_next(at)) {
        cr_assert(n == 0 || at->major > last);
        last = at->major;
        n++;
    }
    cr_assert_eq(n, N - (N + 2) / 3);
    free(nodes);
}

/* ---- Rules of both ------------------------------------------------------------------------- */

static const contender_ops *const caching[] = {&contender_classic, &contender_expandable};

enum { N_CACHING = sizeof caching / sizeof caching[0] };

/* What holds for each of the caching ones, or for one, under a cap. */
#define OF_EACH(suite, name, first, n, cap, schedule)                                              \
    static void suite##_##name(void);                                                              \
    Test(suite, name) {                                                                            \
        for (const contender_ops *const *ops = (first); ops < (first) + (n); ops++) {              \
            start_with(*ops, cap, NULL, DUCTILE_SCHEDULE_##schedule);                              \
            suite##_##name();                                                                      \
            end_as_it_is();                                                                        \
        }                                                                                          \
    }                                                                                              \
    static void suite##_##name(void)

static const contender_ops *const only_expandable[] = {&contender_expandable};
static const contender_ops *const only_cumemalloc[] = {&contender_cumemalloc};
#define OF_BOTH(name, schedule) OF_EACH(contenders, name, caching, N_CACHING, 0, schedule)
#define OF_BOTH_UNDER(name, cap) OF_EACH(contenders, name, caching, N_CACHING, cap, EAGER)
#define OF(contender, name, cap) OF_EACH(contender, name, only_##contender, 1, cap, EAGER)

OF_BOTH(round_requests_to_512_bytes, EAGER) {
    ductile_addr first = take(1);
    ductile_addr second = take(513);
    ductile_addr third = take(512);
    cr_expect_eq(second, first + 512);
    cr_expect_eq(third, second + 1024);
}

OF_BOTH(zero_bytes_are_no_block, EAGER) {
    cr_expect_eq(take(0), 0);
    give(0);
    cr_expect_eq(stats().reserved_bytes, 0);
}

OF_BOTH(a_second_free_is_refused, EAGER) {
    ductile_addr block = take(MIB);
    give(block);
    cr_expect_eq(now.ops->free(now.self, block), DUCTILE_ERR_NOT_LIVE);
}

OF_BOTH(best_fit_takes_the_smallest_hole_and_the_lowest_among_equals, EAGER) {
    ductile_addr holes[4];
    const uint64_t sizes[4] = {8 * KIB, 4 * KIB, 4 * KIB, 6 * KIB};
    for (int h = 0; h < 4; h++) {
        holes[h] = take(sizes[h]);
        (void)take(KIB); /* keeps the holes apart */
    }
    for (int h = 0; h < 4; h++) {
        give(holes[h]);
    }
    cr_expect_eq(take(4 * KIB), holes[1]);
    cr_expect_eq(take(4 * KIB), holes[2]);
    cr_expect_eq(take(5 * KIB), holes[3]);
}

OF_BOTH(free_neighbours_merge, EAGER) {
    ductile_addr blocks[4];
    for (int b = 0; b < 4; b++) {
        blocks[b] = take(256 * KIB);
    }
    give(blocks[0]);
    give(blocks[2]);
    give(blocks[1]);
    cr_expect_eq(take(768 * KIB), blocks[0]);
    cr_expect_eq(stats().reserved_bytes, 2 * MIB);
}

/* ---- Other streams ------------------------------------------------------------------------- */

OF_BOTH(a_block_used_elsewhere_waits_for_that_work, LAZY) {
    ductile_addr block = take(12 * MIB);
    cr_assert_eq(ductile_virtual_launch(now.bed.gpu, now.bed.streams[1], NULL, 0), DUCTILE_OK);
    cr_assert_eq(now.ops->record_stream(now.self, block, now.bed.streams[1]), DUCTILE_OK);
    give(block);
    cr_expect_neq(take(12 * MIB), block);
    cr_assert_eq(ductile_virtual_stream_sync(now.bed.gpu, now.bed.streams[1]), DUCTILE_OK);
    cr_expect_eq(take(12 * MIB), block);
}

OF_BOTH(recording_the_own_stream_changes_nothing, LAZY) {
    ductile_addr block = take(12 * MIB);
    cr_assert_eq(ductile_virtual_launch(now.bed.gpu, now.bed.streams[0], NULL, 0), DUCTILE_OK);
    cr_assert_eq(now.ops->record_stream(now.self, block, now.bed.streams[0]), DUCTILE_OK);
    give(block);
    cr_expect_eq(take(12 * MIB), block);
}

/* ---- Expandable: handles, growth, the cap -------------------------------------------------- */

/* The tail's own size is the better fit, but it could grow: inner holes come first. */
OF(expandable, prefers_a_hole_to_the_tail, 0) {
    ductile_addr hole = take(8 * MIB);
    (void)take(8 * MIB);
    give(hole); /* the hole has 8 MiB, the tail 4 */
    cr_expect_eq(take(3 * MIB), hole);
}

OF(expandable, at_the_cap_free_handles_go_back_with_a_wait_and_their_addresses_are_refilled,
   100 * MIB) {
    ductile_addr low = take(40 * MIB);
    ductile_addr high = take(20 * MIB);
    give(low);
    cr_expect_eq(stats().stream_syncs, 0);
    ductile_addr big = take(60 * MIB); /* 60 held, 40 of them free: only a flush makes room */
    cr_expect(big > high);
    cr_expect_eq(stats().reserved_bytes, 80 * MIB);
    cr_expect_eq(stats().releases, 2);
    cr_expect_geq(stats().stream_syncs, 1);
    cr_expect_eq(stats().pressure_waits, 1);
    cr_expect_eq(stats().pressure_returns, 1);
    cr_expect_eq(stats().pressure_returned_bytes, 40 * MIB);
    cr_expect_eq(take(20 * MIB), low);
}

OF(expandable, handles_that_are_partly_in_use_stay, 60 * MIB) {
    ductile_addr low = take(30 * MIB);
    (void)take(2 * MIB); /* in the second handle */
    give(low);
    cr_assert_eq(now.ops->trim(now.self), DUCTILE_OK);
    cr_expect_eq(stats().reserved_bytes, 20 * MIB);
}

OF(expandable, trim_gives_an_empty_segment_and_its_addresses_back, 0) {
    give(take(100 * MIB));
    cr_assert_eq(now.ops->trim(now.self), DUCTILE_OK);
    ductile_virtual_state state = {.struct_size = sizeof state};
    cr_assert_eq(ductile_virtual_get_state(now.bed.gpu, &state), DUCTILE_OK);
    cr_expect_eq(state.handles, 0);
    cr_expect_eq(state.reservations, 0);
}

/* ---- Caps ---------------------------------------------------------------------------------- */

OF_BOTH_UNDER(never_hold_more_than_the_cap, 90 * MIB) {
    while (try_take(11 * MIB, 0) != 0) {
        cr_assert_leq(stats().reserved_peak_bytes, 90 * MIB);
    }
    cr_expect_gt(stats().reserved_bytes, 60 * MIB);
}

OF_BOTH(a_full_device_is_out_of_memory_and_stays_usable, EAGER) {
    ductile_addr first = take(100 * GIB);
    cr_expect_eq(try_take(64 * GIB, 0), 0);
    give(first);
    cr_expect_neq(try_take(64 * GIB, 1), 0, "the first stream's memory did not go back");
}

OF(expandable, a_failing_map_changes_nothing, 0) {
    ductile_addr block = 0;
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "map", .nth = 2, .code = DVMM_UNKNOWN};
    cr_assert_eq(ductile_virtual_inject(now.bed.gpu, &fault), DUCTILE_OK);
    cr_expect_neq(now.ops->alloc(now.self, 50 * MIB, now.bed.streams[0], &block), DUCTILE_OK);
    cr_expect_eq(stats().reserved_bytes, 0);
    (void)take(50 * MIB);
    cr_expect_eq(stats().reserved_bytes, 60 * MIB);
}

/* ---- The driver's own ---------------------------------------------------------------------- */

OF(cumemalloc, live_blocks_do_not_outlive_it, 0) {
    for (int i = 0; i < 100; i++) {
        (void)take(3 * KIB);
    }
}

Test(cumemallocasync, is_absent_where_the_device_has_no_such_pool) {
    dvmm_driver *driver = NULL;
    void *self = NULL;
    char message[128] = "";
    cr_assert_eq(dvmm_open_virtual(NULL, &driver, NULL, 0), DUCTILE_OK);
    contender_env env = {.driver = driver};
    cr_assert_not(bench_has_async_pool(driver));
    cr_expect_eq(contender_cumemallocasync.init(&env, &self, message, sizeof message),
                 DUCTILE_ERR_UNSUPPORTED);
    cr_expect_null(self);
    cr_expect_neq(message[0], '\0');
    dvmm_close(driver);
}

Test(contenders, have_names_of_their_own_which_are_those_of_the_list) {
#define NAME_OF(name, title) #name,
    static const char *const names[] = {DUCTILE_CONTENDERS_MAP(NAME_OF)};
    for (size_t n = 0; n < N_CONTENDERS; n++) {
        cr_expect_str_eq(all_contenders[n]->name, names[n]);
        for (size_t i = 0; i < n; i++) {
            cr_expect_str_neq(names[i], names[n]);
        }
    }
    cr_expect_null(all_contenders[N_CONTENDERS]);
}
