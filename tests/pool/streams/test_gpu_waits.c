/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_stream:wait. The device is lazy: nothing completes unless somebody waits for it, so a
 * host wait that is made shows in the count of host waits, and a wait on the GPU that is missing
 * shows in the contents.
 */
#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "tests/support/one_fixture.h"

static void open_with(const char *conf) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 4, .conf = conf};
    assert_fine(fixture_open(&f, &setup));
}

static void open_waiting(void) {
    open_with("record_stream:wait");
}

/* Another stream writes the block late; then its owner frees it. */
static void use_and_free(ductile_addr address, uint64_t size, size_t other) {
    fill(address, 0xEE, size, other);
    assert_ok(ductile_free_on(f.allocator, address, f.streams[other]));
}

static uint64_t gpu_waits(void) {
    return fixture_stats(f.allocator).event_waits;
}

static uint64_t host_waits(void) {
    return fixture_stats(f.allocator).stream_syncs;
}

TestSuite(gpu_waits, .init = open_waiting);

Test(gpu_waits, freed_block_serves_its_stream_at_once_behind_a_gpu_wait) {
    ductile_addr first = take(MIB, 0);
    use_and_free(first, MIB, 1);
    assert_u64(fixture_stats(f.allocator).pending_bytes, 0);
    assert_u64(gpu_waits(), 0);
    ductile_addr again = take(MIB, 0);
    assert_u64(again, first);
    assert_u64(gpu_waits(), 1);
    fill(again, 0x11, MIB, 0);
    assert_u64(byte_at(again, 0), 0x11); /* runs both streams: the late write came before ours */
    assert_u64(host_waits(), 0);
    assert_ok(ductile_free(f.allocator, again));
    close_audited();
}

Test(gpu_waits, a_free_behind_a_gpu_wait_is_not_reported_as_pending) {
    ductile_addr block = take(MIB, 0);
    fill(block, 0xEE, MIB, 1);
    assert_ok(ductile_record_stream(f.allocator, block, f.streams[1]));
    int is_pending = 7;
    assert_ok(ductile_free_reporting(f.allocator, block, &is_pending));
    cr_assert_eq(is_pending, 0);
    close_audited();
}

Test(gpu_waits, work_that_is_done_needs_no_wait) {
    ductile_addr first = take(MIB, 0);
    use_and_free(first, MIB, 1);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    assert_u64(take(MIB, 0), first);
    assert_u64(gpu_waits(), 0);
    close_audited();
}

Test(gpu_waits, equally_good_block_without_a_wait_comes_first) {
    ductile_addr block[5];
    for (int i = 0; i < 5; i++) {
        block[i] = take(4096, 0);
    }
    use_and_free(block[1], 4096, 1);
    assert_ok(ductile_free(f.allocator, block[3]));
    assert_u64(take(4096, 0), block[3]);
    assert_u64(gpu_waits(), 0);
    assert_u64(take(4096, 0), block[1]);
    assert_u64(gpu_waits(), 1);
    close_audited();
}

Test(gpu_waits, better_fit_is_worth_a_wait) {
    ductile_addr small = take(4096, 0);
    (void)take(512, 0);
    ductile_addr large = take(MIB, 0);
    (void)take(512, 0);
    use_and_free(small, 4096, 1);
    assert_ok(ductile_free(f.allocator, large));
    assert_u64(take(4096, 0), small);
    assert_u64(gpu_waits(), 1);
    close_audited();
}

Test(gpu_waits, plain_part_of_a_merged_block_needs_no_wait) {
    ductile_addr plain = take(MIB, 0);
    ductile_addr used = take(MIB, 0);
    assert_u64(used, plain + MIB);
    use_and_free(used, MIB, 1);
    assert_ok(ductile_free(f.allocator, plain)); /* merges with the other */
    assert_u64(take(MIB, 0), plain);
    assert_u64(gpu_waits(), 0);
    assert_u64(take(MIB, 0), used);
    assert_u64(gpu_waits(), 1);
    close_audited();
}

Test(gpu_waits, every_part_of_a_merged_block_is_waited_for) {
    ductile_addr first = take(MIB, 0);
    (void)take(MIB, 0);
    use_and_free(first, MIB, 1);
    use_and_free(first + MIB, MIB, 2);
    ductile_addr both = take(2 * MIB, 0);
    assert_u64(both, first);
    assert_u64(gpu_waits(), 2);
    fill(both, 0x22, 2 * MIB, 0);
    assert_u64(byte_at(both, 0), 0x22);
    assert_u64(byte_at(both + MIB, 0), 0x22);
    close_audited();
}

/* The stream has waited for all that the block's users had issued: once is enough. */
Test(gpu_waits, rest_of_a_block_whose_part_was_waited_for_needs_no_wait) {
    ductile_addr first = take(MIB, 0);
    use_and_free(first, MIB, 1);
    assert_u64(take(4096, 0), first);
    assert_u64(gpu_waits(), 1);
    assert_u64(take(4096, 0), first + 4096);
    assert_u64(gpu_waits(), 1);
    close_audited();
}

Test(gpu_waits, as_many_streams_as_used_it_are_waited_for) {
    ductile_addr first = take(MIB, 0);
    ductile_virtual_use use = {.address = first, .size = MIB};
    for (size_t i = 1; i < 4; i++) {
        assert_ok(ductile_virtual_launch(f.gpu, f.streams[i], &use, 1)); /* all of them read */
        assert_ok(ductile_record_stream(f.allocator, first, f.streams[i]));
    }
    assert_ok(ductile_free(f.allocator, first));
    assert_u64(take(MIB, 0), first);
    assert_u64(gpu_waits(), 3);
    close_audited();
}

/* 40 MiB do not fit between the others, so handles move; the waits come before they do. */
Test(gpu_waits, memory_that_moves_is_waited_for) {
    ductile_addr block[8];
    for (int i = 0; i < 8; i++) {
        block[i] = take(20 * MIB, 0);
    }
    for (int i = 0; i < 8; i += 2) {
        use_and_free(block[i], 20 * MIB, 1);
    }
    ductile_addr large = take(40 * MIB, 0);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 20);
    fill(large, 0x33, 40 * MIB, 0);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    for (uint64_t at = 0; at < 40 * MIB; at += 2 * MIB) {
        assert_u64(byte_at(large + at, 0), 0x33);
    }
    assert_u64(host_waits(), 0);
    close_audited();
}

Test(gpu_waits, memory_with_waits_leaves_its_stream_only_when_done) {
    ductile_addr first = take(200 * MIB, 0);
    use_and_free(first, 200 * MIB, 1);
    (void)take(512, 0);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    ductile_addr other = take(200 * MIB, 2); /* more than is left */
    assert_u64(host_waits() > 0, true);
    fill(other, 0x44, 200 * MIB, 2);
    assert_u64(byte_at(other, 2), 0x44);
    assert_u64(byte_at(other + 200 * MIB - 1, 2), 0x44);
    close_audited();
}

Test(gpu_waits, failed_record_keeps_the_block_pending) {
    ductile_addr first = take(MIB, 0);
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "event_record", .nth = 1, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    use_and_free(first, MIB, 1);
    assert_u64(fixture_stats(f.allocator).pending_bytes, MIB);
    cr_assert(take(MIB, 0) != first);
    close_audited();
}

Test(gpu_waits, failed_wait_leaves_the_block_free_and_the_request_is_served) {
    ductile_addr first = take(MIB, 0);
    use_and_free(first, MIB, 1);
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_wait_event", .nth = 1, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_addr again = take(MIB, 0);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    fill(again, 0x55, MIB, 0);
    assert_u64(byte_at(again, 0), 0x55);
    (void)first;
    close_audited();
}

/* The request's place begins with memory whose work cannot be waited for. It is given up, and new
 * memory is created, although another stream has free memory that is proven done. */
Test(growth_only, takes_nothing_from_other_streams_when_a_wait_fails) {
    open_with("record_stream:wait,reuse:never");
    ductile_addr done = take(40 * MIB, 2);
    give(done);
    assert_ok(ductile_stream_done(f.allocator, f.streams[2]));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[2]));
    use_and_free(take(20 * MIB, 0), 20 * MIB, 1);
    uint64_t reserved = fixture_stats(f.allocator).reserved_bytes;
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_wait_event", .nth = 1, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    (void)take(30 * MIB, 0);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    assert_u64(fixture_stats(f.allocator).recycled_handles, 0);
    assert_u64(fixture_stats(f.allocator).reserved_bytes, reserved + 30 * MIB);
    close_audited();
}

/* A graph cannot wait for work outside of it; the capture is not harmed, and memory that needs no
 * wait serves. */
Test(gpu_waits, captured_stream_waits_for_nothing) {
    ductile_addr used = take(MIB, 0);
    (void)take(512, 0);
    ductile_addr plain = take(MIB + 512, 0);
    (void)take(512, 0);
    use_and_free(used, MIB, 1);
    assert_ok(ductile_free(f.allocator, plain));
    dvmm_driver *d = f.allocator->driver;
    assert_ok(dvmm_capture_begin(d, f.streams[0], DVMM_CAPTURE_GLOBAL));
    ductile_stats before = fixture_stats(f.allocator);
    assert_u64(take(MIB, 0), plain);
    ductile_stats after = fixture_stats(f.allocator);
    assert_u64(gpu_waits(), 0);
    assert_u64(host_waits(), 0);
    assert_u64(after.allocs - before.allocs, 1); /* the block that was tried in vain is none */
    assert_u64(after.requested_total_bytes - before.requested_total_bytes, MIB);
    assert_u64(after.allocated_total_bytes - before.allocated_total_bytes, MIB);
    assert_ok(dvmm_capture_end(d, f.streams[0]));
    close_audited();
}

Test(gpu_waits, trim_gives_back_memory_with_waits) {
    use_and_free(take(20 * MIB, 0), 20 * MIB, 1);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 0);
    close_audited();
}

Test(gpu_waits, destroying_with_waits_outstanding_leaves_nothing) {
    use_and_free(take(20 * MIB, 0), 20 * MIB, 1);
    use_and_free(take(20 * MIB, 2), 20 * MIB, 3);
    close_audited();
}

/* ---- Many ---------------------------------------------------------------------------------- */

/* Freed in an order that no tree likes, then all of it is handed out at once. */
Test(gpu_waits, thousands_of_spans_go_with_one_request) {
    enum { N = 4096 };
    static ductile_addr block[N];
    for (int i = 0; i < N; i++) {
        block[i] = take(4096, 0);
    }
    for (int i = 0; i < N; i++) {
        use_and_free(block[(i * 1537) % N], 4096, 1);
    }
    dti_lock_acquire(&f.allocator->index_lock);
    bool is_in_order = dpool_wait_check_locked(f.allocator);
    dti_lock_release(&f.allocator->index_lock);
    assert_u64(is_in_order, true);
    assert_u64(atomic_load(&f.allocator->waits.n), N);
    ductile_addr all = take(N * (size_t)4096, 0);
    assert_u64(all, block[0]);
    assert_u64(atomic_load(&f.allocator->waits.n), 0);
    close_audited();
}

Test(gpu_waits, check_sees_a_span_over_an_old_address) {
    ductile_addr first = take(MIB, 0);
    use_and_free(first, MIB, 1);
    f.allocator->waits.root->addr += 64 * MIB; /* where nothing is mapped */
    f.allocator->waits.root->end += 64 * MIB;
    char report[128];
    cr_assert_eq(ductile_check(f.allocator, report, sizeof report), DUCTILE_ERR_CORRUPT);
    cr_assert(report[0] == 'W' && report[1] == '1', "%s", report);
    f.allocator->waits.root->addr -= 64 * MIB;
    f.allocator->waits.root->end -= 64 * MIB;
    close_audited();
}

/* Each poll goes on where the one before stopped, and begins again after the last. */
Test(gpu_waits, polls_come_back_to_the_lowest_address) {
    ductile_addr low = take(MIB, 0);
    ductile_addr high = take(MIB, 0);
    cr_assert_lt(low, high);
    use_and_free(low, MIB, 1);
    use_and_free(high, MIB, 2);
    for (int round = 0; round < 3; round++) {
        assert_fine(fixture_sync_all(&f));
        dti_lock_acquire(&f.allocator->grow_lock);
        dpool_wait_poll(f.allocator, 1);
        dti_lock_release(&f.allocator->grow_lock);
        assert_u64(f.allocator->waits.polled_to, 0);
        uint64_t before = gpu_waits();
        assert_u64(take(MIB, 0), low);
        assert_u64(gpu_waits(), before); /* a poll has found its work done */
        use_and_free(low, MIB, 1);
    }
    close_audited();
}

/* The first of several waits fails: the others are not made either. Whoever gets the block then,
 * waits for all of them. */
Test(gpu_waits, a_failed_wait_is_the_last_of_its_attempt) {
    ductile_addr block = take(MIB, 0);
    fill(block, 1, 512, 1);
    fill(block + 512, 2, 512, 2);
    assert_ok(ductile_record_stream(f.allocator, block, f.streams[1]));
    assert_ok(ductile_free_on(f.allocator, block, f.streams[2]));
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_wait_event", .nth = 1, .code = 999};
    uint64_t asked = count("stream_wait_event");
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_addr other = take(MIB, 0);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_u64(count("stream_wait_event"), asked + 1 + (other == block ? 2 : 0));
    assert_ok(ductile_free(f.allocator, other));
    close_audited();
}

/* ---- What the host learns by polling -------------------------------------------------------- */

/* Spans of a stream at work and of one that is done, in turns: the first tells of all of its own,
 * and of nobody else's. */
Test(gpu_waits, one_question_about_a_stream_at_work_answers_for_it_and_for_no_other) {
    ductile_addr block[8];
    for (int i = 0; i < 8; i++) {
        block[i] = take(MIB, 0);
        (void)take(512, 0);
    }
    for (int i = 0; i < 8; i++) {
        use_and_free(block[i], MIB, 1 + (size_t)i % 2);
    }
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[2]));
    uint64_t before = count("event_query");
    dpool_wait_poll(f.allocator, UINT32_MAX);
    assert_u64(count("event_query") - before, 1 + 4);
    dti_lock_acquire(&f.allocator->index_lock);
    for (int i = 0; i < 8; i++) {
        bool is_due = dpool_wait_is_due_locked(f.allocator, block[i], block[i] + MIB);
        cr_expect_eq(is_due, i % 2 == 0, "span %d", i);
    }
    dti_lock_release(&f.allocator->index_lock);
    close_audited();
}
