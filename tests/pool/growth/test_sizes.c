/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left to other streams beside what is in use, and programs that trim in every step. How
 * large handles are made is in tests/scenarios/sizes.txt.
 */
#include "pool/growth/sizes.h"

#include "tests/support/inside.h"
#include "tests/support/rng.h"

#define MOST_BLOCKS 128

static ductile_addr blocks[MOST_BLOCKS];

static void open_roomy(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB, .n_streams = 2, .conf = conf});
}

static void fill_to(uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / GIB; i++) {
        blocks[i] = take(GIB, 0);
    }
}

/* So much was in use, and all of it has gone back to the driver. */
static void use_much_and_trim(uint64_t bytes) {
    fill_to(bytes);
    for (uint64_t i = 0; i < bytes / GIB; i++) {
        give(blocks[i]);
    }
    assert_ok(ductile_empty_cache(f.allocator));
}

static void take_turns(unsigned turns) {
    for (unsigned turn = 0; turn < turns; turn++) {
        for (size_t i = 0; i < 8; i++) {
            blocks[i] = take(100 * MIB, turn % 2);
        }
        for (size_t i = 0; i < 8; i++) {
            give(blocks[i]);
        }
    }
}

/* It does not learn in each step again what the streams need. */
Test(sizes, a_program_that_trims_at_every_step_keeps_its_peak) {
    open_roomy(NULL);
    uint64_t calls[4];
    ductile_addr weights = take(GIB, 0);
    for (int step = 0; step < 4; step++) {
        uint64_t before = fixture_stats(f.allocator).driver_calls;
        take_turns(200);
        give(take(8 * GIB, 0));
        assert_ok(ductile_empty_cache(f.allocator));
        calls[step] = fixture_stats(f.allocator).driver_calls - before;
    }
    cr_assert_lt(calls[3], calls[0] / 4, "%llu calls", (unsigned long long)calls[3]);
    give(weights);
    close_audited();
}

enum { PAIRS = 640 };

/* Large blocks between small ones that stay, and then nearly all of the device at once. */
static bool interleave_and_take(uint64_t big) {
    static ductile_addr passing[PAIRS];
    static ductile_addr staying[PAIRS];
    for (size_t i = 0; i < PAIRS; i++) {
        passing[i] = take(160 * MIB, 0);
        staying[i] = take(2 * MIB, 0);
    }
    for (size_t i = 0; i < PAIRS; i++) {
        give(passing[i]);
    }
    ductile_addr large = 0;
    bool is_served = ductile_alloc(f.allocator, big, f.streams[0], &large) == DUCTILE_OK;
    if (is_served) {
        give(large);
    }
    for (size_t i = 0; i < PAIRS; i++) {
        give(staying[i]);
    }
    return is_served;
}

Test(sizes, near_the_limit_a_trim_in_every_step_costs_no_request) {
    open_roomy(NULL);
    use_much_and_trim(120 * GIB);
    for (int i = 0; i < 4; i++) {
        cr_assert(interleave_and_take(118 * GIB), "step %d", i);
        assert_ok(ductile_empty_cache(f.allocator));
    }
    close_audited();
}

Test(sizes, what_was_refused_is_served_behind_a_trim) {
    open_roomy(NULL);
    bool is_served = interleave_and_take(118 * GIB);
    for (int i = 0; i < 2 && !is_served; i++) {
        assert_ok(ductile_empty_cache(f.allocator));
        is_served = interleave_and_take(118 * GIB);
    }
    cr_assert(is_served);
    close_audited();
}

/* While that is held, more is created rather than taken from other streams. */
static void assert_slack(uint64_t in_use, uint64_t slack) {
    open_roomy(NULL);
    (void)take(in_use, 0); /* nothing is free yet */
    grow_lock();
    dpool_sizes_look(f.allocator);
    index_lock();
    cr_assert(dpool_should_create_locked(f.allocator, slack, UINT64_MAX));
    cr_assert(!dpool_should_create_locked(f.allocator, slack + 1, UINT64_MAX));
    index_unlock();
    grow_unlock();
    close_audited();
}

Test(sizes, what_may_be_held_beside_what_is_in_use_is_all_of_the_slack_and_no_more) {
    assert_slack(4 * FIXTURE_GRANULE, 64 * MIB);
    assert_slack(10 * GIB, 10 * GIB / 100 * 2);
}

/* Blocks of 64 KiB to 48 MiB that come and go at random. */
static uint64_t held_by_a_graphs_pool(const char *conf) {
    enum { N = 24, OPERATIONS = 800 };
    ductile_pool_id pool = {2, 0};
    ductile_addr in_use[N] = {0};
    rng random = rng_seeded(1);
    open_roomy(conf);
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    for (int i = 0; i < OPERATIONS; i++) {
        ductile_addr *at = &in_use[rng_below(&random, N)];
        uint64_t size = (1 + rng_below(&random, 768)) * 64 * 1024;
        if (*at != 0) {
            give(*at);
        }
        *at = *at == 0 ? take(size, 0) : 0;
    }
    uint64_t held = reserved();
    assert_ok(ductile_pool_end(f.allocator, pool));
    close_audited();
    return held;
}

/* Nothing in it moves (G1), and what it creates is what is missing, to the granule. */
Test(sizes, a_graphs_pool_holds_the_same_with_handles_of_any_size) {
    uint64_t tight = held_by_a_graphs_pool("sizes:tight");
    assert_u64(held_by_a_graphs_pool(NULL), tight);
    assert_u64(held_by_a_graphs_pool("sizes:quick"), tight);
}
