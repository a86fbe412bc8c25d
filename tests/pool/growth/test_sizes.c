/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left to other streams beside what is in use. How large handles are made, and what trims
 * in every step cost, is in tests/scenarios/sizes.txt.
 */
#include "pool/growth/sizes.h"

#include "pool/blocks/transitions.h"
#include "pool/streams/progress.h"

#include "tests/support/internals.h"
#include "tests/support/rng.h"

static void open_roomy(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB, .n_streams = 2, .conf = conf});
}

/* While that is in use, the most bytes that are created rather than taken from other streams. */
static uint64_t slack_beside(uint64_t in_use) {
    open_roomy(NULL);
    (void)take(in_use, 0); /* nothing is free yet */
    grow_lock();
    dpool_sizes_look(f.allocator);
    index_lock();
    uint64_t most = 0;
    for (uint64_t step = 128 * GIB; step > 0; step /= 2) {
        most += dpool_should_create_locked(f.allocator, 0, most + step, UINT64_MAX) ? step : 0;
    }
    index_unlock();
    grow_unlock();
    close_audited();
    return most;
}

Test(sizes, what_may_be_held_beside_what_is_in_use_grows_with_it_and_is_a_small_part) {
    uint64_t slack = slack_beside(25 * GIB);
    cr_assert(slack > 25 * GIB / 400 && slack < 25 * GIB / 100, "%llu", (unsigned long long)slack);
    assert_u64(slack_beside(50 * GIB), 2 * slack);
}

/* So many requests are looked at, and the last one has not been served in the end: its stream could
 * not wait. Another thread looked before that was known. */
Test(sizes, a_request_that_is_taken_back_after_it_was_counted_makes_no_handles_smaller) {
    enum { REQUESTS = 8192, TIMES = 4 };
    open_roomy(NULL);
    for (int i = 0; i < REQUESTS - 1; i++) {
        give(take(512, 0));
    }
    ductile_addr last = take(512, 0);
    grow_lock();
    f.allocator->sizes.n_moves = REQUESTS / 4 * TIMES;
    dpool_sizes_look(f.allocator);
    uint32_t times = f.allocator->sizes.times;
    index_lock();
    dpool_unserve_locked(f.allocator, block_at(last));
    index_unlock();
    dpool_sizes_look(f.allocator);
    uint32_t after = f.allocator->sizes.times;
    grow_unlock();
    assert_u64(times, TIMES); /* one move in four requests is not much */
    assert_u64(after, times);
    close_audited();
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

static bool keeps_after(uint64_t n_moves) {
    enum { REQUESTS = 8192 };
    for (int i = 0; i < REQUESTS; i++) {
        give(take(512, 0));
    }
    const dpool_arena *arena = arena_of(0);
    grow_lock();
    f.allocator->sizes.n_moves = n_moves;
    dpool_sizes_look(f.allocator);
    index_lock();
    bool keeps = dpool_keeps_old_addresses_locked(f.allocator, arena);
    index_unlock();
    grow_unlock();
    return keeps;
}

Test(sizes, memory_keeps_its_old_addresses_while_granules_are_made_and_few_move) {
    open_roomy(NULL);
    cr_assert(keeps_after(0));
    cr_assert(!keeps_after(8192));
    cr_assert(!keeps_after(1024));
    cr_assert(!keeps_after(0));
    cr_assert(keeps_after(0));
    (void)take(64 * GIB, 0);
    cr_assert(!keeps_after(0), "larger handles are made now");
    close_audited();
}

Test(sizes, memory_keeps_its_old_addresses_however_many_move_where_granules_were_chosen) {
    open_roomy("sizes:2M");
    cr_assert(keeps_after(8192));
    close_audited();
    open_roomy("sizes:4M");
    cr_assert(!keeps_after(0));
    close_audited();
}

/* Nothing in it moves (G1), and what it creates is what is missing, to the granule. */
Test(sizes, a_graphs_pool_holds_the_same_with_handles_of_any_size) {
    uint64_t tight = held_by_a_graphs_pool("sizes:2M");
    assert_u64(held_by_a_graphs_pool(NULL), tight);
    assert_u64(held_by_a_graphs_pool("sizes:64M"), tight);
}
