/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: under find:stale_writes a byte that is written after the free is found when the memory
 * is handed out again, wherever it lies and whoever wrote it; and what is legal is never reported:
 * work before the free, recorded streams, graphs, pins, pauses, memory that moves. */
#include "pool/streams/fill.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/fill_map.h"
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

#include <stdio.h>
#include <string.h>

/* ---- What the allocator says ---------------------------------------------------------------- */

static char said[512];
static uint64_t n_said;

static void listen(void *user, ductile_log_level level, const char *text) {
    (void)user;
    if (level != DUCTILE_LOG_INFO) {
        n_said++;
        (void)snprintf(said, sizeof said, "%s", text);
    }
}

static void open_with(const char *conf, ductile_schedule schedule) {
    n_said = 0;
    said[0] = '\0';
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .n_streams = 3,
                                  .schedule = schedule,
                                  .conf = conf,
                                  .log = listen});
}

static void open_filling(const char *more) {
    char conf[128];
    (void)snprintf(conf, sizeof conf, "find:stale_writes%s%s", more[0] != '\0' ? "," : "", more);
    open_with(conf, DUCTILE_SCHEDULE_EAGER);
}

static uint64_t mismatches(void) {
    return fixture_stats(f.allocator).fill_mismatches;
}

static uint64_t filled(void) {
    return fixture_stats(f.allocator).fill_total_bytes;
}

static uint64_t checked(void) {
    return fixture_stats(f.allocator).fill_checked_total_bytes;
}

/* A write that the program must not make. */
static void spoil(ductile_addr addr) {
    fill(addr, 0x11, 1, 0);
}

/* ---- What is found -------------------------------------------------------------------------- */

Test(fill, a_write_after_the_free_is_told_with_its_place_and_bytes) {
    open_filling("");
    ductile_addr addr = take(1 * MIB, 0);
    (void)take(512, 0); /* so that the neighbour is no part of it */
    give(addr);
    fill(addr + 5000, 0xAB, 3, 0);
    ductile_addr again = take(1 * MIB, 0);
    assert_u64(again, addr);
    assert_u64(mismatches(), 1);
    assert_u64(n_said, 1);
    char place[64];
    (void)snprintf(place, sizeof place, "3 bytes, the first at 0x%llx", addr + 5000);
    cr_assert_not_null(strstr(said, place), "%s", said);
    cr_assert_not_null(strstr(said, "is byte 5000 of the block of 1048576 bytes"), "%s", said);
    cr_assert_not_null(strstr(said, "from there: ab ab ab df df"), "%s", said);
    close_audited();
}

/* The negative controls. */
Test(fill, without_the_option_it_is_not_noticed_and_nothing_is_filled) {
    open_with("", DUCTILE_SCHEDULE_EAGER);
    ductile_addr addr = take(1 * MIB, 0);
    give(addr);
    spoil(addr);
    (void)take(1 * MIB, 0);
    assert_u64(n_said + mismatches() + filled() + count("fill"), 0);
    close_audited();
}

Test(fill, the_first_and_the_last_byte_are_checked_and_their_neighbours_are_not) {
    for (uint64_t i = 0; i < 4; i++) {
        open_filling("");
        ductile_addr low = take(1 * MIB, 0);
        ductile_addr addr = take(3 * MIB + 512, 0);
        ductile_addr high = take(1 * MIB, 0);
        assert_u64(addr, low + 1 * MIB);
        assert_u64(high, addr + 3 * MIB + 512);
        give(addr);
        spoil(i == 0   ? addr - 1
              : i == 1 ? addr
              : i == 2 ? addr + 3 * MIB + 511
                       : addr + 3 * MIB + 512);
        assert_u64(take(3 * MIB + 512, 0), addr);
        assert_u64(mismatches(), i == 1 || i == 2);
        close_audited();
    }
}

Test(fill, a_block_of_many_buffers_is_checked_to_its_end) {
    open_filling("");
    ductile_addr addr = take(40 * MIB, 0);
    give(addr);
    spoil(addr + 40 * MIB - 1);
    assert_u64(take(40 * MIB, 0), addr);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 40 * MIB);
    close_audited();
}

/* Two blocks were freed and are one now; the request takes the end of one and the start of the
 * other. */
Test(fill, what_was_freed_apart_is_checked_together) {
    open_filling("");
    ductile_addr a = take(1 * MIB, 0);
    ductile_addr b = take(1 * MIB, 0);
    ductile_addr end = take(2 * MIB, 0);
    assert_u64(b, a + 1 * MIB);
    give(b);
    give(a);
    ductile_addr first = take(512 * 1024, 0);
    assert_u64(first, a);
    spoil(b + 100);
    (void)take(3 * MIB / 2, 0);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 2 * MIB);
    (void)end;
    close_audited();
}

/* Memory that is free and not asked for keeps its pattern, and is checked once. */
Test(fill, each_allocation_is_told_of_its_own_memory_alone) {
    open_filling("");
    ductile_addr addr = take(2 * MIB, 0);
    give(addr);
    spoil(addr + 1 * MIB);
    assert_u64(take(1 * MIB, 0), addr);
    assert_u64(mismatches(), 0);
    assert_u64(take(1 * MIB, 0), addr + 1 * MIB);
    assert_u64(mismatches(), 1);
    close_audited();
}

Test(fill, a_request_that_grows_beside_free_memory_checks_that_part) {
    open_filling("sizes:tight");
    ductile_addr addr = take(2 * MIB, 0);
    give(addr);
    spoil(addr);
    ductile_addr large = take(6 * MIB, 0);
    assert_u64(large, addr);
    assert_u64(mismatches(), 1);
    assert_u64(checked(), 2 * MIB);
    close_audited();
}

/* ---- What is legal -------------------------------------------------------------------------- */

/* Of stream 0, and freed while stream 1 still writes to it. */
static ductile_addr give_at_work(uint64_t size) {
    ductile_addr addr = take(size, 0);
    assert_ok(ductile_record_stream(f.allocator, addr, f.streams[1]));
    fill(addr, 0x77, size, 1);
    give(addr);
    return addr;
}

Test(fill, work_of_the_stream_from_before_the_free_is_not_reported) {
    open_with("find:stale_writes", DUCTILE_SCHEDULE_LAZY);
    for (int i = 0; i < 20; i++) {
        ductile_addr addr = take(1 * MIB, 0);
        fill(addr, (uint8_t)i, 1 * MIB, 0);
        give(addr);
    }
    assert_u64(mismatches(), 0);
    assert_u64(filled(), 20 * MIB);
    assert_u64(checked(), 19 * MIB);
    close_audited();
}

Test(fill, a_recorded_stream_is_waited_for_before_the_fill) {
    open_with("find:stale_writes,sizes:tight", DUCTILE_SCHEDULE_LAZY);
    ductile_addr addr = give_at_work(1 * MIB);
    assert_u64(filled(), 0);
    assert_sound();
    assert_fine(fixture_finish_work(&f));
    (void)take(6 * MIB, 1); /* polls */
    assert_u64(filled(), 1 * MIB);
    assert_u64(take(1 * MIB, 0), addr);
    assert_u64(mismatches(), 0);
    close_audited();
}

/* With record_stream:wait the memory would be free while the other stream still writes. */
Test(fill, a_wait_on_the_gpu_gives_way_to_the_fill) {
    open_with("find:stale_writes,record_stream:wait", DUCTILE_SCHEDULE_LAZY);
    (void)give_at_work(1 * MIB);
    assert_u64(fixture_stats(f.allocator).pending_bytes, 1 * MIB);
    assert_fine(fixture_finish_work(&f));
    (void)take(5 * MIB, 0);
    (void)take(1 * MIB, 0);
    assert_u64(mismatches(), 0);
    close_audited();
}

/* The fill is work too: what is proven of the memory is proven behind it. */
Test(fill, memory_moves_to_another_stream_only_behind_its_fill) {
    open_with("find:stale_writes,captures:announced,sizes:tight", DUCTILE_SCHEDULE_LAZY);
    ductile_addr addr = take(24 * MIB, 0);
    fill(addr, 0x77, 24 * MIB, 0);
    give(addr);
    assert_fine(fixture_finish_work(&f));
    ductile_addr other = take(50 * MIB, 1);
    fill(other, 0x22, 50 * MIB, 1);
    assert_fine(fixture_sync_all(&f));
    assert_u64(byte_at(other + 30 * MIB, 1), 0x22);
    assert_u64(mismatches(), 0);
    close_audited();
}

/* The mark that proves the free was recorded before the fill was issued: it proves nothing of it.
 */
Test(fill, a_fill_that_comes_long_after_the_free_is_waited_for_too) {
    open_with("find:stale_writes,captures:announced,sizes:tight", DUCTILE_SCHEDULE_LAZY);
    ductile_addr addr = take(40 * MIB, 0);
    assert_ok(ductile_record_stream(f.allocator, addr, f.streams[1]));
    launch(addr, 40 * MIB, 1);
    give(addr);
    (void)take(512, 2); /* records the mark */
    assert_fine(fixture_finish_work(&f));
    ductile_addr other = take(50 * MIB, 1);
    fill(other, 0x22, 50 * MIB, 1);
    assert_fine(fixture_sync_all(&f));
    for (uint64_t at = 0; at < 50 * MIB; at += 1 * MIB) {
        assert_u64(byte_at(other + at, 1), 0x22);
    }
    assert_u64(filled(), 40 * MIB);
    close_audited();
}

/* The new owner writes; its old address may be free again by then. */
Test(fill, memory_that_moved_is_not_checked) {
    open_filling("sizes:tight");
    ductile_addr holes[8];
    for (int i = 0; i < 8; i++) {
        holes[i] = take(3 * MIB, 0);
        (void)take(1 * MIB, 0);
    }
    for (int i = 0; i < 8; i++) {
        give(holes[i]);
    }
    ductile_addr large = take(12 * MIB, 0); /* takes granules out of the holes */
    cr_assert(fixture_stats(f.allocator).recycled_handles > 0);
    fill(large, 0x44, 12 * MIB, 0);
    for (int i = 0; i < 8; i++) {
        (void)take(3 * MIB, 0);
    }
    assert_u64(mismatches(), 0);
    assert_sound();
    close_audited();
}

Test(fill, memory_that_came_back_from_the_driver_is_not_checked) {
    open_filling("");
    ductile_addr addr = take(4 * MIB, 0);
    give(addr);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_sound();
    assert_u64(take(4 * MIB, 0), addr);
    assert_u64(mismatches() + checked(), 0);
    close_audited();
}

Test(fill, a_graphs_memory_is_neither_filled_nor_checked) {
    const ductile_pool_id pool = {1, 0};
    open_filling("captures:pools");
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    assert_ok(ductile_virtual_capture_begin(f.gpu, f.streams[0], DUCTILE_CAPTURE_GLOBAL));
    ductile_addr addr = take(1 * MIB, 0);
    launch(addr, 1 * MIB, 0);
    give(addr);
    ductile_virtual_graph *made = NULL;
    assert_ok(ductile_virtual_capture_end(f.gpu, f.streams[0], &made));
    assert_ok(ductile_pool_end(f.allocator, pool));
    assert_ok(ductile_virtual_graph_launch(made, f.streams[0]));
    assert_u64(filled() + count("fill"), 0);
    ductile_virtual_graph_destroy(made);
    assert_ok(ductile_pool_release(f.allocator, pool));
    close_audited();
}

/* A stream that is being captured takes no fill: it would become a part of the graph. */
Test(fill, during_a_capture_nothing_is_filled_on_that_stream) {
    open_filling("captures:unannounced");
    ductile_addr addr = take(1 * MIB, 0);
    ductile_addr other = take(1 * MIB, 1);
    assert_ok(ductile_virtual_capture_begin(f.gpu, f.streams[0], DUCTILE_CAPTURE_GLOBAL));
    give(addr);
    assert_u64(filled(), 0);
    give(other);
    assert_u64(filled(), 1 * MIB);
    ductile_addr again = take(1 * MIB, 1);
    assert_u64(again, other);
    assert_u64(checked(), 1 * MIB);
    ductile_virtual_graph *made = NULL;
    assert_ok(ductile_virtual_capture_end(f.gpu, f.streams[0], &made));
    ductile_virtual_graph_destroy(made);
    assert_u64(take(1 * MIB, 0), addr);
    assert_u64(mismatches(), 0);
    close_audited();
}

Test(fill, pinned_memory_is_not_filled) {
    open_filling("");
    ductile_addr addr = take(4 * MIB, 0);
    assert_ok(ductile_pin(f.allocator, addr));
    give(addr);
    assert_u64(filled(), 0);
    spoil(addr); /* a library that has it registered */
    assert_ok(ductile_unpin(f.allocator, addr));
    assert_u64(take(4 * MIB, 0), addr);
    assert_u64(mismatches(), 0);
    close_audited();
}

Test(fill, a_stream_that_is_gone_is_not_named) {
    open_filling("");
    ductile_addr addr = take(1 * MIB, 2);
    assert_ok(ductile_stream_done(f.allocator, f.streams[2]));
    give(addr);
    assert_u64(filled(), 0);
    assert_sound();
    close_audited();
}

Test(fill, what_is_free_in_a_paused_pool_is_not_checked_after_it) {
    const ductile_pool_id pool = {0, 7};
    open_filling("captures:announced"); /* an open pool announces none */
    begin_plain_pool(pool);
    ductile_addr kept = take(1 * MIB, 0);
    ductile_addr gone = take(1 * MIB / 2, 0);
    ductile_addr later = take(1 * MIB / 4, 0);
    give(gone);
    assert_u64(filled(), 1 * MIB / 2);
    assert_ok(ductile_pause(f.allocator, pool, DUCTILE_CONTENTS_KEEP));
    give(later);
    assert_sound();
    assert_ok(ductile_resume(f.allocator, pool));
    assert_u64(take(1 * MIB / 2, 0), gone);
    assert_u64(take(1 * MIB / 4, 0), later);
    assert_u64(mismatches() + checked(), 0);
    assert_sound();
    give(kept);
    assert_ok(ductile_pool_end(f.allocator, pool));
    assert_ok(ductile_pool_release(f.allocator, pool));
    close_audited();
}

Test(fill, dedicated_memory_is_not_filled_as_it_never_serves_again) {
    open_filling("");
    ductile_addr addr = 0;
    assert_ok(ductile_alloc_dedicated(f.allocator, 3 * MIB, f.streams[0], &addr));
    give(addr);
    assert_u64(filled(), 0);
    close_audited();
}

/* ---- Failures ------------------------------------------------------------------------------- */

static void fail(const char *call, uint64_t nth) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
}

Test(fill, a_fill_that_fails_leaves_the_memory_unchecked_and_the_free_done) {
    open_filling("");
    ductile_addr addr = take(1 * MIB, 0);
    fail("fill", 1);
    give(addr);
    assert_u64(filled(), 0);
    spoil(addr);
    assert_u64(take(1 * MIB, 0), addr);
    assert_u64(mismatches() + checked(), 0);
    assert_u64(fixture_stats(f.allocator).pending_blocks, 0);
    close_audited();
}

Test(fill, a_check_that_fails_hands_the_memory_out_unchecked) {
    static const char *const calls[] = {"host_alloc", "read_back", "capture_status"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        open_filling("");
        ductile_addr addr = take(1 * MIB, 0);
        give(addr);
        fail(calls[i], 1);
        assert_u64(take(1 * MIB, 0), addr);
        assert_u64(mismatches() + checked(), 0);
        give(addr);
        spoil(addr);
        assert_u64(take(1 * MIB, 0), addr);
        assert_u64(mismatches(), 1);
        close_audited();
    }
}

/* ---- The check of the allocator ------------------------------------------------------------- */

static void assert_finds(const char *id) {
    char report[256] = "";
    assert_status(ductile_check(f.allocator, report, sizeof report), DUCTILE_ERR_CORRUPT);
    cr_assert(strncmp(report, id, 2) == 0, "\"%s\" is not about %s", report, id);
}

Test(fill, a_gap_that_is_said_to_hold_the_pattern_is_found) {
    open_filling("sizes:tight");
    ductile_addr gone = take(4 * MIB, 0);
    ductile_addr kept = take(2 * MIB, 0);
    const dpool_region *region = dpool_map_find(&f.allocator->map, kept)->region;
    give(gone);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_sound();
    dpool_fill_set(region, gone + 1 * MIB, gone + 1 * MIB + 512);
    assert_finds("B8");
    dpool_fill_forget(region, gone, kept);
    assert_sound();
    close_audited();
}
