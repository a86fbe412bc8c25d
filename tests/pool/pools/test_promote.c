/* SPDX-License-Identifier: Apache-2.0 */
/* Promotion: memory of the host behind blocks in use goes back to the device. */
#include "tests/support/spilling.h"

#include <ductile_pressure.h>
#include <ductile_share.h>
#include <ductile_sleep.h>

#include <string.h>

static const ductile_pool_id whole = {0, 0};

static ductile_sleep_report promote(void) {
    ductile_sleep_report report = {.struct_size = sizeof report};
    assert_ok(ductile_promote(f.allocator, &report));
    assert_sound();
    assert_u64(report.stayed_bytes, now().spilled_live_bytes);
    return report;
}

/* A block of which the device had `device` MiB. */
static ductile_addr take_spilled(uint64_t device, uint64_t mib, uint8_t value) {
    ductile_addr filler = take((MOST - device) * MIB, 1);
    ductile_addr b = take(mib * MIB, 0);
    assert_spilled(mib - device);
    fill(b, value, mib * MIB, 0);
    give(filler);
    return b;
}

static void assert_holds(ductile_addr b, uint64_t mib, uint8_t value) {
    for (uint64_t at = 0; at < mib; at++) {
        cr_assert_eq(byte_at(b + at * MIB, 0), value, "MiB %llu", (unsigned long long)at);
    }
    cr_assert_eq(byte_at(b + mib * MIB - 1, 0), value);
}

/* ---- What it does --------------------------------------------------------------------------- */

Test(promote, moves_what_has_spilled_to_memory_that_has_become_free) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    ductile_sleep_report report = promote();
    assert_u64(report.bytes / MIB, 76);
    assert_u64(report.copied_bytes / MIB, 2 * 76); /* to the arena, and back */
    assert_u64(report.stayed_bytes, 0);
    assert_u64(report.pools, 1);
    assert_spilled(0);
    assert_u64(now().promoted_total_bytes / MIB, 76);
    assert_u64(now().reserved_bytes / MIB, MOST); /* as before: what was free has made room */
    assert_holds(b, 100, 7);
    give(b);
    b = take(MOST * MIB, 0); /* its handles serve the next */
    assert_spilled(0);
    give(b);
    close_and_look();
}

Test(promote, calls_the_driver_for_nothing_where_nothing_has_spilled) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(100 * MIB, 0);
    uint64_t calls = now().driver_calls;
    ductile_sleep_report report = promote();
    assert_u64(now().driver_calls, calls);
    assert_u64(report.bytes + report.pools, 0);
    give(a);
    close_and_look();
}

Test(promote, moves_as_much_as_there_is_room_for) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take(MOST * MIB, 1);
    ductile_addr b = take(100 * MIB, 0);
    fill(b, 9, 100 * MIB, 0);
    assert_spilled(100);
    give(a);
    a = take(174 * MIB, 1);
    ductile_sleep_report report = promote(); /* handles of 32 MiB */
    assert_u64(report.bytes / MIB, 32);
    assert_u64(report.stayed_bytes / MIB, 68);
    assert_holds(b, 100, 9);
    assert_u64(promote().bytes, 0);
    assert_holds(b, 100, 9);
    give(a);
    assert_u64(promote().bytes / MIB, 68);
    assert_holds(b, 100, 9);
    give(b);
    close_and_look();
}

Test(promote, uses_free_memory_of_the_same_pool) {
    open_spilling("spill_bytes:1G");
    ductile_addr small = take(MIB, 0);
    ductile_addr a = take(180 * MIB, 0);
    ductile_addr b = take(100 * MIB, 0);
    fill(b, 3, 100 * MIB, 0);
    give(a);
    cr_assert_gt(now().spilled_bytes, 0);
    assert_u64(promote().stayed_bytes, 0);
    assert_holds(b, 100, 3);
    give(small);
    give(b);
    close_and_look();
}

Test(promote, takes_free_memory_that_is_held_beyond_what_may_spill) {
    open_spilling("spill_bytes:1G");
    ductile_addr a = take((ROOM - 4) * MIB, 1);
    ductile_addr b = take(30 * MIB, 0);
    fill(b, 4, 30 * MIB, 0);
    assert_spilled(30);
    give(a);
    assert_u64(promote().stayed_bytes, 0);
    assert_holds(b, 30, 4);
    give(b);
    close_and_look();
}

Test(promote, goes_on_where_the_device_refuses) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 5);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    ductile_virtual_fault none = {
        .struct_size = sizeof none, .call = "phys_create", .nth = 2, .code = 2, .persistent = 1};
    uint64_t held = reserved();
    assert_ok(ductile_virtual_inject(f.gpu, &none));
    ductile_sleep_report report = promote();
    assert_u64(reserved(), held); /* the first has gone back */
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_u64(report.bytes, 0);
    assert_holds(b, 100, 5);
    assert_u64(promote().bytes / MIB, 76);
    assert_holds(b, 100, 5);
    give(b);
    close_and_look();
}

Test(promote, its_blocks_sleep_and_wake_as_others) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    assert_u64(promote().bytes / MIB, 76);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_KEEP));
    assert_sound();
    assert_u64(reserved(), 0);
    assert_ok(ductile_wake(f.allocator, whole));
    assert_sound();
    assert_holds(b, 100, 7);
    give(b);
    close_and_look();
}

Test(promote, its_blocks_can_be_pinned) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    assert_status(ductile_pin(f.allocator, b), DUCTILE_ERR_UNSUPPORTED);
    assert_u64(promote().stayed_bytes, 0);
    assert_ok(ductile_pin(f.allocator, b));
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, b));
    give(b);
    close_and_look();
}

Test(promote, passes_over_pools_that_sleep) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_KEEP));
    ductile_sleep_report report = promote();
    assert_u64(report.bytes, 0);
    assert_u64(report.stayed_bytes / MIB, 76);
    assert_ok(ductile_wake(f.allocator, whole));
    assert_u64(promote().stayed_bytes, 0);
    assert_holds(b, 100, 7);
    give(b);
    close_and_look();
}

/* ---- Statistics ----------------------------------------------------------------------------- */

Test(promote, what_was_freed_and_is_still_mapped_does_not_count_as_in_use) {
    const fixture_setup setup = {
        .conf = "spill_bytes:1G", .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY};
    open_fixture(&setup);
    ductile_addr a = take(MOST * MIB, 1);
    ductile_addr b = take(100 * MIB, 0);
    ductile_addr c = take(50 * MIB, 0);
    fill(b, 1, 100 * MIB, 0);
    assert_u64(now().spilled_live_bytes / MIB, 150);
    give(b);
    assert_spilled(150);
    assert_u64(now().spilled_live_bytes / MIB, 50);
    give(c);
    assert_u64(now().spilled_live_bytes, 0);
    give(a);
    close_and_look();
}

Test(promote, what_was_freed_asleep_does_not_count_as_in_use) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    assert_ok(ductile_sleep(f.allocator, whole, DUCTILE_CONTENTS_KEEP));
    assert_u64(now().spilled_live_bytes / MIB, 76);
    give(b);
    assert_u64(now().spilled_live_bytes, 0);
    assert_ok(ductile_wake(f.allocator, whole));
    assert_u64(now().spilled_live_bytes, 0);
    close_and_look();
}

/* ---- Failures ------------------------------------------------------------------------------- */

/* The call of that name fails, once or permanently, from the nth on. */
static void plan(const char *call, uint64_t nth, bool stays) {
    const ductile_virtual_fault it = {
        .struct_size = sizeof it, .call = call, .nth = nth, .code = 999, .persistent = stays};
    assert_ok(ductile_virtual_inject(f.gpu, nth > 0 ? &it : NULL));
}

static bool is_asleep(void) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_list_pools(f.allocator, &whole, &info, 1, NULL));
    return info.state == DUCTILE_POOL_ASLEEP;
}

/* Returns whether the pool slept on. */
static bool fails_and_recovers(const char *call, uint64_t nth, bool stays) {
    open_spilling("spill_bytes:1G");
    ductile_addr b = take_spilled(24, 100, 7);
    ductile_sleep_report report = {.struct_size = sizeof report};
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    plan(call, nth, stays);
    ductile_status status = ductile_promote(f.allocator, &report);
    plan(call, 0, false);
    assert_sound();
    bool slept = is_asleep();
    cr_assert(!slept || status != DUCTILE_OK);
    cr_assert(status == DUCTILE_OK || report.message[0] != '\0');
    cr_assert_eq(strncmp(report.message, "a pool sleeps", 13) == 0, slept, "%s", report.message);
    if (slept) {
        assert_ok(ductile_wake(f.allocator, whole));
        assert_sound();
    }
    assert_holds(b, 100, 7);
    assert_u64(promote().stayed_bytes, 0);
    assert_holds(b, 100, 7);
    give(b);
    bool has_lost = now().quarantined_bytes > 0;
    assert_sound();
    if (has_lost) {
        cr_assert(stays);
    } else {
        close_audited();
    }
    return slept;
}

Test(promote, a_map_that_fails_brings_the_old_memory_back) {
    cr_assert_not(fails_and_recovers("map", 1, false));
}
Test(promote, a_grant_that_fails_brings_the_old_memory_back) {
    cr_assert_not(fails_and_recovers("set_access", 1, false));
}
Test(promote, an_unmap_that_fails_brings_the_old_memory_back) {
    cr_assert_not(fails_and_recovers("unmap", 2, false));
}
Test(promote, a_copy_that_fails_changes_nothing) {
    cr_assert_not(fails_and_recovers("download", 1, false));
}
Test(promote, where_the_old_memory_does_not_come_back_the_pool_sleeps_with_what_it_holds) {
    cr_assert(fails_and_recovers("map", 1, true));
}
Test(promote, where_no_access_is_given_any_more_the_pool_sleeps_with_what_it_holds) {
    cr_assert(fails_and_recovers("set_access", 1, true));
}
Test(promote, where_the_end_of_the_copy_back_is_not_seen_the_pool_sleeps_with_what_it_holds) {
    cr_assert(fails_and_recovers("stream_sync", 2, true));
}
Test(promote, where_a_copy_back_fails_the_pool_sleeps_with_what_it_holds) {
    cr_assert(fails_and_recovers("upload", 1, false));
}
