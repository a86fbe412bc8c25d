/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users of today's allocators suffer from, as public bugs describe it, and what this one does
 * instead. Numbers without a project are those of pytorch/pytorch. docs/testing.md has the table
 * of what is tested elsewhere; most is in tests/scenarios/known_failures.txt.
 */
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

/* #185240: asking for the device's use failed, and hid the out of memory it was to describe. */
Test(known_failures, a_refusal_is_told_when_nobody_says_what_the_device_has) {
    open_fixture(NULL);
    assert_fine(fixture_fail_for_good(&f, "mem_info", DVMM_NOT_SUPPORTED));
    (void)take(200 * MIB, 0);
    ductile_addr none = 0;
    assert_status(ductile_alloc(f.allocator, 100 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.held_bytes, 200 * MIB);
    assert_u64(r.device_bytes, 256 * MIB);
    assert_u64(r.device_free_bytes, 0);
    close_audited();
}

/* #159564: with expandable segments nothing told how fragmented memory was. */
Test(known_failures, what_cannot_be_moved_is_told) {
    open_fixture(NULL);
    ductile_addr blocks[64];
    for (size_t i = 0; i < 64; i++) {
        blocks[i] = take(3 * MIB, 0);
    }
    for (size_t i = 0; i < 64; i += 2) {
        give(blocks[i]);
    }
    ductile_addr none = 0;
    assert_status(ductile_alloc(f.allocator, 250 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.free_bytes, 96 * MIB);
    assert_u64(r.pinned_bytes, 32 * MIB); /* 3 MiB blocks: of each one granule is whole */
    assert_u64(r.largest_free_bytes, 3 * MIB);
    close_audited();
}

/* torchtitan #1558, fms-fsdp #63, #65078, #50925: near the limit each miss flushed everything and
 * waited for it, and freeing synchronised the device. Steps of changing sizes at 97 % of it. */
Test(known_failures, near_the_limit_a_steady_state_waits_for_nothing_and_frees_nothing) {
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
