/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of streams that are still at work, behind a wait on the GPU: reuse:wait takes
 * it where no more can be created, before the host would wait. The device is lazy: nothing
 * completes unless somebody waits, so host waits show, and a missing wait on the GPU shows in the
 * contents.
 */
#include "tests/support/inside.h"

static void open_with(const char *conf) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 4, .conf = conf};
    assert_fine(fixture_open(&f, &setup));
}

static void open_waiting(void) {
    open_with("reuse:wait,limit_bytes:202M");
}

static void expect_contents(ductile_addr address, uint8_t value, uint64_t size, size_t stream) {
    for (size_t i = 0; i < f.n_streams; i++) {
        assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[i]));
    }
    for (uint64_t at = 0; at < size; at += MIB) {
        uint8_t byte = 0;
        assert_ok(ductile_virtual_read_back(f.gpu, &byte, address + at, 1, f.streams[stream]));
        assert_u64(byte, value);
    }
}

static ductile_stats stats(void) {
    return fixture_stats(f.allocator);
}

/* Stream 0 writes the memory late, and has freed it; stream 1 is known. */
static ductile_addr freed_at_work(uint64_t size) {
    (void)take(512, 1);
    ductile_addr address = take(size, 0);
    fill(address, 0xEE, size, 0);
    assert_ok(ductile_free(f.allocator, address));
    return address;
}

/* Stream 0 holds 200 MiB, another one 2: nothing can be created. */
TestSuite(cross_stream_wait, .init = open_waiting);

/* The request itself records the marker, behind the free. */
Test(cross_stream_wait, memory_at_work_is_taken_by_a_gpu_wait) {
    (void)freed_at_work(200 * MIB);
    uint64_t reserved = stats().reserved_bytes;
    ductile_addr taken = take(150 * MIB, 1);
    assert_u64(stats().reserved_bytes, reserved);
    assert_u64(stats().event_waits, 1);
    assert_u64(stats().stream_syncs, 0);
    fill(taken, 0x11, 150 * MIB, 1);
    expect_contents(taken, 0x11, 150 * MIB, 1);
    close_audited();
}

/* A stream cannot wait where no context marker may be recorded. */
static void memory_stays_until_the_host_waits(void) {
    (void)freed_at_work(200 * MIB);
    uint64_t records = count("context_record");
    (void)take(150 * MIB, 1);
    assert_u64(count("context_record"), records);
    assert_u64(stats().event_waits, 0);
    cr_assert(stats().stream_syncs > 0);
}

Test(cross_stream, memory_stays_with_its_stream_where_captures_are_unannounced) {
    open_with("reuse:wait,limit_bytes:202M,captures:unannounced");
    memory_stays_until_the_host_waits();
    close_audited();
}

/* The marker stands behind the work of every stream, also of one that nobody named. */
Test(cross_stream_wait, programs_that_free_first_and_join_later_stay_correct) {
    (void)take(512, 1);
    ductile_addr shared = take(200 * MIB, 0);
    fill(shared, 0xAA, 200 * MIB, 0);
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[2], f.streams[0]));
    fill(shared, 0xEE, 200 * MIB, 2); /* nobody is told of stream 2 */
    assert_ok(ductile_free(f.allocator, shared));
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[0], f.streams[2])); /* the join */
    ductile_addr taken = take(150 * MIB, 1);
    assert_u64(stats().event_waits, 1);
    fill(taken, 0x22, 150 * MIB, 1);
    expect_contents(taken, 0x22, 150 * MIB, 1);
    close_audited();
}

/* The old addresses stay until the host knows the giver's work done. */
Test(cross_stream_wait, old_addresses_are_unmapped_when_the_giver_is_done) {
    (void)freed_at_work(200 * MIB);
    (void)take(150 * MIB, 1);
    assert_u64(stats().retiring_bytes, 150 * MIB);
    (void)take(4 * MIB, 1); /* polls */
    cr_assert(stats().retiring_bytes >= 150 * MIB);
    assert_fine(fixture_finish_work(&f));
    (void)take(20 * MIB, 2);
    (void)take(20 * MIB, 2);
    cr_assert(stats().retiring_bytes <= 20 * MIB); /* what the last request moved itself */
    close_audited();
}

/* What a third stream gets of it is behind the first stream's work as well. */
Test(cross_stream_wait, memory_passes_through_several_streams) {
    (void)freed_at_work(200 * MIB);
    ductile_addr second = take(150 * MIB, 1);
    fill(second, 0xDD, 150 * MIB, 1);
    assert_ok(ductile_free(f.allocator, second));
    uint64_t reserved = stats().reserved_bytes;
    ductile_addr third = take(130 * MIB, 2);
    assert_u64(stats().reserved_bytes, reserved);
    fill(third, 0x33, 130 * MIB, 2);
    expect_contents(third, 0x33, 130 * MIB, 2);
    close_audited();
}

Test(cross_stream_wait, the_host_waits_when_the_wait_fails) {
    (void)freed_at_work(200 * MIB);
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = "stream_wait_event", .nth = 1, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_addr taken = take(150 * MIB, 1);
    cr_assert(stats().stream_syncs > 0);
    fill(taken, 0x44, 150 * MIB, 1);
    expect_contents(taken, 0x44, 150 * MIB, 1);
    close_audited();
}

/* Where more can be created, the request goes on without the memory that it cannot wait for. */
Test(cross_stream, new_memory_serves_a_stream_that_cannot_wait_on_the_gpu) {
    open_with("reuse:wait,sizes:tight");
    (void)freed_at_work(100 * MIB);
    uint64_t held = stats().reserved_bytes;
    assert_fine(fixture_fail_for_good(&f, "stream_wait_event", 1));
    (void)take(90 * MIB, 1);
    cr_assert_gt(ductile_virtual_faults_fired(f.gpu), 0, "no wait was tried");
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_u64(stats().reserved_bytes, held + 90 * MIB);
    assert_u64(stats().stream_syncs, 0);
    close_audited();
}

/* ---- Without pressure, and without waits ---------------------------------------------------- */

Test(cross_stream, wait_takes_memory_at_work_before_new_memory) {
    open_with("reuse:wait,sizes:tight");
    (void)freed_at_work(100 * MIB);
    uint64_t reserved = stats().reserved_bytes;
    ductile_addr taken = take(90 * MIB, 1);
    assert_u64(stats().reserved_bytes, reserved);
    assert_u64(stats().event_waits, 1);
    fill(taken, 0x55, 90 * MIB, 1);
    expect_contents(taken, 0x55, 90 * MIB, 1);
    close_audited();
}

/* While more may be held than was ever in use. */
Test(cross_stream, wait_does_not_wait_while_memory_is_created_for_speed) {
    open_with("reuse:wait");
    (void)freed_at_work(40 * MIB);
    (void)take(30 * MIB, 1);
    assert_u64(stats().event_waits, 0);
    (void)take(30 * MIB, 2);
    (void)take(30 * MIB, 2);
    cr_assert(stats().event_waits > 0);
    close_audited();
}

Test(cross_stream, wait_takes_memory_that_is_done_first) {
    open_with("reuse:wait,sizes:tight");
    ductile_addr done = take(100 * MIB, 2);
    ductile_addr at_work = take(20 * MIB, 0);
    give(done);
    (void)take(4 * MIB, 2); /* records the marker */
    assert_fine(fixture_finish_work(&f));
    launch(at_work, 20 * MIB, 0);
    give(at_work);
    (void)take(90 * MIB, 1);
    assert_u64(stats().event_waits, 0);
    (void)take(20 * MIB, 1);
    assert_u64(stats().event_waits, 1);
    close_audited();
}

/* 48 of 53 granules come from stream 0, behind a wait; 12 are created, and 7 of them are left over,
 * never memory of stream 0: plan_commit.c asserts that. */
Test(cross_stream, what_is_left_beside_memory_at_work_is_new) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY,
                                  .capacity_bytes = 128 * GIB,
                                  .n_streams = 3,
                                  .conf = "reuse:wait"});
    (void)freed_at_work(200 * MIB);
    uint64_t held = reserved();
    (void)take_granules(52, 1);
    (void)take_granules(53, 1);
    assert_u64(reserved(), held + 12 * FIXTURE_GRANULE);
    assert_u64(stats().event_waits, 2);
    launch(take_granules(7, 1), 7 * FIXTURE_GRANULE, 1);
    assert_u64(reserved(), held + 12 * FIXTURE_GRANULE);
    assert_u64(stats().event_waits, 2);
    close_audited();
}

/* What another stream still uses is nothing that a stream can spare. */
Test(cross_stream, memory_comes_from_the_stream_that_has_most_of_it_free) {
    open_with("sizes:tight");
    ductile_addr fewer = take_granules(6, 1);
    ductile_addr pending = take_granules(6, 1);
    ductile_addr most = take_granules(10, 2);
    give(fewer);
    give(most);
    (void)take_granules(1, 3); /* records the marker */
    assert_fine(fixture_finish_work(&f));
    launch(pending, 512, 3);
    assert_ok(ductile_record_stream(f.allocator, pending, f.streams[3]));
    give(pending);
    (void)take_granules(4, 0);
    assert_u64(stats().pending_bytes, 6 * FIXTURE_GRANULE);
    assert_u64(arena_of(1)->mapped_bytes, 12 * FIXTURE_GRANULE);
    assert_u64(arena_of(2)->mapped_bytes, 6 * FIXTURE_GRANULE);
    close_audited();
}

Test(cross_stream, done_waits_on_the_host_where_wait_does_not) {
    open_with("reuse:streams");
    (void)freed_at_work(200 * MIB);
    (void)take(150 * MIB, 1);
    assert_u64(stats().event_waits, 0);
    cr_assert(stats().stream_syncs > 0);
    close_audited();
}

/* ---- Streams that come and go --------------------------------------------------------------- */

enum { N_STREAMS = 10000 };

typedef struct footprint {
    uint64_t reserved, span, addresses, host;
} footprint;

static footprint now(void) {
    ductile_stats s = stats();
    return (footprint){s.reserved_bytes, s.address_span_bytes, s.address_bytes, s.host_bytes};
}

/* A step as programs do it: a new stream, some work, and the stream ends. */
static void one_step(bool tells) {
    ductile_stream stream;
    assert_ok(ductile_virtual_stream_create(f.gpu, &stream));
    ductile_addr address[2];
    assert_ok(ductile_alloc(f.allocator, 3 * MIB, stream, &address[0]));
    assert_ok(ductile_alloc(f.allocator, 5000, stream, &address[1]));
    assert_ok(ductile_virtual_fill(f.gpu, address[0], 1, 3 * MIB, stream));
    assert_ok(ductile_free(f.allocator, address[0]));
    assert_ok(ductile_free(f.allocator, address[1]));
    if (tells) {
        assert_ok(ductile_stream_done(f.allocator, stream));
    } else { /* the next stream may get the handle, and is not ordered behind this one */
        assert_ok(ductile_virtual_stream_sync(f.gpu, stream));
    }
    assert_ok(ductile_virtual_stream_destroy(f.gpu, stream));
    ductile_virtual_advance(f.gpu, 10); /* a quarter of the lag: some steps are under way */
}

static void steps_stay_flat(const char *conf, bool tells) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 40, .conf = conf};
    assert_fine(fixture_open(&f, &setup));
    for (int i = 0; i < N_STREAMS / 20; i++) {
        one_step(tells);
    }
    footprint early = now();
    for (int i = N_STREAMS / 20; i < N_STREAMS; i++) {
        one_step(tells);
    }
    footprint late = now();
    cr_assert(late.reserved <= early.reserved + 8 * MIB, "reserved %llu -> %llu",
              (unsigned long long)early.reserved, (unsigned long long)late.reserved);
    cr_assert(late.span <= 2 * early.span, "span %llu -> %llu", (unsigned long long)early.span,
              (unsigned long long)late.span);
    cr_assert(late.addresses <= 2 * early.addresses, "addresses %llu -> %llu",
              (unsigned long long)early.addresses, (unsigned long long)late.addresses);
    cr_assert(late.host <= 2 * early.host, "host %llu -> %llu", (unsigned long long)early.host,
              (unsigned long long)late.host);
    close_audited();
}

Test(many_streams, that_are_named_done_leave_nothing) {
    steps_stay_flat(NULL, true);
}

Test(many_streams, that_are_not_named_share_by_handle) {
    steps_stay_flat(NULL, false);
}

Test(many_streams, leave_nothing_with_record_stream_wait) {
    steps_stay_flat("record_stream:wait", true);
}

Test(many_streams, leave_nothing_under_cross_stream_wait) {
    steps_stay_flat("reuse:wait", true);
}

/* Streams that live on in silence prove nothing: their memory comes back under pressure, and no
 * request is refused while it is there. */
Test(many_streams, in_silence_give_their_memory_under_pressure) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY};
    assert_fine(fixture_open(&f, &setup));
    static ductile_stream silent[1000];
    for (int i = 0; i < 1000; i++) {
        ductile_addr address = 0;
        assert_ok(ductile_virtual_stream_create(f.gpu, &silent[i]));
        assert_ok(ductile_alloc(f.allocator, 1000, silent[i], &address));
        assert_ok(ductile_free(f.allocator, address));
    }
    ductile_addr all = 0;
    assert_ok(ductile_alloc(f.allocator, 256 * MIB, f.streams[0], &all));
    assert_ok(ductile_free(f.allocator, all));
    assert_fine(audit_fixture(&f, NULL));
    for (int i = 0; i < 1000; i++) {
        assert_ok(ductile_virtual_stream_destroy(f.gpu, silent[i]));
    }
    assert_fine(fixture_close(&f));
}
