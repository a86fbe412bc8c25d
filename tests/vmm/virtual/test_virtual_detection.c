/* SPDX-License-Identifier: Apache-2.0 */
/* What the virtual GPU calls a misuse of memory, and what not. */
#include "tests/support/detection.h"

#include <string.h>

/* ---- Reuse --------------------------------------------------------------------------------- */

CLAIM(reuse, by_another_stream_without_order_is_seen) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(reuse, by_the_same_stream_is_ordered) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    writes(s1, at, BLOCK);
    saw_nothing();
}

CLAIM(reuse, after_a_wait_on_the_device_is_ordered) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    order(s1, s2);
    writes(s2, at, BLOCK);
    saw_nothing();
}

CLAIM(reuse, order_goes_through_a_third_stream) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    order(s1, s2);
    order(s2, s3);
    hand_over(at, BLOCK);
    writes(s3, at, BLOCK);
    saw_nothing();
}

CLAIM(reuse, a_wait_for_what_came_before_the_work_is_no_order) {
    begin(at, BLOCK);
    order(s1, s2);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

/* The wait is for the recording at the time of the wait, not for later ones. */
CLAIM(reuse, a_later_recording_does_not_move_a_wait) {
    dvmm_event event = rig_event(&r);
    begin(at, BLOCK);
    assert_ok(dvmm_event_record(r.d, event, s1));
    assert_ok(dvmm_stream_wait_event(r.d, s2, event));
    writes(s1, at, BLOCK);
    assert_ok(dvmm_event_record(r.d, event, s1));
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(reuse, after_the_host_waited_is_ordered) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    sync(s1);
    writes(s2, at, BLOCK);
    saw_nothing();
}

CLAIM(reuse, after_the_host_waited_for_an_event_is_ordered) {
    dvmm_event event = rig_event(&r);
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    assert_ok(dvmm_event_record(r.d, event, s1));
    assert_ok(dvmm_event_sync(r.d, event));
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw_nothing();
}

/* A query orders exactly when it says so; that work is done is not enough. */
CLAIM(reuse, only_the_answer_of_a_query_orders) {
    dvmm_event event = rig_event(&r);
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    assert_ok(dvmm_event_record(r.d, event, s1));
    bool is_known = dvmm_event_query(r.d, event) == DUCTILE_OK;
    ductile_virtual_advance(r.gpu, 1000);
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw(DUCTILE_VIOLATION_REUSE, !is_known);
}

CLAIM(reuse, reads_conflict_with_writes_only) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    order(s1, s2);
    order(s1, s3);
    reads(s2, at, BLOCK);
    reads(s3, at, BLOCK);
    saw_nothing();
    hand_over(at, BLOCK);
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE); /* with the read of s3 */
}

CLAIM(reuse, bytes_beside_are_others) {
    begin(at, BLOCK);
    begin(at + BLOCK, BLOCK);
    writes(s1, at, BLOCK);
    writes(s2, at + BLOCK, BLOCK);
    saw_nothing();
}

CLAIM(reuse, one_byte_is_enough) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    end(at);
    begin(at + BLOCK - 1, BLOCK);
    writes(s2, at + BLOCK - 1, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

/* The middle is written again, in order; what is left at both sides is still remembered. */
CLAIM(reuse, what_a_write_leaves_of_an_older_one_is_remembered) {
    begin(at, 3 * BLOCK);
    writes(s1, at, 3 * BLOCK);
    sync(s2);
    order(s1, s2);
    writes(s2, at + BLOCK, BLOCK);
    hand_over(at, 3 * BLOCK);
    order(s2, s3); /* so after both */
    writes(s3, at, 3 * BLOCK);
    saw_nothing();
    writes(s1, at + 2 * BLOCK, 1);
    saw_one(DUCTILE_VIOLATION_RACE);
}

CLAIM(reuse, is_seen_through_another_address_of_the_handle) {
    ductile_addr pair = map_twice();
    begin(pair, BLOCK);
    writes(s1, pair, BLOCK);
    end(pair);
    begin(pair + r.granule, BLOCK);
    writes(s2, pair + r.granule, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(reuse, of_a_block_of_many_handles_is_one_mistake) {
    begin(at, 2 * r.granule);
    writes(s1, at, 2 * r.granule);
    hand_over(at, 2 * r.granule);
    writes(s2, at, 2 * r.granule);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

/* A stream that is gone goes on working; one with its handle is another. */
CLAIM(reuse, a_stream_with_the_handle_of_another_is_another) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    assert_ok(ductile_virtual_stream_destroy(r.gpu, s1));
    ductile_stream again = rig_stream(&r);
    cr_assert_eq(again, s1);
    hand_over(at, BLOCK);
    writes(again, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(reuse, is_reported_with_both_sides) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    reads(s2, at, 512);
    reads(s2, at, 512);
    ductile_virtual_violation v = {.struct_size = sizeof v};
    assert_ok(ductile_virtual_get_violation(r.gpu, 0, &v));
    cr_assert_eq(v.kind, DUCTILE_VIOLATION_REUSE);
    cr_assert(v.first.stream == s1 && v.first.writes && v.first.operation == 1);
    cr_assert(v.first.address == at && v.first.size == BLOCK && v.first.block == 1);
    cr_assert(v.second.stream == s2 && !v.second.writes && v.second.operation == 1);
    cr_assert(v.second.size == 512 && v.second.block == 2 && !v.second.is_host);
    cr_assert_eq(v.first.handle, v.second.handle);
    assert_status(ductile_virtual_get_violation(r.gpu, 2, &v), DUCTILE_ERR_INVALID_ARGUMENT);
}

/* ---- Races --------------------------------------------------------------------------------- */

CLAIM(race, of_one_owner_is_the_programs_own) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_RACE);
}

Test(race, of_one_owner_is_asked_for) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.detect = 1;
    rig_open_detecting(&r, &options);
    at = rig_row(&r, 1);
    begin(at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    saw_nothing();
    rig_abandon(&r);
}

CLAIM(race, without_known_owners_is_seen) {
    writes(s1, at, BLOCK);
    reads(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_RACE);
}

CLAIM(race, the_host_reads_after_one_stream_only) {
    uint8_t byte;
    writes(s1, at, BLOCK);
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, s1));
    saw_nothing();
    writes(s2, at, BLOCK);
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, s1));
    saw_one(DUCTILE_VIOLATION_RACE);
}

/* ---- Unmapping ----------------------------------------------------------------------------- */

CLAIM(early_unmap, under_work_is_seen) {
    writes(s1, at, BLOCK);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, reads_count_too) {
    reads(s1, at, BLOCK);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, a_wait_on_the_device_is_not_enough) {
    writes(s1, at, BLOCK);
    order(s1, s2);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, a_wait_of_the_host_is) {
    writes(s1, at, BLOCK);
    order(s1, s2);
    sync(s2);
    unmap(at);
    saw_nothing();
}

CLAIM(early_unmap, so_is_one_for_the_context) {
    writes(s1, at, BLOCK);
    writes(s2, at + BLOCK, BLOCK);
    assert_ok(dvmm_context_sync(r.d));
    unmap(at);
    saw_nothing();
}

CLAIM(early_unmap, each_stream_counts) {
    writes(s1, at, BLOCK);
    writes(s2, at + BLOCK, BLOCK);
    sync(s1);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, a_wait_that_failed_teaches_nothing) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_sync", .nth = 1, .code = 1, .effect = 1};
    writes(s1, at, BLOCK);
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    assert_status(dvmm_stream_sync(r.d, s1), DUCTILE_ERR_DRIVER);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, the_neighbour_is_not_in_use) {
    writes(s1, at, BLOCK);
    unmap(at + r.granule);
    saw_nothing();
}

CLAIM(early_unmap, work_at_another_address_of_the_handle_does_not_matter) {
    ductile_addr pair = map_twice();
    writes(s1, pair, BLOCK);
    sync(s1);
    writes(s1, pair + r.granule, BLOCK);
    unmap(pair);
    saw_nothing();
    unmap(pair + r.granule);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(early_unmap, taking_access_away_counts) {
    reads(s1, at, BLOCK);
    assert_ok(dvmm_set_access(r.d, at, r.granule, DVMM_ACCESS_NONE));
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

/* The driver waits for all work before it frees. */
CLAIM(early_unmap, cuMemFree_waits_by_itself) {
    ductile_addr address;
    assert_ok(dvmm_mem_alloc(r.d, 2 * r.granule, &address));
    writes(s1, address, BLOCK);
    assert_ok(dvmm_mem_free(r.d, address));
    saw_nothing();
}

CLAIM(live_unmap, under_a_live_block_is_seen) {
    begin(at + r.granule - 512, 1024);
    unmap(at + r.granule);
    saw_one(DUCTILE_VIOLATION_LIVE_UNMAP);
}

CLAIM(live_unmap, after_its_end_is_fine) {
    begin(at + r.granule - 512, 1024);
    end(at + r.granule - 512);
    unmap(at + r.granule);
    saw_nothing();
}

/* ---- Use ----------------------------------------------------------------------------------- */

CLAIM(use_after_free, work_on_a_freed_block_is_seen) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    end(at);
    writes(s1, at, 512);
    saw_one(DUCTILE_VIOLATION_USE_AFTER_FREE);
}

CLAIM(use_after_free, so_is_work_beyond_its_end) {
    begin(at, BLOCK);
    writes(s1, at + BLOCK - 512, 513);
    saw_one(DUCTILE_VIOLATION_USE_AFTER_FREE);
}

CLAIM(use_after_free, so_is_work_that_crosses_into_the_next_block) {
    begin(at, r.granule);
    begin(at + r.granule, r.granule);
    writes(s1, at + r.granule - 512, 1024);
    saw_one(DUCTILE_VIOLATION_USE_AFTER_FREE);
}

CLAIM(use_after_free, a_block_may_span_handles) {
    begin(at, 2 * r.granule);
    writes(s1, at, 2 * r.granule);
    writes(s1, at + r.granule - 512, 1024);
    saw_nothing();
}

CLAIM(use_after_free, so_is_a_read_by_the_host) {
    uint8_t byte;
    begin(at, BLOCK);
    end(at);
    assert_ok(ductile_virtual_read_back(r.gpu, &byte, at, 1, s1));
    saw_one(DUCTILE_VIOLATION_USE_AFTER_FREE);
}

CLAIM(use_after_free, memory_nobody_announced_is_nobodys) {
    writes(s1, at, BLOCK);
    saw_nothing();
}

/* An allocator fills with zeros before its caller has the address. */
CLAIM(use_after_free, driver_calls_may_use_anything) {
    begin(at, BLOCK);
    end(at);
    assert_ok(dvmm_fill(r.d, at, 0, BLOCK, s1));
    saw_nothing();
}

/* Work that ends the device; eagerly, before the call returns. */
static void lost_writes(ductile_stream stream, ductile_addr address, uint64_t size) {
    ductile_virtual_use one = {address, size, 1};
    ductile_status status = ductile_virtual_launch(r.gpu, stream, &one, 1);
    cr_assert(status == DUCTILE_OK || status == DUCTILE_ERR_DEVICE_LOST);
}

CLAIM(unmapped_use, is_seen_when_issued) {
    unmap(at);
    lost_writes(s1, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_UNMAPPED_USE);
}

CLAIM(unmapped_use, needs_the_access_too) {
    assert_ok(dvmm_set_access(r.d, at, r.granule, DVMM_ACCESS_READ));
    reads(s1, at, BLOCK);
    saw_nothing();
    lost_writes(s1, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_UNMAPPED_USE);
}

CLAIM(overlap, of_two_live_blocks_is_seen) {
    begin(at, BLOCK);
    begin(at + BLOCK - 512, BLOCK);
    saw_one(DUCTILE_VIOLATION_OVERLAP);
}

CLAIM(overlap, at_two_addresses_is_seen) {
    ductile_addr pair = map_twice();
    begin(pair, BLOCK);
    begin(pair + r.granule + BLOCK, BLOCK);
    saw_nothing();
    begin(pair + r.granule, 512);
    saw_one(DUCTILE_VIOLATION_OVERLAP);
}

/* ---- Off ----------------------------------------------------------------------------------- */

Test(detection, is_off_unless_asked_for) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    rig_open_detecting(&r, &options);
    assert_u64((unsigned)rig_state(&r).detects, 0);
    at = rig_row(&r, 1);
    begin(at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    unmap(at);
    saw_nothing();
    rig_abandon(&r);
}

Test(detection, level_is_checked) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.detect = 3;
    ductile_virtual_gpu *gpu;
    assert_status(ductile_virtual_create(&gpu, &options), DUCTILE_ERR_INVALID_ARGUMENT);
}

Test(detection, every_kind_has_a_name) {
    for (int kind = 0; kind <= DUCTILE_VIOLATION_OVERLAP; kind++) {
        cr_assert_neq(strcmp(ductile_virtual_violation_name((ductile_violation)kind), "unknown"),
                      0);
    }
    cr_assert_str_eq(ductile_virtual_violation_name((ductile_violation)99), "unknown");
}

/* Many streams, one after the other: what the host knows is forgotten, so nothing grows. */
Test(detection, of_streams_that_come_and_go_stays_small) {
    open_detecting(DUCTILE_SCHEDULE_LAGGING);
    for (int i = 0; i < 5000; i++) {
        ductile_stream stream = rig_stream(&r);
        writes(stream, at, BLOCK);
        sync(stream);
        assert_ok(ductile_virtual_stream_destroy(r.gpu, stream));
    }
    saw_nothing();
    rig_abandon(&r);
}
