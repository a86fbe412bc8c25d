/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: under find:overruns the byte behind a block, rounded up to 512, is never mapped, from
 * the block's first moment to its last, and what was freed is unmapped once the GPU is done with
 * it. So a kernel that writes too far, or too late, ends the device at once. How such memory serves
 * again is in tests/scenarios/dedicated.txt. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

static void open_guarded(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB, .n_streams = 2, .conf = conf});
}

static uint64_t poisoned(void) {
    return (uint64_t)fixture_state(&f).poisoned;
}

/* The work runs at once, and the call says what became of it. */
static void launch_lost(ductile_addr addr, uint64_t size) {
    const ductile_virtual_use use = {.address = addr, .size = size, .writes = 1};
    assert_status(ductile_virtual_launch(f.gpu, f.streams[0], &use, 1), DUCTILE_ERR_DEVICE_LOST);
}

/* The device is gone, and with it what is on it. */
static void abandon(void) {
    assert_status(ductile_destroy(f.allocator), DUCTILE_ERR_DEVICE_LOST);
    f.allocator = NULL;
    fixture_abandon(&f);
}

static const dseg_segment *segment_of(ductile_addr addr) {
    return dpool_map_find(&f.allocator->map, addr)->region->seg;
}

Test(guard, every_block_ends_where_its_granules_do_and_has_a_range_of_its_own) {
    static const uint64_t sizes[] = {1,           511,     512,         513,     5000,
                                     2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 7 * MIB + 777};
    open_guarded("find:overruns");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ductile_addr addr = take(sizes[i], i % 2);
        const dseg_segment *seg = segment_of(addr);
        uint64_t rounded = (sizes[i] + 511) / 512 * 512;
        assert_u64(addr % 512, 0);
        assert_u64(addr + rounded, seg->range.addr + seg->range.size);
        assert_u64(seg->range.guard, FIXTURE_GRANULE);
        cr_assert(seg->range.size - rounded < FIXTURE_GRANULE);
    }
    assert_u64(fixture_stats(f.allocator).segments, sizeof sizes / sizeof *sizes);
    assert_sound();
    close_audited();
}

Test(guard, a_kernel_that_writes_behind_a_block_ends_the_device) {
    open_guarded("find:overruns");
    ductile_addr addr = take(3 * MIB + 512, 0);
    (void)take(3 * MIB, 0);
    launch(addr, 3 * MIB + 512, 0);
    assert_u64(poisoned(), 0);
    launch_lost(addr, 3 * MIB + 513);
    assert_u64(poisoned(), 700);
    abandon();
}

/* The negative control. */
Test(guard, without_it_such_a_kernel_is_not_noticed) {
    open_guarded("");
    ductile_addr addr = take(1 * MIB, 0);
    (void)take(1 * MIB, 0);
    launch(addr, 1 * MIB + 513, 0);
    assert_u64(poisoned(), 0);
    fixture_abandon(&f);
}

/* Unless a later block has the addresses by then. */
Test(guard, a_kernel_that_uses_a_block_after_its_free_ends_the_device) {
    open_guarded("find:overruns");
    (void)take(5 * MIB, 0);
    ductile_addr addr = take(1 * MIB, 0);
    launch(addr, 1 * MIB, 0);
    give(addr);
    assert_ok(ductile_trim(f.allocator, NULL, 0,
                           NULL)); /* as a later slow call would, once it is proven */
    launch_lost(addr, 1 * MIB);
    assert_u64(poisoned(), 700);
    abandon();
}

/* It is free, in a granule that a block in use is in: no request can have it. */
Test(guard, an_oom_report_counts_the_lead_as_pinned_beside_what_is_free) {
    open_guarded("find:overruns");
    ductile_addr in_use = take(1024, 0);
    ductile_addr whole = take(2 * FIXTURE_GRANULE, 0);
    assert_ok(ductile_pin(f.allocator, whole)); /* so that it is still there after the refusal */
    give(whole);
    assert_refused(GIB, 0);
    ductile_oom_report report = {.struct_size = sizeof report};
    assert_ok(ductile_get_oom_report(f.allocator, &report));
    assert_u64(report.free_bytes, 3 * FIXTURE_GRANULE - 1024);
    assert_u64(report.pinned_bytes, FIXTURE_GRANULE - 1024);
    assert_ok(ductile_unpin(f.allocator, whole));
    give(in_use);
    close_audited();
}

Test(guard, a_lead_that_is_not_counted_is_found) {
    open_guarded("find:overruns");
    dpool_arena *arena = dpool_map_find(&f.allocator->map, take(1000, 0))->region->arena;
    assert_u64(arena->n_leads, 1);
    arena->n_leads = 0;
    assert_status(ductile_check(f.allocator, NULL, 0), DUCTILE_ERR_CORRUPT);
    arena->n_leads = 1;
    assert_sound();
    close_audited();
}

Test(guard, a_dedicated_block_has_one_too) {
    open_guarded("find:overruns");
    ductile_addr addr = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 3 * MIB, f.streams[0], &addr));
    const dseg_segment *seg = segment_of(addr);
    assert_u64(addr + 3 * MIB, seg->range.addr + seg->range.size);
    assert_u64(dseg_handle_at(seg, 0, NULL)->n_granules, 2);
    give(addr);
    close_audited();
}
