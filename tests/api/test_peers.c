/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: an enabled GPU has access to everything mapped, before and after, and a failure leaves
 * all as it was. */
#include "tests/support/audit.h"
#include "tests/support/expect.h"

#include <ductile_share.h>

/* Devices 1 and 2 reach this one, device 3 does not, device 4 does not exist. */
static ductile_virtual_gpu *gpu;
static ductile_allocator *a;

static void open_all(void) {
    ductile_virtual_options device;
    ductile_virtual_options_init(&device);
    device.capacity_bytes = 64 * MIB;
    device.n_devices = 4;
    device.unreachable_devices = 8;
    assert_ok(ductile_virtual_create(&gpu, &device));
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = gpu;
    assert_ok(ductile_create(&a, &options));
}

static void close_all(void) {
    assert_ok(ductile_destroy(a));
    ductile_virtual_state s = {.struct_size = sizeof s};
    assert_ok(ductile_virtual_get_state(gpu, &s));
    cr_assert(s.handles == 0 && s.mappings == 0 && s.reservations == 0 && s.violations == 0);
    ductile_virtual_destroy(gpu);
}

TestSuite(peers, .init = open_all, .fini = close_all);

static ductile_addr take(uint64_t granules) {
    ductile_addr addr = 0;
    assert_ok(ductile_alloc(a, granules * FIXTURE_GRANULE, NULL, &addr));
    return addr;
}

static int access_of(ductile_addr addr, int device) {
    return ductile_virtual_access(gpu, addr, device);
}

Test(peers, an_enabled_device_reaches_what_is_mapped_and_what_comes) {
    ductile_addr before = take(2);
    assert_ok(ductile_enable_peer(a, 1));
    ductile_addr after = take(3);
    cr_assert_eq(access_of(before, 1), 3);
    cr_assert_eq(access_of(before + FIXTURE_GRANULE, 1), 3);
    cr_assert_eq(access_of(after, 1), 3);
    cr_assert_eq(access_of(after, 0), 3);
    cr_assert_eq(access_of(after, 2), 0);
}

Test(peers, moved_memory_is_reached_at_its_new_address) {
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_enable_peer(a, 2));
    ductile_addr blocks[32];
    for (size_t i = 0; i < 32; i++) {
        blocks[i] = take(1);
    }
    for (size_t i = 0; i < 32; i += 2) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    ductile_addr large = take(8);
    ductile_stats s = fixture_stats(a);
    cr_assert_gt(s.recycled_handles, 0);
    for (uint64_t i = 0; i < 8; i++) {
        cr_assert_eq(access_of(large + i * FIXTURE_GRANULE, 1), 3);
        cr_assert_eq(access_of(large + i * FIXTURE_GRANULE, 2), 3);
    }
}

Test(peers, a_disabled_device_reaches_nothing) {
    ductile_addr before = take(2);
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_enable_peer(a, 2));
    assert_ok(ductile_disable_peer(a, 1));
    cr_assert_eq(access_of(before, 1), 0);
    cr_assert_eq(access_of(before, 2), 3);
    cr_assert_eq(access_of(before, 0), 3);
    cr_assert_eq(access_of(take(3), 1), 0);
    assert_ok(ductile_disable_peer(a, 1));
}

Test(peers, who_cannot_reach_or_is_not_there_is_told) {
    (void)take(1);
    assert_status(ductile_enable_peer(a, 3), DUCTILE_ERR_UNSUPPORTED);
    assert_status(ductile_enable_peer(a, 4), DUCTILE_ERR_NO_DEVICE);
    assert_status(ductile_enable_peer(a, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_enable_peer(a, -1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_enable_peer(NULL, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_enable_peer(a, 1));
}

static void plan(const char *call, uint64_t nth, int effect) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = 999, .effect = effect};
    assert_ok(ductile_virtual_inject(gpu, &fault));
}

/* Memory in several runs, of which each in turn fails, wholly or after its first mapping. */
static void fail_each(int before, ductile_status (*change)(ductile_allocator *, int),
                      const ductile_addr *blocks, size_t n) {
    for (uint64_t nth = 1;; nth++) {
        for (int effect = 0; effect <= 2; effect++) {
            plan("set_access_for", nth, effect);
            ductile_status status = change(a, 1);
            if (ductile_virtual_faults_fired(gpu) == 0) {
                assert_ok(ductile_virtual_inject(gpu, NULL));
                cr_assert_gt(nth, 3, "only %llu calls failed", (unsigned long long)nth - 1);
                assert_ok(status);
                return;
            }
            assert_status(status, DUCTILE_ERR_DRIVER);
            for (size_t i = 0; i < n; i++) {
                cr_assert_eq(access_of(blocks[i], 1), before, "call %llu, effect %d, block %zu",
                             (unsigned long long)nth, effect, i);
            }
        }
    }
}

Test(peers, a_failure_on_the_way_leaves_all_as_it_was) {
    ductile_addr blocks[9];
    for (size_t i = 0; i < 9; i++) {
        blocks[i] = take(2);
    }
    ductile_addr kept[5];
    for (size_t i = 0; i < 9; i++) {
        if (i % 2 == 0) {
            kept[i / 2] = blocks[i];
        } else {
            assert_ok(ductile_free(a, blocks[i]));
        }
    }
    assert_ok(ductile_empty_cache(a)); /* gaps between what is kept */
    assert_ok(ductile_empty_cache(a));
    fail_each(0, ductile_enable_peer, kept, 5);
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(access_of(kept[i], 1), 3);
    }
    fail_each(3, ductile_disable_peer, kept, 5);
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(access_of(kept[i], 1), 0);
    }
}

/* An allocation with peers whose access fails is refused like any other, and all is undone. */
Test(peers, growth_that_fails_at_a_peer_changes_nothing) {
    assert_ok(ductile_enable_peer(a, 1));
    ductile_addr kept = take(1);
    for (int effect = 0; effect <= 2; effect++) {
        uint64_t held = fixture_stats(a).mapped_bytes;
        plan("set_access_for", 1, effect);
        ductile_addr addr = 1;
        assert_status(ductile_alloc(a, 4 * FIXTURE_GRANULE, NULL, &addr), DUCTILE_ERR_DRIVER);
        cr_assert_eq(addr, 0);
        assert_u64(fixture_stats(a).mapped_bytes, held);
        assert_ok(ductile_virtual_inject(gpu, NULL));
        char report[256] = "";
        cr_assert_eq(ductile_check(a, report, sizeof report), DUCTILE_OK, "%s", report);
    }
    cr_assert_eq(access_of(take(4), 1), 3);
    cr_assert_eq(access_of(kept, 1), 3);
}

Test(peers, asking_the_driver_may_fail) {
    plan("can_access_peer", 1, 0);
    assert_status(ductile_enable_peer(a, 1), DUCTILE_ERR_DRIVER);
    cr_assert_eq(access_of(take(1), 1), 0);
    assert_ok(ductile_enable_peer(a, 1));
}
