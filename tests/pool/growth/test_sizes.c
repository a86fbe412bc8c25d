/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left to other streams beside what is in use. How large handles are made, and what trims
 * in every step cost, is in tests/scenarios/sizes.txt.
 */
#include "pool/growth/sizes.h"

#include "tests/support/internals.h"
#include "tests/support/rng.h"

static void open_roomy(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB, .n_streams = 2, .conf = conf});
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
