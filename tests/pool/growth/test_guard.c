/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: under find:overruns the byte behind a block, rounded up to 512, is one that nobody
 * maps, from the block's first moment to its last, and what was freed is unmapped once the GPU is
 * done with it. So a kernel that writes too far, or too late, ends the device at once. */
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
    assert_ok(ductile_empty_cache(f.allocator)); /* as a later slow call would, once it is proven */
    launch_lost(addr, 1 * MIB);
    assert_u64(poisoned(), 700);
    abandon();
}

Test(guard, freed_memory_serves_again_from_the_cache) {
    open_guarded("find:overruns");
    for (int i = 0; i < 100; i++) {
        ductile_addr addr = take(5 * MIB - 100, 0);
        launch(addr, 5 * MIB - 100, 0);
        give(addr);
    }
    cr_assert(count("phys_create") <= 3, "%llu handles", (unsigned long long)count("phys_create"));
    assert_sound();
    close_audited();
}

/* The device holds 32 granules. */
Test(guard, memory_of_all_sizes_is_given_up_before_a_request_is_refused) {
    open_guarded("find:overruns");
    for (uint64_t n = 1; n <= 32; n++) {
        give(take_granules(n, n % 2));
    }
    ductile_addr all = take_granules(31, 0);
    (void)take(1, 1);
    assert_refused(1, 0);
    ductile_oom_report r = {.struct_size = sizeof r};
    assert_ok(ductile_get_oom_report(f.allocator, &r));
    assert_u64(r.pinned_bytes, FIXTURE_GRANULE - 512);
    give(all);
    (void)take(1, 0);
    assert_sound();
    close_audited();
}

Test(guard, the_lead_counts_as_free_memory) {
    open_guarded("find:overruns");
    ductile_addr addr = take(1000, 0);
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.allocated_bytes, 1024);
    assert_u64(s.free_bytes, FIXTURE_GRANULE - 1024);
    assert_u64(s.free_blocks, 1);
    assert_u64(s.address_bytes, 2 * FIXTURE_GRANULE);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(f.allocator, addr, &info));
    assert_u64(info.free_before_bytes, FIXTURE_GRANULE - 1024);
    assert_u64(info.free_after_bytes, 0);
    give(addr);
    assert_u64(fixture_stats(f.allocator).free_blocks, 1);
    assert_sound();
    close_audited();
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

Test(guard, pointers_beside_a_block_are_refused_by_their_kind) {
    open_guarded("find:overruns");
    ductile_addr addr = take(1000, 0);
    assert_status(ductile_free(f.allocator, addr - 512), DUCTILE_ERR_NOT_LIVE);
    assert_status(ductile_free(f.allocator, addr + 512), DUCTILE_ERR_INTERIOR_POINTER);
    assert_status(ductile_free(f.allocator, addr + 1024), DUCTILE_ERR_FOREIGN_POINTER);
    give(addr);
    assert_status(ductile_free(f.allocator, addr), DUCTILE_ERR_NOT_LIVE);
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

Test(guard, a_block_used_on_another_stream_is_pending_and_its_lead_stays) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .n_streams = 2,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .conf = "find:overruns"});
    ductile_addr addr = take(1000, 0);
    assert_ok(ductile_record_stream(f.allocator, addr, f.streams[1]));
    launch(addr, 1000, 1);
    give(addr);
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.pending_bytes, 1024);
    assert_u64(s.free_bytes, FIXTURE_GRANULE - 1024);
    assert_sound();
    assert_fine(fixture_finish_work(&f));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
    close_audited();
}

Test(guard, a_paused_pool_comes_back_with_its_contents) {
    const ductile_pool_id pool = {1, 2};
    open_guarded("find:overruns");
    begin_plain_pool(pool);
    ductile_addr kept = take(3 * MIB + 700, 0);
    ductile_addr gone = take(5000, 0);
    assert_ok(ductile_pool_end(f.allocator, pool));
    fill(kept, 0x5A, 3 * MIB + 700, 0);
    assert_ok(ductile_pause(f.allocator, pool, DUCTILE_CONTENTS_KEEP));
    assert_u64(reserved(), 0);
    assert_sound();
    give(gone);
    assert_sound();
    assert_ok(ductile_resume(f.allocator, pool));
    assert_u64(byte_at(kept + 3 * MIB + 699, 0), 0x5A);
    assert_sound();
    give(kept);
    release_plain_pool(pool);
    close_audited();
}

Test(guard, a_refused_call_leaves_no_lead) {
    open_guarded("find:overruns");
    for (uint64_t nth = 1; nth <= 2; nth++) {
        const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                             .call = nth == 1 ? "map" : "set_access",
                                             .nth = 1,
                                             .code = 1};
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        ductile_addr none = 1;
        assert_status(ductile_alloc(f.allocator, 1000, f.streams[0], &none), DUCTILE_ERR_DRIVER);
        assert_u64(none, 0);
        assert_sound();
        assert_u64(fixture_stats(f.allocator).segments, 0);
    }
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    (void)take(1000, 0);
    close_audited();
}
