/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With handles of several sizes, free memory that fits no gap as it is serves all the same: where
 * the GPU is known to be done with it, it goes back to the driver and comes again in the size that
 * is wanted, within what was held before. Where the GPU is not, nothing is unmapped.
 */
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

#define N_PAIRS 8

static ductile_addr large[N_PAIRS], small[N_PAIRS];

/* Blocks of one handle of 16 MiB each, between blocks of one granule that stay. */
static void open_with_pairs(const fixture_setup *setup) {
    assert_fine(fixture_open(&f, setup));
    for (size_t i = 0; i < N_PAIRS; i++) {
        large[i] = take(16 * MIB, 0);
        small[i] = take(FIXTURE_GRANULE, 0);
    }
    assert_u64(count("phys_create"), 2 * N_PAIRS);
}

Test(large_handles, that_fit_no_gap_are_made_anew_within_the_same_memory) {
    open_with_pairs(&(fixture_setup){.conf = "sizes:16M"});
    uint64_t before = reserved();
    for (size_t i = 0; i < 2; i++) {
        give(large[i]);
    }
    (void)take(30 * MIB, 0); /* neither of the two holds it, nor do handles of 16 MiB make it up */
    cr_assert_leq(reserved(), before, "%llu bytes more", (unsigned long long)(reserved() - before));
    close_audited();
}

Test(large_handles, at_the_limit_serve_a_request_of_any_size) {
    open_with_pairs(&(fixture_setup){.capacity_bytes = 144 * MIB, .conf = "sizes:16M"});
    for (size_t i = 0; i < N_PAIRS; i++) {
        give(large[i]);
    }
    (void)take(9 * FIXTURE_GRANULE, 0);
    (void)take(27 * FIXTURE_GRANULE, 0);
    (void)take(27 * FIXTURE_GRANULE + 512, 0);
    assert_u64(count("stream_sync") + count("event_sync") + count("context_sync"), 0);
    close_audited();
}

Test(large_handles, at_which_the_gpu_works_stay_mapped) {
    open_with_pairs(&(fixture_setup){
        .capacity_bytes = GIB, .schedule = DUCTILE_SCHEDULE_LAZY, .conf = "sizes:16M"});
    for (size_t i = 0; i < 2; i++) {
        launch(large[i], 16 * MIB, 0);
        give(large[i]);
    }
    uint64_t unmaps = count("unmap");
    ductile_addr block = take(30 * MIB, 0);
    launch(block, 30 * MIB, 0);
    assert_u64(count("unmap"), unmaps);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    give(block);
    close_audited();
}

/* Each map costs as much as that of a large handle. */
Test(large_handles, replace_many_small_ones) {
    assert_fine(fixture_open(&f, &(fixture_setup){.conf = "sizes:16M"}));
    ductile_addr blocks[16];
    for (size_t i = 0; i < 16; i++) {
        blocks[i] = take(FIXTURE_GRANULE, 0);
    }
    for (size_t i = 0; i < 16; i += 2) {
        give(blocks[i]);
    }
    uint64_t before = reserved();
    uint64_t maps = count("map");
    (void)take(16 * MIB, 0);
    assert_u64(count("map") - maps, 1);
    cr_assert_leq(reserved(), before);
    close_audited();
}

/* What is on its way through the cache is not lost when nothing can be created in its place. */
Test(large_handles, that_cannot_be_made_anew_leave_a_heap_that_works) {
    open_with_pairs(&(fixture_setup){.capacity_bytes = 144 * MIB, .conf = "sizes:16M"});
    for (size_t i = 0; i < 4; i++) {
        give(large[i]);
    }
    assert_fine(fixture_fail_for_good(&f, "phys_create", DVMM_OUT_OF_MEMORY));
    ductile_addr refused = 1;
    cr_assert_eq(ductile_alloc(f.allocator, 30 * MIB, f.streams[0], &refused),
                 DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(refused, 0);
    assert_fine(audit_fixture(&f, NULL));
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    (void)take(30 * MIB, 0);
    close_audited();
}

static uint64_t held_after_a_misfit(ductile_schedule schedule) {
    open_with_pairs(&(fixture_setup){
        .capacity_bytes = GIB, .schedule = schedule, .conf = "sizes:16M,record_stream:wait"});
    for (size_t i = 0; i < 2; i++) {
        launch(large[i], 16 * MIB, 0);
        give(large[i]);
    }
    (void)take(30 * MIB, 0);
    uint64_t bytes = reserved();
    close_audited();
    return bytes;
}

/* The promise of record_stream:wait. */
Test(large_handles, with_record_stream_wait_memory_held_does_not_depend_on_the_gpu) {
    assert_u64(held_after_a_misfit(DUCTILE_SCHEDULE_EAGER),
               held_after_a_misfit(DUCTILE_SCHEDULE_LAZY));
}

/* An option says what requests get, not a call. */
Test(large_handles, of_one_call_do_not_make_others_be_exchanged) {
    assert_fine(fixture_open(&f, &(fixture_setup){.n_streams = 1}));
    ductile_addr block = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 16 * MIB, f.streams[0], &block));
    for (size_t i = 0; i < N_PAIRS; i++) {
        large[i] = take(FIXTURE_GRANULE, 0);
        small[i] = take(FIXTURE_GRANULE, 0);
    }
    for (size_t i = 0; i < N_PAIRS; i++) {
        give(large[i]);
    }
    uint64_t unmaps = count("unmap");
    uint64_t releases = count("phys_release");
    (void)take(4 * FIXTURE_GRANULE, 0);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 4); /* moved, and not exchanged */
    assert_u64(count("unmap"), unmaps);
    assert_u64(count("phys_release"), releases);
    close_audited();
}
