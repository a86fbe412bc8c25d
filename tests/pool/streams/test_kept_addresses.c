/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_stream:wait keeps an arena's latest old addresses, a 32nd of the device, and unmaps the
 * others at the next call that grows, for which it waits. The device is lazy: without that wait
 * nothing is ever proven, and without the unmap old addresses pile up.
 */
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"

enum { N_SMALL = 32, N_LARGE = N_SMALL / 2, N_ROUNDS = 8 };

#define G FIXTURE_GRANULE
#define KEPT (4 * MIB) /* of the 128 */

static uint64_t retiring(void) {
    return fixture_stats(f.allocator).retiring_bytes;
}

/* Every other granule is freed; the request that follows has to move them together. */
static void move_once(void) {
    ductile_addr small[N_SMALL];
    for (int i = 0; i < N_SMALL; i++) {
        small[i] = take_granules(1, 0);
        launch(small[i], G, 0);
    }
    for (int i = 0; i < N_SMALL; i += 2) {
        give(small[i]);
    }
    ductile_addr large = take_granules(N_LARGE, 0);
    launch(large, N_LARGE * G, 0);
    for (int i = 1; i < N_SMALL; i += 2) {
        give(small[i]);
    }
    give(large);
}

static void open_with(ductile_schedule schedule, const char *conf) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 128 * MIB, .schedule = schedule, .lag = 3, .conf = conf});
}

static void open_full(ductile_schedule schedule) {
    open_with(schedule, "record_stream:wait,limit_bytes:64M");
}

static void stay_below(uint64_t most) {
    uint64_t moved = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        move_once();
        cr_assert_leq(retiring(), most, "round %d: %llu MiB of old addresses", round,
                      (unsigned long long)(retiring() / MIB));
        moved = fixture_stats(f.allocator).recycled_handles;
    }
    cr_assert_gt(moved, N_ROUNDS, "hardly anything moved");
    close_audited();
}

static void assert_bounded(ductile_schedule schedule) {
    open_full(schedule);
    stay_below(KEPT + N_LARGE * G);
}

Test(kept_addresses, however_far_the_host_is_ahead_they_do_not_pile_up) {
    assert_bounded(DUCTILE_SCHEDULE_LAZY);
    assert_bounded(DUCTILE_SCHEDULE_LAGGING);
    assert_bounded(DUCTILE_SCHEDULE_EAGER);
    assert_bounded(DUCTILE_SCHEDULE_RANDOM);
}

/* What is waited for is a mark of the stream alone. One is under way at a time, so that those of
 * two rounds are there. */
Test(kept_addresses, where_no_context_marker_may_be_recorded_they_do_not_pile_up) {
    open_with(DUCTILE_SCHEDULE_LAZY, "record_stream:wait,limit_bytes:64M,captures:unannounced");
    stay_below(KEPT + 2 * N_LARGE * G);
}

/* The host is not that far ahead, and finds out with one question. */
Test(kept_addresses, what_is_done_by_then_is_not_waited_for) {
    open_with(DUCTILE_SCHEDULE_LAZY, "record_stream:wait,limit_bytes:64M,compact:off");
    move_once();
    cr_assert_gt(retiring(), KEPT);
    assert_fine(fixture_sync_all(&f));
    uint64_t waits = fixture_stats(f.allocator).stream_syncs;
    (void)take_granules(N_SMALL, 0);
    assert_u64(fixture_stats(f.allocator).stream_syncs, waits);
    close_audited();
}

/* Gaps must not appear when the GPU chooses: what may be kept stays, though its work is done. */
Test(kept_addresses, no_more_than_may_be_kept_are_all_kept) {
    open_full(DUCTILE_SCHEDULE_EAGER);
    ductile_addr small[N_SMALL];
    for (int i = 0; i < N_SMALL; i++) {
        small[i] = take_granules(1, 0);
    }
    give(small[0]);
    give(small[2]);
    (void)take_granules(2, 0);
    assert_u64(retiring(), KEPT);
    assert_fine(fixture_sync_all(&f));
    assert_ok(set_limit(f.allocator, 128 * MIB));
    (void)take_granules(4, 0);
    assert_u64(retiring(), KEPT);
    close_audited();
}

Test(kept_addresses, as_many_as_may_be_kept_are_kept) {
    open_full(DUCTILE_SCHEDULE_LAZY);
    move_once();
    cr_assert_gt(retiring(), KEPT);
    assert_fine(fixture_sync_all(&f));
    assert_ok(set_limit(f.allocator, 128 * MIB));
    give(take_granules(N_SMALL + 8, 0)); /* grows, and needs nobody's memory but its own */
    cr_assert_geq(retiring(), KEPT);
    close_audited();
}
