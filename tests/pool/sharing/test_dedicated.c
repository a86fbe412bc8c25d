/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: a dedicated block is one handle in a range of its own from its first moment to its
 * last, and what was freed goes to the handle cache, as one, no earlier than the GPU is done with
 * it. */
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

static const ductile_pool_id POOL = {1, 2};

static void open_small(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 32 * MIB, .n_streams = 2});
}

static void open_lazy(const char *conf) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .n_streams = 2,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .conf = conf});
}

static ductile_addr take_one(uint64_t bytes) {
    ductile_addr addr = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, bytes, f.streams[0], &addr));
    return addr;
}

static void expect_one_handle(ductile_addr addr, uint32_t n_granules) {
    const dpool_block *b = dpool_map_find(&f.allocator->map, addr);
    const dseg_segment *seg = b->region->seg;
    assert_u64(addr, seg->range.addr);
    assert_u64(seg->range.size, n_granules * FIXTURE_GRANULE);
    assert_u64(b->size, seg->range.size);
    assert_u64(dseg_handle_at(seg, 0, NULL)->n_granules, n_granules);
}

static uint64_t cached(void) {
    return fixture_stats(f.allocator).cached_bytes;
}

/* Whatever is proven by now goes: a call that takes the slow path. */
static void take_slow_path(size_t stream) {
    give(take_granules(2, stream));
}

Test(dedicated, it_is_one_handle_in_a_range_of_its_own_whatever_the_size) {
    open_small();
    ductile_addr small = take_one(1000);
    ductile_addr large = take_one(9 * MIB);
    expect_one_handle(small, 1);
    expect_one_handle(large, 5);
    assert_sound();
    close_audited();
}

Test(dedicated, what_was_freed_serves_again_from_the_cache_in_its_size) {
    open_lazy("");
    ductile_addr first = take_one(6 * MIB);
    launch(first, 6 * MIB, 0);
    give(first);
    (void)take_one(2 * MIB); /* records the marker */
    assert_fine(fixture_finish_work(&f));
    uint64_t creates = count("phys_create");
    expect_one_handle(take_one(5 * MIB), 3);
    assert_u64(count("phys_create"), creates);
    assert_sound();
    close_audited();
}

Test(dedicated, its_range_goes_with_its_memory) {
    open_small();
    uint64_t before = fixture_stats(f.allocator).address_bytes;
    give(take_one(6 * MIB));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).address_bytes, before);
    assert_u64(reserved(), 0);
    close_audited();
}

/* Other requests get handles of the size that the options name. */
Test(dedicated, what_was_freed_comes_to_others_as_small_handles) {
    open_small();
    give(take_one(24 * MIB));
    (void)take_granules(15, 1); /* nearly the whole device */
    assert_u64(fixture_stats(f.allocator).handles, 15);
    assert_sound();
    close_audited();
}

/* A limit below what is held lets nothing be created: its handle serves as it is. */
Test(dedicated, its_handle_moves_whole_when_it_serves_others) {
    open_fixture(
        &(fixture_setup){.capacity_bytes = 64 * MIB, .n_streams = 2, .conf = "sizes:tight"});
    ductile_addr one = take_one(6 * MIB);
    (void)take_granules(8, 0);
    give(one);
    assert_ok(set_limit(f.allocator, 20 * MIB));
    ductile_addr next = take_granules(3, 0);
    assert_u64(fixture_stats(f.allocator).handles, 9);
    give(next);
    assert_ok(set_limit(f.allocator, 22 * MIB));
    (void)take_granules(2, 1);
    (void)take_granules(1, 1);
    assert_u64(reserved(), 22 * MIB);
    assert_sound();
    close_audited();
}

Test(dedicated, above_a_soft_limit_what_was_freed_comes_to_others_as_small_handles) {
    open_fixture(
        &(fixture_setup){.capacity_bytes = 64 * MIB, .n_streams = 2, .conf = "sizes:tight"});
    ductile_addr one = take_one(6 * MIB);
    (void)take_granules(8, 0);
    give(one);
    assert_ok(set_soft_limit(f.allocator, 8 * MIB));
    (void)take_granules(3, 1);
    assert_u64(fixture_stats(f.allocator).handles, 11);
    assert_u64(reserved(), 22 * MIB);
    assert_sound();
    close_audited();
}

/* What is cached above a lowered limit goes, so that one handle can be created within it. */
Test(dedicated, a_lowered_limit_makes_room_for_it_out_of_what_a_stream_has_left) {
    open_fixture(
        &(fixture_setup){.capacity_bytes = 64 * MIB, .n_streams = 2, .conf = "sizes:tight"});
    give(take_granules(10, 1));
    assert_ok(ductile_stream_done(f.allocator, f.streams[1]));
    assert_ok(set_limit(f.allocator, 15 * MIB));
    expect_one_handle(take_one(4 * MIB), 2);
    cr_assert_leq(reserved(), 15 * MIB);
    assert_sound();
    close_audited();
}

/* The device is full of free memory in small handles: they go back, for one large one. */
Test(dedicated, free_memory_makes_room_for_it) {
    open_small();
    ductile_addr blocks[16];
    for (size_t i = 0; i < 16; i++) {
        blocks[i] = take_granules(1, i % 2);
    }
    for (size_t i = 0; i < 16; i++) {
        give(blocks[i]);
    }
    expect_one_handle(take_one(24 * MIB), 12);
    assert_sound();
    ductile_addr refused = 1;
    assert_status(ductile_alloc_dedicated(f.allocator, 12 * MIB, f.streams[1], &refused),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(refused, 0);
    cr_assert_neq(take_granules(4, 1), 0, "a smaller request succeeds");
    close_audited();
}

/* What is given up for it is what the limit lacks, and no more. */
Test(dedicated, no_more_goes_back_for_it_than_it_lacks) {
    open_fixture(&(fixture_setup){.n_streams = 2, .conf = "limit_bytes:32M"});
    (void)take_granules(6, 0);
    give(take_granules(10, 0));
    expect_one_handle(take_one(2 * FIXTURE_GRANULE), 2);
    assert_u64(fixture_stats(f.allocator).free_bytes, 8 * FIXTURE_GRANULE);
    assert_u64(cached(), 0);
    close_audited();
}

Test(dedicated, while_the_gpu_works_on_it_freed_memory_stays_mapped) {
    open_lazy("");
    ductile_addr one = take_one(8 * MIB);
    launch(one, 8 * MIB, 0);
    give(one);
    uint64_t unmaps = count("unmap");
    (void)take_one(2 * MIB); /* records the marker */
    take_slow_path(0);
    assert_u64(count("unmap"), unmaps);
    assert_u64(cached(), 0);
    assert_sound();
    assert_fine(fixture_finish_work(&f));
    (void)take_one(2 * MIB);
    assert_u64(count("unmap"), unmaps + 1);
    assert_sound();
    close_audited();
}

static void expect_a_use_keeps_it(const char *conf) {
    open_lazy(conf);
    ductile_addr one = take_one(8 * MIB);
    assert_ok(ductile_record_stream(f.allocator, one, f.streams[1]));
    launch(one, 8 * MIB, 1);
    give(one);
    uint64_t unmaps = count("unmap");
    (void)take_one(2 * MIB);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    (void)take_one(2 * MIB);
    assert_u64(count("unmap"), unmaps);
    assert_sound();
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(count("unmap"), unmaps + 1);
    close_audited();
}

Test(dedicated, a_recorded_use_keeps_freed_memory) {
    expect_a_use_keeps_it("");
}

Test(dedicated, a_recorded_use_keeps_freed_memory_where_streams_wait_on_the_gpu) {
    expect_a_use_keeps_it("record_stream:wait");
}

Test(dedicated, a_pin_keeps_freed_memory) {
    open_small();
    ductile_addr one = take_one(8 * MIB);
    assert_ok(ductile_pin(f.allocator, one));
    give(one);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 8 * MIB);
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, one));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(reserved(), 0);
    close_audited();
}

/* At the limit, and the GPU still at work: the host waits rather than refuse. */
Test(dedicated, freed_memory_serves_others_before_they_are_refused) {
    static const char *const confs[] = {"", "record_stream:wait"};
    for (size_t i = 0; i < 2; i++) {
        open_lazy(confs[i]);
        ductile_addr one = take_one(60 * MIB);
        launch(one, 60 * MIB, 0);
        give(one);
        cr_assert_neq(take_granules(20, 0), 0, "%s", confs[i]);
        assert_sound();
        close_audited();
    }
}

Test(dedicated, a_limit_holds) {
    open_lazy("limit_bytes:16M");
    (void)take_one(10 * MIB);
    ductile_addr refused = 1;
    assert_status(ductile_alloc_dedicated(f.allocator, 8 * MIB, f.streams[0], &refused),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(refused, 0);
    assert_u64(reserved(), 10 * MIB);
    assert_sound();
    close_audited();
}

Test(dedicated, a_pool_pauses_and_resumes_it_as_one_handle) {
    open_small();
    begin_plain_pool(POOL);
    ductile_addr one = take_one(6 * MIB);
    ductile_addr closed = take_one(4 * MIB);
    assert_ok(ductile_pool_end(f.allocator, POOL));
    fill(one, 7, 6 * MIB, 0);
    give(closed);
    assert_ok(ductile_pause(f.allocator, POOL, DUCTILE_CONTENTS_KEEP));
    assert_u64(reserved(), 0);
    assert_sound();
    assert_ok(ductile_resume(f.allocator, POOL));
    expect_one_handle(one, 3);
    assert_u64(byte_at(one, 0), 7);
    assert_u64(reserved(), 6 * MIB);
    assert_sound();
    close_audited();
}

Test(dedicated, arguments_are_those_of_an_allocation) {
    open_small();
    ductile_addr addr = 1;
    assert_ok(ductile_alloc_dedicated(f.allocator, 0, f.streams[0], &addr));
    cr_assert_eq(addr, 0);
    assert_status(ductile_alloc_dedicated(NULL, 1, f.streams[0], &addr),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_dedicated(f.allocator, 1, f.streams[0], NULL),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_dedicated(f.allocator, SIZE_MAX, f.streams[0], &addr),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    close_audited();
}

/* With a fault at every driver call of it, once done and once not. */
Test(dedicated, each_driver_call_may_fail) {
    open_small();
    static const char *const calls[] = {"phys_create", "map", "set_access", "address_reserve"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        ductile_virtual_fault fault = {
            .struct_size = sizeof fault, .call = calls[i], .nth = 1, .code = 999};
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        uint64_t ranges = fixture_stats(f.allocator).segments;
        ductile_addr addr = 1;
        assert_status(ductile_alloc_dedicated(f.allocator, 5 * MIB, f.streams[0], &addr),
                      DUCTILE_ERR_DRIVER);
        assert_u64(addr, 0);
        assert_u64(fixture_stats(f.allocator).segments, ranges);
        assert_ok(ductile_virtual_inject(f.gpu, NULL));
        assert_sound();
        give(take_one(5 * MIB));
        assert_ok(ductile_empty_cache(f.allocator));
    }
    close_audited();
}

Test(dedicated, its_range_goes_with_a_resume_when_it_was_freed_in_a_pause) {
    const ductile_pool_id id = {5, 5};
    open_small();
    begin_plain_pool(id);
    ductile_addr gone = take_one(4 * MIB);
    ductile_addr kept = take_one(6 * MIB);
    assert_ok(ductile_pool_end(f.allocator, id));
    uint64_t ranges = fixture_stats(f.allocator).segments;
    assert_ok(ductile_pause(f.allocator, id, DUCTILE_CONTENTS_DROP));
    give(gone);
    assert_ok(ductile_resume(f.allocator, id));
    assert_u64(fixture_stats(f.allocator).segments, ranges - 1);
    expect_one_handle(kept, 3);
    give(kept);
    release_plain_pool(id);
    close_audited();
}
