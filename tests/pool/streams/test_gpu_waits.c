/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_stream:wait: the spans that free memory waits for, and what polls learn of them. What they
 * are for is in tests/scenarios/gpu_waits.txt.
 */
#include "pool/blocks/wait_spans.h"
#include "pool/streams/gpu_waits.h"
#include "tests/support/one_fixture.h"

static void open_waiting(void) {
    open_fixture(&(fixture_setup){
        .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 4, .conf = "record_stream:wait"});
}

/* Another stream writes the block late; then its owner frees it. */
static void use_and_free(ductile_addr address, uint64_t size, size_t other) {
    fill(address, 0xEE, size, other);
    assert_ok(ductile_free_ex(f.allocator, address, &f.streams[other], 1, NULL));
}

static uint64_t gpu_waits(void) {
    return fixture_stats(f.allocator).event_waits;
}

TestSuite(gpu_waits, .init = open_waiting);

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

static ductile_addr take_apart(uint64_t size) {
    ductile_addr block = take(size, 0);
    (void)take(512, 0);
    return block;
}

/* Spans of a stream at work, more than a poll asks about under one hold of the lock, and above
 * them one of a stream that is done. */
Test(gpu_waits, a_poll_goes_on_where_the_one_before_stopped) {
    enum { N = 64 };
    ductile_addr low[N];
    for (int i = 0; i < N; i++) {
        low[i] = take_apart(4096);
    }
    ductile_addr high = take_apart(4096);
    for (int i = 0; i < N; i++) {
        use_and_free(low[i], 4096, 1);
    }
    use_and_free(high, 4096, 2);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[2]));
    for (int round = 0; round < 8; round++) {
        dpool_wait_poll(f.allocator, 1);
    }
    dti_lock_acquire(&f.allocator->index_lock);
    cr_assert(dpool_wait_is_due_locked(f.allocator, low[0], low[0] + 4096));
    cr_assert_not(dpool_wait_is_due_locked(f.allocator, high, high + 4096));
    dti_lock_release(&f.allocator->index_lock);
    close_audited();
}

/* It begins again after the last. */
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

/* The first of several waits fails: the others are not made either. The owner of the block then,
 * waits for all of them. */
Test(gpu_waits, a_failed_wait_is_the_last_of_its_attempt) {
    ductile_addr block = take(MIB, 0);
    fill(block, 1, 512, 1);
    fill(block + 512, 2, 512, 2);
    assert_ok(ductile_record_stream(f.allocator, block, f.streams[1]));
    assert_ok(ductile_free_ex(f.allocator, block, &f.streams[2], 1, NULL));
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
 * and of no other stream's. */
Test(gpu_waits, one_question_about_a_stream_at_work_answers_for_it_and_for_no_other) {
    ductile_addr block[8];
    for (int i = 0; i < 8; i++) {
        block[i] = take_apart(MIB);
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
