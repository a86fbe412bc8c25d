/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ladder where the program's callbacks take part, and above a soft limit in a long run. What is
 * given up for a request, and when, is in tests/scenarios/pressure.txt.
 */
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"

/* ---- The refusal --------------------------------------------------------------------------- */

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

/* Work that ends the device while a thread waits for it: no memory was missing, the device was. */
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

/* ---- The soft limit ------------------------------------------------------------------------ */

static ductile_limits limits_now(void) {
    ductile_limits l = {.struct_size = sizeof l};
    assert_ok(ductile_get_limits(f.allocator, &l));
    return l;
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
