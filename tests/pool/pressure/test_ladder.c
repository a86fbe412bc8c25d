/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ladder: what is given up for a request, in which order, how much of it, and what a refused
 * request leaves. And the soft limit, above which creating comes last.
 */
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"
#include "vmm/marker.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

/* Used on another stream, where work goes on, and freed. */
static void give_pending(ductile_addr address, size_t other) {
    launch(address, 512, other);
    assert_ok(ductile_free_on(f.allocator, address, f.streams[other]));
}

/* ---- What it cost --------------------------------------------------------------------------- */

static void assert_cost(uint64_t waits, uint64_t returns, uint64_t returned_bytes) {
    const ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.pressure_waits, waits);
    assert_u64(s.pressure_returns, returns);
    assert_u64(s.pressure_returned_total_bytes, returned_bytes);
}

/* Each rung counts once, however many markers it waits for. */
Test(pressure, a_wait_for_pending_memory_and_one_for_all_work_are_counted) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3});
    ductile_addr pending = take(96 * MIB, 0);
    ductile_addr silent = take(160 * MIB, 2);
    give_pending(pending, 1);
    assert_cost(0, 0, 0);
    ductile_addr block = take(80 * MIB, 0);
    assert_cost(1, 0, 0);
    launch(silent, 512, 2);
    give(silent);
    (void)take(150 * MIB, 0);
    assert_cost(2, 0, 0);
    give(block);
    close_audited();
}

Test(pressure, what_goes_back_for_lack_of_memory_is_counted) {
    open_fixture(&(fixture_setup){.conf = "reuse:never"});
    (void)take(128 * MIB, 0);
    ductile_addr block = take(64 * MIB, 0);
    (void)take(2 * MIB, 0);
    give(block);
    (void)take(80 * MIB, 0);
    uint64_t gone = 128 * MIB + 64 * MIB + 2 * MIB + 80 * MIB - reserved();
    cr_assert_gt(fixture_stats(f.allocator).pressure_returns, 0);
    assert_u64(fixture_stats(f.allocator).pressure_returned_total_bytes, gone);
    close_audited();
}

/* A trim waits and gives back because the program says so. */
Test(pressure, what_a_trim_does_is_not_counted) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY});
    ductile_addr block = take(64 * MIB, 0);
    launch(block, 512, 0);
    give(block);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
    cr_assert_gt(fixture_stats(f.allocator).stream_syncs, 0);
    assert_cost(0, 0, 0);
    close_audited();
}

/* ---- Only as much as is missing ------------------------------------------------------------ */

enum { N_PENDING = 10 };

/* 10 pending blocks of 20 MiB, nothing else left; as many are waited for as the request lacks. */
Test(pressure, waits_for_as_much_pending_memory_as_is_missing) {
    for (size_t n = 1; n <= N_PENDING; n++) {
        fixture_setup setup = {.capacity_bytes = N_PENDING * 20 * MIB,
                               .schedule = DUCTILE_SCHEDULE_LAZY,
                               .n_streams = 2};
        open_fixture(&setup);
        ductile_addr blocks[N_PENDING];
        for (size_t i = 0; i < N_PENDING; i++) {
            blocks[i] = take(20 * MIB, 0);
        }
        for (size_t i = 0; i < N_PENDING; i++) {
            give_pending(blocks[i], 1);
        }
        uint64_t waits = count("event_sync");
        (void)take(n * 20 * MIB, 0);
        assert_u64(count("event_sync") - waits, 1); /* the last of them: the others came before */
        assert_u64(count("context_sync"), 0);
        assert_u64(fixture_stats(f.allocator).pending_bytes, (N_PENDING - n) * 20 * MIB);
        close_audited();
    }
}

/* Growth only: what is given back for a request is what the request lacks, not the cache. */
Test(pressure, passes_no_more_through_the_driver_than_is_missing) {
    fixture_setup setup = {.conf = "reuse:never"};
    open_fixture(&setup);
    ductile_addr blocks[12];
    for (size_t i = 0; i < 12; i++) {
        blocks[i] = take(20 * MIB, 0);
        (void)take(512, 0);
    }
    for (size_t i = 0; i < 12; i++) {
        give(blocks[i]);
    }
    uint64_t releases = count("phys_release");
    (void)take(30 * MIB, 0);
    uint64_t granules = 30 * MIB / FIXTURE_GRANULE + 2;
    cr_assert_leq(count("phys_release") - releases, granules, "%llu handles released",
                  (unsigned long long)(count("phys_release") - releases));
    close_audited();
}

/* Free memory before the last gap lacks one granule of a request for four. That one goes back, and
 * was part of the place; then as much as the request is, and a granule at either end. */
static void pass_twice(uint64_t failed_creates) {
    open_fixture(&(fixture_setup){.conf = "reuse:never,sizes:tight", .n_streams = 2});
    ductile_addr blocks[8];
    for (size_t i = 0; i < 8; i++) {
        (void)take_granules(1, 0);
        blocks[i] = take_granules(3, 0);
    }
    for (size_t i = 0; i < 8; i++) {
        give(blocks[i]);
    }
    (void)take_granules(1, 1); /* records a marker */
    (void)take_granules(1, 1); /* finds it done */
    uint64_t before = reserved();
    assert_ok(set_soft_limit(f.allocator, before));
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "phys_create", .nth = 1, .code = DVMM_OUT_OF_MEMORY};
    assert_ok(ductile_virtual_inject(f.gpu, failed_creates > 0 ? &fault : NULL));
    (void)take_granules(4, 0);
    assert_u64(ductile_virtual_faults_fired(f.gpu), failed_creates);
    assert_u64(reserved(), before - (1 + 4 + 2) * FIXTURE_GRANULE + 4 * FIXTURE_GRANULE);
    assert_cost(0, 2, (1 + 4 + 2) * FIXTURE_GRANULE);
    close_audited();
}

Test(pressure, passes_the_whole_request_and_its_ends_through_the_driver_the_second_time) {
    pass_twice(0);
}

/* The device has no memory after all: nothing is gained by giving it more. */
Test(pressure, passes_memory_through_the_driver_no_third_time) {
    pass_twice(1);
}

/* ---- The refusal --------------------------------------------------------------------------- */

Test(pressure, after_a_refusal_the_next_smaller_request_is_served_from_what_was_there) {
    fixture_setup setup = {.n_streams = 2};
    open_fixture(&setup);
    (void)take(120 * MIB, 0);
    give(take(100 * MIB, 0));
    assert_refused(200 * MIB, 0);
    uint64_t creates = count("phys_create");
    (void)take(100 * MIB, 0);
    assert_u64(count("phys_create"), creates);
    close_audited();
}

/* Another process had the memory for the time of one call. */
Test(pressure, memory_that_was_gone_for_a_moment_refuses_nothing) {
    for (uint64_t nth = 1; nth <= 10; nth++) {
        open_fixture(NULL);
        ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                       .call = "phys_create",
                                       .nth = nth,
                                       .code = DVMM_OUT_OF_MEMORY};
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        (void)take(20 * MIB, 0);
        assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
        assert_u64(count("phys_create"), 11);
        close_audited();
    }
}

static ductile_addr kept;

static uint64_t free_and_deny(void *user, ductile_allocator *a, uint64_t missing,
                              ductile_stream stream) {
    (void)user;
    (void)missing;
    (void)stream;
    if (kept != 0) {
        (void)ductile_free(a, kept);
        kept = 0;
    }
    return 0;
}

/* As when another thread frees while this one climbs: nobody says so, and it is seen. */
/* Nothing is proven then, so nothing may serve another stream. */
Test(pressure, a_wait_for_all_work_that_fails_refuses_the_request_and_loses_nothing) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .n_streams = 2,
                                  .conf = "captures:unannounced"});
    ductile_addr theirs = take(48 * MIB, 1);
    launch(theirs, 48 * MIB, 1);
    give(theirs);
    assert_fine(fixture_fail_for_good(&f, "context_sync", 1));
    assert_refused(40 * MIB, 0);
    cr_assert_gt(ductile_virtual_faults_fired(f.gpu), 0, "nobody waits for all work");
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    launch(take(40 * MIB, 0), 40 * MIB, 0);
    close_audited();
}

/* Ranges of idle streams may go once the work on their memory is done: it is waited for, and the
 * request tried again. */
Test(pressure, a_request_without_addresses_waits_and_is_then_refused) {
    open_fixture(&(fixture_setup){.n_streams = 2});
    (void)take(512, 0);
    assert_fine(fixture_fail_for_good(&f, "address_reserve", DVMM_OUT_OF_MEMORY));
    uint64_t waits = fixture_stats(f.allocator).stream_syncs;
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, 512, f.streams[1], &none),
                  DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(none, 0);
    cr_assert_gt(fixture_stats(f.allocator).stream_syncs, waits);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    (void)take(512, 1);
    close_audited();
}

Test(pressure, looks_again_before_it_refuses) {
    fixture_setup setup = {.n_streams = 2};
    open_fixture(&setup);
    (void)take(156 * MIB, 0);
    uint64_t id = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, free_and_deny, NULL, 0, &id));
    kept = take(100 * MIB, 0);
    (void)take(100 * MIB, 0);
    close_audited();
}

/* The same where the memory is another stream's, and must be waited for before it helps. */
Test(pressure, climbs_again_when_memory_came_back_on_the_way) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    (void)take(156 * MIB, 0);
    uint64_t id = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, free_and_deny, NULL, 0, &id));
    kept = take(100 * MIB, 1);
    ductile_virtual_use use = {.address = kept, .size = 100 * MIB, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], &use, 1));
    (void)take(100 * MIB, 0);
    close_audited();
}

/* Between the wait for all work and the last attempt another thread frees memory of a stream that
 * only such a wait can prove. */
static ductile_addr freed_late;

ductile_status __real_dvmm_markers_wait_all(dvmm_marker_pool *pool);
ductile_status __wrap_dvmm_markers_wait_all(dvmm_marker_pool *pool);
ductile_status __real_dvmm_marker_wait(dvmm_marker_pool *pool, dvmm_marker *marker);
ductile_status __wrap_dvmm_marker_wait(dvmm_marker_pool *pool, dvmm_marker *marker);

static void free_late(void) {
    if (freed_late != 0) {
        ductile_addr address = freed_late;
        freed_late = 0;
        give(address);
    }
}

ductile_status __wrap_dvmm_markers_wait_all(dvmm_marker_pool *pool) {
    ductile_status status = __real_dvmm_markers_wait_all(pool);
    free_late();
    return status;
}

ductile_status __wrap_dvmm_marker_wait(dvmm_marker_pool *pool, dvmm_marker *marker) {
    ductile_status status = __real_dvmm_marker_wait(pool, marker);
    free_late();
    return status;
}

static void climbs_twice(const char *conf, const char *wait) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2, .conf = conf};
    open_fixture(&setup);
    (void)take(156 * MIB, 0);
    ductile_addr early = take(20 * MIB, 1);
    freed_late = take(80 * MIB, 1);
    launch(early, 20 * MIB, 1);
    launch(freed_late, 80 * MIB, 1);
    give(early);
    (void)take(60 * MIB, 0);
    assert_u64(count(wait), 2);
    close_audited();
}

Test(pressure, climbs_again_when_others_freed_while_it_climbed) {
    climbs_twice(NULL, "event_sync");
}

Test(pressure, climbs_again_where_it_waits_for_the_device) {
    climbs_twice("captures:unannounced", "context_sync");
}

/* Work that ends the device while somebody waits for it: no memory was missing, the device was. */
Test(pressure, a_device_lost_on_the_way_is_called_lost) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    ductile_addr block = take(200 * MIB, 1);
    ductile_virtual_use use = {.address = block + GIB / 2, .size = 512, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], &use, 1));
    give(block);
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, 200 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_DEVICE_LOST);
    assert_u64(none, 0);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.number, 0);
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DEVICE_LOST);
    fixture_abandon(&f);
}

/* ---- Large handles at the limit ------------------------------------------------------------ */

/* Handles of 16 MiB fit no gap of 10 MiB. What an attempt makes in vain the next one uses, and only
 * handles that are in the way go back. */
Test(pressure, large_handles_at_the_limit_are_not_made_over_and_over) {
    fixture_setup setup = {.capacity_bytes = 512 * MIB, .conf = "sizes:16M"};
    open_fixture(&setup);
    ductile_addr blocks[32];
    for (size_t i = 0; i < 32; i++) {
        blocks[i] = take(i % 2 == 0 ? 10 * MIB : 22 * MIB, 0);
    }
    for (size_t i = 0; i < 32; i += 2) {
        give(blocks[i]);
    }
    give(blocks[31]);
    uint64_t creates = count("phys_create");
    (void)take(120 * MIB, 0);
    cr_assert_leq(count("phys_create") - creates, 120 * MIB / FIXTURE_GRANULE + 2,
                  "%llu handles created", (unsigned long long)(count("phys_create") - creates));
    close_audited();
}

/* ---- The soft limit ------------------------------------------------------------------------ */

static ductile_limits limits_now(void) {
    ductile_limits l = {.struct_size = sizeof l};
    assert_ok(ductile_get_limits(f.allocator, &l));
    return l;
}

Test(soft_limit, waits_for_pending_memory_before_it_creates) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    give_pending(take(20 * MIB, 0), 1);
    uint64_t waits = count("event_sync");
    ductile_addr block = take(20 * MIB, 0); /* no soft limit: created */
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 40 * MIB);
    assert_u64(count("event_sync"), waits);
    give_pending(block, 1);
    assert_ok(set_soft_limit(f.allocator, 40 * MIB));
    (void)take(20 * MIB, 0);
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 40 * MIB);
    cr_assert_gt(count("event_sync"), waits, "nobody waited");
    close_audited();
}

static unsigned n_asked;

static uint64_t count_asked(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)user;
    (void)a;
    (void)missing;
    (void)stream;
    n_asked++;
    return 0;
}

Test(soft_limit, refuses_nothing_and_asks_no_callback) {
    fixture_setup setup = {.conf = "soft_limit_bytes:64M"};
    open_fixture(&setup);
    uint64_t id = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, count_asked, NULL, 0, &id));
    (void)take(50 * MIB, 0);
    (void)take(200 * MIB, 0);
    cr_assert_eq(n_asked, 0);
    assert_u64(count("context_sync"), 0);
    assert_refused(50 * MIB, 0);
    cr_assert_eq(n_asked, 1);
    close_audited();
}

/* Growth only: above the soft limit memory goes back before more is created. */
Test(soft_limit, gives_back_before_it_creates_where_memory_may_not_move) {
    fixture_setup setup = {.conf = "reuse:never", .n_streams = 2};
    open_fixture(&setup);
    (void)take(512, 1);
    ductile_addr blocks[4];
    for (size_t i = 0; i < 4; i++) {
        blocks[i] = take(20 * MIB, 0);
        (void)take(FIXTURE_GRANULE, 0);
    }
    for (size_t i = 0; i < 4; i++) {
        give(blocks[i]);
    }
    for (size_t i = 0; i < 200; i++) {
        give(take(512, 0)); /* markers are recorded in passing */
    }
    uint64_t held = fixture_stats(f.allocator).reserved_bytes;
    assert_ok(set_soft_limit(f.allocator, held));
    (void)take(40 * MIB, 0);
    cr_assert_leq(fixture_stats(f.allocator).reserved_bytes, held);
    close_audited();
}

/* One step of a workload whose sizes change from step to step; some blocks live into the next. */
static void one_step(size_t step, ductile_addr *survivors) {
    ductile_addr blocks[32];
    for (size_t i = 0; i < 32; i++) {
        blocks[i] = take((1 + (i * 7 + step * 5) % 13) * 3 * MIB + i * 4096, i % 2);
    }
    for (size_t i = 0; i < 4; i++) {
        give(survivors[i]);
        survivors[i] = blocks[(i * 9 + step) % 32];
        blocks[(i * 9 + step) % 32] = 0;
    }
    for (size_t i = 0; i < 32; i++) {
        give(blocks[i * 5 % 32]);
    }
}

/* Steps with a peak far above the soft limit, or the share of the limit: about 450 handles are
 * held, and a step creates and releases next to none. */
static void steady_steps(const char *conf) {
    fixture_setup setup = {.capacity_bytes = GIB,
                           .schedule = DUCTILE_SCHEDULE_LAGGING,
                           .lag = 4,
                           .n_streams = 2,
                           .conf = conf};
    open_fixture(&setup);
    ductile_addr survivors[4] = {0};
    for (size_t step = 0; step < 20; step++) {
        one_step(step, survivors);
    }
    uint64_t creates = count("phys_create");
    uint64_t releases = count("phys_release");
    for (size_t step = 20; step < 40; step++) {
        one_step(step, survivors);
    }
    creates = count("phys_create") - creates;
    releases = count("phys_release") - releases;
    cr_assert_gt(fixture_stats(f.allocator).slow_allocs, 40, "nothing was missed");
    cr_assert_leq(creates, 25, "%s: %llu handles created in 20 steady steps", conf,
                  (unsigned long long)creates);
    cr_assert_leq(releases, 25, "%s: %llu handles released in 20 steady steps", conf,
                  (unsigned long long)releases);
    close_audited();
}

Test(soft_limit, does_not_thrash_when_the_peak_lies_above_it) {
    steady_steps("soft_limit_bytes:256M");
    steady_steps("soft_limit_bytes:20%");
    steady_steps("soft_limit_bytes:20%,limit_bytes:960M");
}

/* ---- Limits at run time -------------------------------------------------------------------- */

Test(limits, are_told_as_they_are_in_effect) {
    open_fixture(NULL);
    ductile_limits l = limits_now();
    assert_u64(l.device_bytes, 256 * MIB);
    assert_u64(l.limit_bytes, 256 * MIB);
    assert_u64(l.soft_limit_bytes, 256 * MIB);
    assert_ok(set_limit(f.allocator, DUCTILE_SHARE(0.5)));
    assert_u64(limits_now().limit_bytes, 128 * MIB);
    assert_ok(set_limit(f.allocator, 200 * MIB));
    assert_u64(limits_now().limit_bytes, 200 * MIB);
    assert_ok(set_limit(f.allocator, 100 * MIB));
    assert_u64(limits_now().limit_bytes, 100 * MIB);
    assert_ok(set_soft_limit(f.allocator, 300 * MIB));
    assert_u64(limits_now().soft_limit_bytes, 100 * MIB);
    assert_ok(set_soft_limit(f.allocator, 30 * MIB));
    assert_u64(limits_now().soft_limit_bytes, 30 * MIB);
    assert_ok(set_limit(f.allocator, 0));
    assert_u64(limits_now().limit_bytes, 256 * MIB);
    assert_status(set_limit(f.allocator, DUCTILE_SHARE(1.5)), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(set_limit(f.allocator, DUCTILE_SHARE_FLAG), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_set_limits(f.allocator, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(limits_now().limit_bytes, 256 * MIB);
    close_audited();
}

Test(limits, a_soft_share_is_one_of_the_hard_limit) {
    open_fixture(&(fixture_setup){.conf = "soft_limit_bytes:50%"});
    assert_u64(limits_now().soft_limit_bytes, 128 * MIB);
    assert_ok(set_limit(f.allocator, 100 * MIB));
    assert_u64(limits_now().soft_limit_bytes, 50 * MIB);
    assert_ok(set_soft_limit(f.allocator, 30 * MIB));
    assert_u64(limits_now().soft_limit_bytes, 30 * MIB);
    close_audited();
}

Test(limits, hold_from_the_next_request_on) {
    open_fixture(NULL);
    (void)take(100 * MIB, 0);
    assert_ok(set_limit(f.allocator, DUCTILE_SHARE(0.25)));
    assert_refused(20 * MIB, 0);
    assert_ok(set_limit(f.allocator, DUCTILE_SHARE(0.5)));
    (void)take(20 * MIB, 0);
    assert_refused(20 * MIB, 0);
    close_audited();
}

/* Lowered below what is held, the surplus goes through the next request that needs memory. */
Test(limits, lowered_below_what_is_held_take_nothing_alive) {
    open_fixture(NULL);
    ductile_addr block = take(100 * MIB, 0);
    give(take(50 * MIB, 0));
    assert_ok(set_limit(f.allocator, 120 * MIB));
    assert_ok(ductile_virtual_fill(f.gpu, block, 3, 100 * MIB, f.streams[0]));
    (void)take(20 * MIB, 0);
    assert_refused(2 * MIB + 30 * MIB, 0);
    assert_ok(ductile_trim(f.allocator, 120 * MIB, NULL));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 120 * MIB);
    close_audited();
}

/* Also where memory may not move between streams, and where the largest handle is a dedicated one's
 * that fits nowhere else. */
Test(limits, lowered_below_what_is_held_refuse_nothing_that_fits) {
    fixture_setup setup = {.capacity_bytes = 160 * MIB,
                           .schedule = DUCTILE_SCHEDULE_LAZY,
                           .n_streams = 3,
                           .conf = "reuse:stream,record_stream:wait"};
    open_fixture(&setup);
    ductile_addr dedicated = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 6 * FIXTURE_GRANULE, f.streams[0], &dedicated));
    launch(dedicated, 6 * FIXTURE_GRANULE, 0);
    ductile_addr large = take(94 * MIB, 1);
    launch(large, 94 * MIB, 1);
    give(dedicated);
    assert_ok(set_limit(f.allocator, 6 * FIXTURE_GRANULE));
    give(large);
    (void)take(300000, 2);
    (void)take(5 * FIXTURE_GRANULE, 2);
    close_audited();
}

/* ---- Several threads ----------------------------------------------------------------------- */

enum { N_THREADS = 6, N_ROUNDS = 150 };

/* One at a time has the memory that every one of them needs. */
typedef struct turn {
    sem_t mine;
    sem_t *next;
    size_t stream;
    uint64_t refusals;
    ductile_status wrong;
} turn;

static void *take_and_pass_on(void *user) {
    turn *t = user;
    for (size_t i = 0; i < N_ROUNDS; i++) {
        (void)sem_wait(&t->mine);
        ductile_addr address = 0;
        ductile_status status =
            ductile_alloc(f.allocator, 200 * MIB, f.streams[t->stream], &address);
        t->refusals += status == DUCTILE_ERR_OUT_OF_MEMORY;
        t->wrong = status != DUCTILE_OK ? status : t->wrong;
        status = ductile_free(f.allocator, address);
        t->wrong = status != DUCTILE_OK ? status : t->wrong;
        (void)sem_post(t->next);
    }
    return NULL;
}

/* Memory that was freed before a request came is never refused to it, whoever climbs beside it. */
static void *disturb(void *user) {
    turn *t = user;
    for (size_t i = 0; i < N_ROUNDS; i++) {
        ductile_addr address = 0;
        ductile_status status =
            ductile_alloc(f.allocator, 250 * MIB, f.streams[t->stream], &address);
        if (status == DUCTILE_OK) {
            status = ductile_free(f.allocator, address);
        }
        t->wrong = status != DUCTILE_OK && status != DUCTILE_ERR_OUT_OF_MEMORY ? status : t->wrong;
    }
    return NULL;
}

static void play(void *(*body)(void *), turn *turns, size_t n) {
    pthread_t threads[N_THREADS];
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, body, &turns[i]), 0);
    }
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        assert_ok(turns[i].wrong);
    }
}

Test(pressure, memory_handed_from_thread_to_thread_is_never_refused) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 5, .n_streams = N_THREADS};
    open_fixture(&setup);
    static turn turns[N_THREADS];
    for (size_t i = 0; i < N_THREADS; i++) {
        turns[i].stream = i;
        turns[i].next = &turns[(i + 1) % N_THREADS].mine;
        cr_assert_eq(sem_init(&turns[i].mine, 0, i == 0), 0);
    }
    play(take_and_pass_on, turns, N_THREADS);
    close_audited();
}

/* All want nearly the whole device at once: some are refused, none hangs, all end. */
Test(pressure, threads_that_all_want_everything_come_to_an_end) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 6, .n_streams = N_THREADS};
    open_fixture(&setup);
    static turn turns[N_THREADS];
    for (size_t i = 0; i < N_THREADS; i++) {
        turns[i].stream = i;
    }
    play(disturb, turns, N_THREADS);
    close_audited();
}
