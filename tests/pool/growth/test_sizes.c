/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large handles are made: large while there is room, small near the limit; and what a request
 * does that finds less room than was thought.
 */
#include "pool/growth/sizes.h"

#include "tests/support/inside.h"
#include "tests/support/limits.h"
#include "tests/support/rng.h"

#include <ductile_pools.h>

#define MOST_BLOCKS 128
#define LEAST_LARGE (24 * MIB)
#define SMALL (4 * MIB)

static ductile_addr blocks[MOST_BLOCKS];

static void open_roomy(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB, .n_streams = 2, .conf = conf});
}

static uint64_t creates_of(uint64_t size) {
    uint64_t before = count("phys_create");
    (void)take(size, 0);
    return count("phys_create") - before;
}

static uint64_t recycled(void) {
    return fixture_stats(f.allocator).recycled_handles;
}

static void set_others(uint64_t bytes) {
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, bytes));
}

Test(sizes, with_room_a_large_request_is_few_handles) {
    open_roomy(NULL);
    cr_assert_leq(creates_of(GIB), GIB / LEAST_LARGE + 1);
    close_audited();
}

Test(sizes, tight_makes_the_smallest_handles_everywhere) {
    open_roomy("sizes:tight");
    assert_u64(creates_of(GIB), GIB / FIXTURE_GRANULE);
    assert_u64(creates_of(FIXTURE_GRANULE), 1);
    close_audited();
}

Test(sizes, quick_makes_the_largest_handles_at_once) {
    open_roomy("sizes:quick");
    assert_u64(creates_of(GIB), GIB / (64 * MIB));
    close_audited();
}

Test(sizes, a_size_that_is_set_is_kept_whatever_the_room) {
    open_roomy("sizes:8M");
    assert_u64(creates_of(GIB), GIB / (8 * MIB));
    close_audited();
}

Test(sizes, on_a_small_device_handles_are_granules) {
    open_fixture(&(fixture_setup){.capacity_bytes = 2 * GIB});
    assert_u64(creates_of(GIB), GIB / FIXTURE_GRANULE);
    close_audited();
}

Test(sizes, small_requests_create_for_those_that_follow) {
    open_roomy(NULL);
    uint64_t creates = 0;
    for (int i = 0; i < 256; i++) {
        creates += creates_of(FIXTURE_GRANULE);
    }
    cr_assert_leq(creates, 256 * FIXTURE_GRANULE / LEAST_LARGE + 6, "%llu handles",
                  (unsigned long long)creates);
    close_audited();
}

/* There may be hundreds of them. */
Test(sizes, a_stream_that_holds_little_grows_by_little) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB, .n_streams = 64});
    for (size_t i = 0; i < 64; i++) {
        (void)take(512, i);
    }
    assert_u64(reserved(), 64 * FIXTURE_GRANULE);
    close_audited();
}

Test(sizes, a_graphs_pool_grows_by_what_it_uses) {
    const ductile_pool_id pool = {1, 2};
    open_roomy(NULL);
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    for (int i = 0; i < 5; i++) {
        (void)take(5 * FIXTURE_GRANULE, 0);
    }
    assert_u64(reserved(), 25 * FIXTURE_GRANULE);
    assert_ok(ductile_pool_end(f.allocator, pool));
    close_audited();
}

static void fill_to(uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / GIB; i++) {
        blocks[i] = take(GIB, 0);
    }
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

Test(sizes, near_the_limit_handles_are_small) {
    open_roomy(NULL);
    fill_to(110 * GIB);
    cr_assert_geq(creates_of(GIB), GIB / SMALL);
    close_audited();
}

Test(sizes, a_lowered_limit_counts_at_once) {
    open_roomy(NULL);
    fill_to(16 * GIB);
    cr_assert_leq(creates_of(GIB), GIB / LEAST_LARGE + 1);
    assert_ok(set_limit(f.allocator, 19 * GIB));
    cr_assert_geq(creates_of(GIB), GIB / SMALL);
    close_audited();
}

Test(sizes, what_another_process_holds_is_no_room) {
    open_roomy(NULL);
    set_others(100 * GIB);
    fill_to(24 * GIB);
    cr_assert_geq(creates_of(GIB), GIB / SMALL);
    close_audited();
}

Test(sizes, the_room_is_looked_at_again_after_some_misses) {
    open_roomy(NULL);
    (void)take(GIB, 0);
    set_others(100 * GIB); /* after the library has looked */
    for (int i = 0; i < 64; i++) {
        (void)take(64 * MIB, 0);
    }
    fill_to(20 * GIB);
    cr_assert_geq(creates_of(GIB), GIB / SMALL);
    close_audited();
}

/* At the turn of a dip what is free in large handles goes back; the next requests make small ones
 * of it. */
Test(sizes, near_the_limit_a_dip_gives_large_handles_back) {
    open_roomy(NULL);
    fill_to(110 * GIB);
    uint64_t held = reserved();
    for (size_t i = 0; i < 110; i++) {
        if (i % 8 != 0) {
            give(blocks[i]);
        }
    }
    for (size_t i = 0; i < 1000; i++) {
        give(take(512, 0));
    }
    cr_assert_lt(reserved(), held / 2, "%llu bytes are held", (unsigned long long)reserved());
    close_audited();
}

Test(sizes, with_room_no_dip_gives_anything_back) {
    open_roomy(NULL);
    fill_to(64 * GIB);
    uint64_t held = reserved();
    for (size_t i = 0; i < 64; i++) {
        give(blocks[i]);
    }
    for (size_t i = 0; i < 1000; i++) {
        give(take(512, 0));
    }
    assert_u64(reserved(), held);
    close_audited();
}

/* ---- Free memory of other streams ----------------------------------------------------------- */

/* Stream 0 has freed 32 MiB, proven done; stream 1 has nothing. */
static void free_for_others(void) {
    ductile_addr block = take(32 * MIB, 0);
    (void)take(512, 0); /* keeps the range */
    give(block);
}

Test(sizes, with_room_little_is_created_rather_than_taken_from_other_streams) {
    open_roomy(NULL);
    free_for_others();
    (void)take(32 * MIB, 1);
    assert_u64(recycled(), 0);
    close_audited();
}

Test(sizes, tight_takes_it_from_other_streams) {
    open_roomy("sizes:tight");
    free_for_others();
    (void)take(32 * MIB, 1);
    assert_u64(recycled(), 16);
    close_audited();
}

/* ---- What was in use ------------------------------------------------------------------------ */

/* So much was in use, and all of it has gone back to the driver. */
static void use_much_and_trim(uint64_t bytes) {
    fill_to(bytes);
    for (uint64_t i = 0; i < bytes / GIB; i++) {
        give(blocks[i]);
    }
    assert_ok(ductile_empty_cache(f.allocator));
}

/* What one stream has freed serves the other, because 1 GiB was in use at most, not 8. */
static void assert_little_is_left_to_others(void) {
    give(take(GIB, 0));
    (void)take(GIB, 1);
    assert_u64(reserved(), GIB);
}

Test(sizes, what_was_in_use_before_a_trim_leaves_no_memory_to_other_streams) {
    open_roomy(NULL);
    use_much_and_trim(8 * GIB);
    assert_little_is_left_to_others();
    close_audited();
}

Test(sizes, every_part_of_a_program_is_forgotten_when_it_has_ended) {
    open_roomy(NULL);
    use_much_and_trim(8 * GIB);
    use_much_and_trim(9 * GIB);
    assert_little_is_left_to_others();
    close_audited();
}

static const ductile_pool_id large_pool = {7, 7};

static ductile_addr take_in_pool(uint64_t size) {
    begin_plain_pool(large_pool);
    ductile_addr block = take(size, 0);
    assert_ok(ductile_pool_end(f.allocator, large_pool));
    return block;
}

Test(sizes, what_a_paused_pool_uses_leaves_no_memory_to_other_streams) {
    open_roomy(NULL);
    ductile_addr block = take_in_pool(8 * GIB);
    assert_ok(ductile_pause(f.allocator, large_pool, 0));
    assert_little_is_left_to_others();
    assert_ok(ductile_resume(f.allocator, large_pool));
    give(block);
    release_plain_pool(large_pool);
    close_audited();
}

Test(sizes, what_a_trimmed_pool_used_leaves_no_memory_to_other_streams) {
    open_roomy(NULL);
    give(take_in_pool(8 * GIB));
    assert_ok(ductile_pool_trim(f.allocator, large_pool, NULL));
    assert_little_is_left_to_others();
    release_plain_pool(large_pool);
    close_audited();
}

/* 4 GiB are, and so 80 MiB are slack; 80 GiB were. */
Test(sizes, after_a_trim_other_streams_keep_a_share_of_what_was_in_use_since) {
    open_roomy(NULL);
    use_much_and_trim(80 * GIB);
    fill_to(4 * GIB);
    give(blocks[0]);
    (void)take(32 * MIB, 1);
    assert_u64(reserved(), 4 * GIB + 32 * MIB);
    (void)take(GIB, 1);
    assert_u64(reserved(), 4 * GIB + 32 * MIB);
    close_audited();
}

Test(sizes, the_peaks_of_the_statistics_outlast_a_trim) {
    open_roomy(NULL);
    use_much_and_trim(8 * GIB);
    (void)take(GIB, 0);
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.allocated_peak_bytes, 8 * GIB);
    assert_u64(s.active_peak_bytes, 8 * GIB);
    ductile_reset_peaks(f.allocator);
    s = fixture_stats(f.allocator);
    assert_u64(s.allocated_peak_bytes, GIB);
    assert_u64(s.active_peak_bytes, GIB);
    close_audited();
}

/* A part of the program has ended while another stream still uses what it has freed. */
Test(sizes, what_is_pending_when_a_part_has_ended_is_in_the_peaks_of_the_statistics) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 128 * GIB, .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY});
    ductile_addr block = take(64 * MIB, 0);
    use_much_and_trim(8 * GIB);
    launch(block, 64 * MIB, 1);
    assert_ok(ductile_free_on(f.allocator, block, f.streams[1]));
    (void)take(64 * MIB, 1);
    assert_u64(fixture_stats(f.allocator).active_peak_bytes, 8 * GIB + 64 * MIB);
    close_audited();
}

/* How much more is held when the other stream wants 96 MiB: 9 GiB were in use, and 184 MiB are
 * slack. */
static uint64_t grown_after(void (*act)(void)) {
    open_roomy(NULL);
    fill_to(8 * GIB);
    give(take(GIB, 0));
    act();
    uint64_t held = reserved();
    (void)take(96 * MIB, 1);
    uint64_t grown = reserved() - held;
    close_audited();
    return grown;
}

static void do_nothing(void) {
}

static void reset_peaks(void) {
    ductile_reset_peaks(f.allocator);
}

static void trim_nothing(void) {
    assert_ok(ductile_trim(f.allocator, 100 * GIB, NULL));
}

Test(sizes, resetting_the_peaks_of_the_statistics_changes_no_growth) {
    assert_u64(grown_after(reset_peaks), grown_after(do_nothing));
}

Test(sizes, a_trim_that_has_nothing_to_do_changes_no_growth) {
    assert_u64(grown_after(trim_nothing), grown_after(do_nothing));
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

Test(sizes, where_little_is_held_the_room_is_asked_for_again) {
    open_roomy(NULL);
    give(take(GIB, 0));
    set_others(126 * GIB); /* after the library has looked */
    assert_refused(4 * GIB, 0);
    set_others(0);
    assert_ok(ductile_empty_cache(f.allocator));
    cr_assert_leq(creates_of(GIB), GIB / LEAST_LARGE + 1);
    close_audited();
}

/* ---- A trim near the limit ------------------------------------------------------------------- */

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

/* ---- Where the device refuses --------------------------------------------------------------- */

/* Creating is the first choice, and the device refuses: then the memory of other streams serves. */
static void device_refuses(const char *conf) {
    open_roomy(conf);
    free_for_others();
    uint64_t held = reserved();
    set_others(128 * GIB - held); /* after the library has looked */
    (void)take(32 * MIB, 1);
    assert_u64(reserved(), held);
    assert_u64(fixture_stats(f.allocator).stream_syncs, 0);
    close_audited();
}

Test(sizes, where_the_device_refuses_other_streams_memory_serves) {
    device_refuses(NULL);
    device_refuses("sizes:quick");
}

Test(sizes, the_soft_limit_comes_before_creating) {
    open_roomy(NULL);
    free_for_others();
    uint64_t held = reserved();
    assert_ok(set_soft_limit(f.allocator, held));
    (void)take(32 * MIB, 1);
    assert_u64(reserved(), held);
    assert_u64(fixture_stats(f.allocator).stream_syncs, 0);
    close_audited();
}

/* Memory under work moves only where its handles fit, so the soft limit refuses at first. */
Test(sizes, what_the_soft_limit_refuses_is_no_want_of_room) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 128 * GIB, .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY});
    for (size_t i = 0; i < 64; i++) {
        blocks[i] = take(LEAST_LARGE, 0);
        launch(blocks[i], LEAST_LARGE, 0);
    }
    for (size_t i = 0; i < 64; i += 2) {
        give(blocks[i]);
    }
    assert_ok(set_soft_limit(f.allocator, reserved()));
    (void)take(70 * MIB, 0);
    cr_assert_leq(creates_of(GIB), GIB / LEAST_LARGE + 1);
    close_audited();
}

/* What a request creates beyond its own need is no reason to refuse it. */
Test(sizes, the_last_granules_are_given_out) {
    open_roomy(NULL);
    (void)take(FIXTURE_GRANULE, 0);
    set_others(128 * GIB - reserved() - 3 * FIXTURE_GRANULE);
    (void)take(reserved() - FIXTURE_GRANULE, 0);
    for (int i = 0; i < 3; i++) {
        (void)take(FIXTURE_GRANULE, 0);
    }
    assert_refused(FIXTURE_GRANULE, 0);
    close_audited();
}

/* Plans that failed for want of memory leave all as it was. */
Test(sizes, a_request_that_is_refused_changes_nothing) {
    open_roomy(NULL);
    free_for_others();
    uint64_t held = reserved();
    set_others(120 * GIB);
    assert_refused(10 * GIB, 1);
    cr_assert_leq(reserved(), held);
    set_others(0);
    (void)take(10 * GIB, 1);
    close_audited();
}

/* ---- A limit below what is held -------------------------------------------------------------- */

/* Every other of 64 blocks is freed, and then less may be held than is. */
static void lower_below_held(uint64_t size, uint64_t limit) {
    open_roomy(NULL);
    for (size_t i = 0; i < 64; i++) {
        blocks[i] = take(size, 0);
    }
    for (size_t i = 0; i < 64; i += 2) {
        give(blocks[i]);
    }
    assert_ok(set_limit(f.allocator, limit));
}

/* Near the limit no handle as large is made, but those that are there serve. */
Test(sizes, where_nothing_may_be_created_large_handles_are_taken_as_they_are) {
    lower_below_held(128 * MIB, 4 * GIB + 512 * MIB);
    assert_u64(creates_of(256 * MIB), 0);
    close_audited();
}

/* The blocks are no whole handles, so what is free fills no window. */
Test(sizes, where_nothing_may_be_created_handles_that_do_not_fit_go_back_first) {
    lower_below_held(65 * MIB, 2 * GIB + 512 * MIB);
    (void)take(200 * MIB, 0);
    close_audited();
}

/* ---- Growing ahead -------------------------------------------------------------------------- */

#define AHEAD (LEAST_LARGE / FIXTURE_GRANULE)

Test(sizes, a_small_request_creates_one_large_handle_in_all) {
    open_roomy(NULL);
    (void)take_granules(20, 0);
    assert_u64(reserved(), 20 * FIXTURE_GRANULE);
    (void)take_granules(1, 0);
    assert_u64(reserved(), (20 + AHEAD) * FIXTURE_GRANULE);
    close_audited();
}

Test(sizes, what_the_cache_serves_of_a_small_request_is_not_created) {
    open_roomy(NULL);
    (void)take_granules(20, 0);
    give(take_granules(1, 1));
    assert_ok(ductile_stream_done(f.allocator, f.streams[1])); /* goes to the cache */
    (void)take_granules(3, 0);
    assert_u64(reserved(), (20 + 1 + AHEAD) * FIXTURE_GRANULE);
    close_audited();
}

/* Its window covers all that is free behind the others, and a part of the gap behind that. */
Test(sizes, a_request_that_begins_in_free_memory_creates_for_those_that_follow_too) {
    open_roomy(NULL);
    (void)take_granules(20, 0);
    (void)take_granules(1, 0);
    (void)take_granules(AHEAD, 0); /* one more than is free */
    assert_u64(reserved(), (20 + 2 * AHEAD) * FIXTURE_GRANULE);
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
