/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits at run time, and long runs near them. What is given up for a request, and when, is in
 * tests/scenarios/pressure.txt; callbacks are in asked.txt.
 */
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"

/* ---- The soft limit ------------------------------------------------------------------------ */

static ductile_limits limits_now(void) {
    ductile_limits l = {.struct_size = sizeof l};
    assert_ok(ductile_get_limits(f.allocator, &l));
    return l;
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

/* torchtitan #1558, fms-fsdp #63, #65078, #50925: near the limit each miss flushed everything and
 * waited for it, and freeing synchronised the device. Steps of changing sizes at 97 % of it. */
Test(pressure, near_the_limit_a_steady_state_waits_for_nothing_and_frees_nothing) {
    fixture_setup setup = {.capacity_bytes = GIB, .conf = "limit_bytes:800M"};
    open_fixture(&setup);
    uint64_t calls[3] = {0, 0, 0};
    static const char *const names[] = {"phys_release", "stream_sync", "context_sync"};
    for (size_t step = 0; step < 40; step++) {
        ductile_addr blocks[12];
        uint64_t left = 776 * MIB;
        for (size_t i = 0; i < 12; i++) {
            uint64_t size = i == 11 ? left : (20 + (step * 7 + i * 13) % 60) * MIB;
            blocks[i] = take(size, 0);
            launch(blocks[i], size, 0);
            left -= size;
        }
        for (size_t i = 0; i < 12; i++) {
            give(blocks[(i * 7 + step) % 12]);
        }
        for (size_t i = 0; i < 3 && step == 9; i++) {
            calls[i] = count(names[i]);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        assert_u64(count(names[i]), calls[i]);
    }
    close_audited();
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
