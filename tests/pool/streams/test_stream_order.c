/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams as programs really use them: named done while blocks still refer to them, their handle
 * given to the next one; per-thread default streams, one handle for as many streams as there are
 * threads; and captures that another thread is in the middle of.
 */
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <semaphore.h>

#define PER_THREAD ((ductile_stream)2)

static void open_lazy(void) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
}

static ductile_addr take_for(size_t size, ductile_stream stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, size, stream, &address));
    return address;
}

static ductile_status launch_for(ductile_stream stream, ductile_addr address, uint64_t size) {
    ductile_virtual_use use = {.address = address, .size = size, .writes = 1};
    return ductile_virtual_launch(f.gpu, stream, &use, 1);
}

static uint64_t pending(void) {
    return fixture_stats(f.allocator).pending_bytes;
}

/* ---- Streams that are done ----------------------------------------------------------------- */

TestSuite(stream_done, .init = open_lazy);

/* A block of stream 0 that a kernel on stream 1 writes; then stream 1 is done and destroyed. */
static ductile_addr used_by_a_stream_that_is_gone(uint64_t size) {
    ductile_addr address = take_for(size, f.streams[0]);
    assert_ok(ductile_record_stream(f.allocator, address, f.streams[1]));
    assert_ok(launch_for(f.streams[1], address, size));
    assert_ok(ductile_stream_done(f.allocator, f.streams[1]));
    assert_ok(ductile_virtual_stream_destroy(f.gpu, f.streams[1]));
    f.n_streams = 1;
    return address;
}

/* Closing finds no violation: the stream was not named again. */
Test(stream_done, ends_recorded_uses_of_live_blocks) {
    ductile_addr address = used_by_a_stream_that_is_gone(20 * MIB);
    assert_ok(ductile_free(f.allocator, address));
    assert_u64(pending(), 20 * MIB);
    close_audited();
}

Test(stream_done, work_of_the_stream_keeps_the_block_until_it_completes) {
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_LAGGING, 2);
    ductile_addr address = used_by_a_stream_that_is_gone(20 * MIB);
    assert_ok(ductile_free(f.allocator, address));
    (void)take_for(22 * MIB, f.streams[0]); /* not a hit: looks at what is done */
    assert_u64(pending(), 20 * MIB);
    ductile_virtual_advance(f.gpu, 4);
    (void)take_for(24 * MIB, f.streams[0]);
    assert_u64(pending(), 0);
    close_audited();
}

Test(stream_done, a_new_stream_with_the_same_handle_proves_nothing_about_the_old_one) {
    ductile_stream old = f.streams[1];
    ductile_addr address = used_by_a_stream_that_is_gone(20 * MIB);
    assert_ok(ductile_virtual_stream_create(f.gpu, &f.streams[1]));
    f.n_streams = 2;
    cr_assert_eq(f.streams[1], old, "the device has stopped to use handles again");
    assert_ok(ductile_free(f.allocator, address));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    (void)take_for(24 * MIB, f.streams[0]);
    assert_u64(pending(), 20 * MIB);
    close_audited();
}

/* Of markers of one stream a later one proves the earlier ones; these are of two streams. */
Test(stream_done, markers_of_a_new_stream_prove_nothing_about_pending_blocks_of_the_old_one) {
    ductile_stream old = f.streams[1];
    ductile_addr first = take_for(20 * MIB, f.streams[0]);
    ductile_addr second = take_for(6 * MIB, f.streams[0]);
    assert_ok(ductile_record_stream(f.allocator, first, old));
    assert_ok(launch_for(old, first, 20 * MIB));
    assert_ok(ductile_free(f.allocator, first));
    assert_ok(ductile_stream_done(f.allocator, old));
    assert_ok(ductile_virtual_stream_destroy(f.gpu, old));
    assert_ok(ductile_virtual_stream_create(f.gpu, &f.streams[1]));
    cr_assert_eq(f.streams[1], old, "the device has stopped to use handles again");
    assert_ok(ductile_free_on(f.allocator, second, f.streams[1]));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[1]));
    (void)take_for(24 * MIB, f.streams[0]);
    assert_u64(pending(), 20 * MIB);
    close_audited();
}

/* The uses of both streams count: the old one's until its work is done, the new one's too. */
Test(stream_done, a_new_stream_with_the_same_handle_is_recorded_as_well) {
    ductile_addr address = used_by_a_stream_that_is_gone(20 * MIB);
    assert_ok(ductile_virtual_stream_create(f.gpu, &f.streams[1]));
    f.n_streams = 2;
    assert_ok(ductile_record_stream(f.allocator, address, f.streams[1]));
    uint64_t records = fixture_stats(f.allocator).event_records;
    assert_ok(ductile_free(f.allocator, address));
    assert_u64(fixture_stats(f.allocator).event_records, records + 1);
    assert_u64(pending(), 20 * MIB);
    close_audited();
}

/* ---- Per-thread default streams ------------------------------------------------------------ */

TestSuite(per_thread_stream, .init = open_lazy);

/* What a thread does, with one block. Written by one thread at a time. */
typedef struct errand {
    ductile_addr address;
    ductile_status status;
} errand;

static void run_in_a_thread(void *(*body)(void *), errand *e) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, body, e), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(e->status);
}

static void *free_it(void *user) {
    errand *e = user;
    e->status = ductile_free(f.allocator, e->address);
    return NULL;
}

/* A marker on the stream of the thread that frees would be done at once. */
Test(per_thread_stream, a_recorded_one_stays_that_of_the_thread_that_recorded_it) {
    errand e = {.address = take_for(20 * MIB, f.streams[0])};
    assert_ok(ductile_record_stream(f.allocator, e.address, PER_THREAD));
    assert_ok(launch_for(PER_THREAD, e.address, 20 * MIB));
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_EAGER, 0);
    run_in_a_thread(free_it, &e);
    (void)take_for(40 * MIB, f.streams[0]);
    assert_u64(pending(), 20 * MIB);
    close_audited();
}

/* The free, in another thread, could not mark the stream. Its own thread does at its next call, and
 * that marker says how far the stream is. */
Test(per_thread_stream, a_recorded_one_that_its_own_thread_marks_later_is_waited_for) {
    errand e = {.address = take_for(20 * MIB, f.streams[0])};
    assert_ok(ductile_record_stream(f.allocator, e.address, PER_THREAD));
    assert_ok(launch_for(PER_THREAD, e.address, 20 * MIB));
    run_in_a_thread(free_it, &e);
    for (int i = 0; i < 3; i++) {
        (void)take_for(20 * MIB, PER_THREAD); /* marks, and polls */
        assert_u64(pending(), 20 * MIB);
    }
    assert_ok(ductile_virtual_stream_sync(f.gpu, PER_THREAD));
    (void)take_for(20 * MIB, PER_THREAD);
    assert_u64(pending(), 0);
    close_audited();
}

static void *use_and_free_one(void *user) {
    errand *e = user;
    e->status = ductile_alloc(f.allocator, 20 * MIB, PER_THREAD, &e->address);
    if (e->status == DUCTILE_OK) {
        e->status = launch_for(PER_THREAD, e->address, 20 * MIB);
    }
    if (e->status == DUCTILE_OK) {
        e->status = ductile_free(f.allocator, e->address);
    }
    return NULL;
}

/* The system gives the second thread the stack and the thread-local storage of the first. */
Test(per_thread_stream, threads_one_after_another_have_arenas_of_their_own) {
    errand first = {0};
    errand second = {0};
    run_in_a_thread(use_and_free_one, &first);
    run_in_a_thread(use_and_free_one, &second);
    cr_assert_neq(second.address, first.address, "reused while the first kernel has not run");
    assert_u64(fixture_stats(f.allocator).arenas, 2);
    close_audited();
}

/* ---- Captures of other threads ------------------------------------------------------------- */

/* A thread that captures a stream of its own, in the mode that forbids others the most. Calls of
 * other threads that are not relaxed invalidate its capture. */
typedef struct capturer {
    pthread_t thread;
    ductile_stream stream;
    sem_t begun;
    sem_t may_end;
    int begin_code, end_code;
} capturer;

static capturer other;
static ductile_addr waiting; /* a block of stream 0, freed, whose kernel on stream 1 has not run */

static void *capture(void *unused) {
    (void)unused;
    void *ctx;
    const dvmm_driver_ops *ops = dvmm_raw_ops(f.allocator->driver, &ctx);
    other.begin_code = ops->capture_begin(ctx, other.stream, DVMM_CAPTURE_GLOBAL);
    (void)sem_post(&other.begun);
    (void)sem_wait(&other.may_end);
    other.end_code = ops->capture_end(ctx, other.stream);
    return NULL;
}

static void open_full(void) {
    fixture_setup setup = {.capacity_bytes = 64 * MIB,
                           .schedule = DUCTILE_SCHEDULE_LAZY,
                           .n_streams = 3,
                           .conf = "captures:unannounced"};
    assert_fine(fixture_open(&f, &setup));
    (void)take_for(8 * MIB, f.streams[0]);
    waiting = take_for(40 * MIB, f.streams[0]);
    ductile_virtual_block_begin(f.gpu, waiting, 40 * MIB); /* its two users race: its own affair */
    assert_ok(launch_for(f.streams[1], waiting, 40 * MIB));
    assert_ok(launch_for(f.streams[0], waiting, 40 * MIB));
    ductile_virtual_block_end(f.gpu, waiting);
    assert_ok(ductile_free_on(f.allocator, waiting, f.streams[1]));
}

static void begin_capture(void) {
    other = (capturer){.stream = f.streams[2]};
    cr_assert_eq(sem_init(&other.begun, 0, 0), 0);
    cr_assert_eq(sem_init(&other.may_end, 0, 0), 0);
    cr_assert_eq(pthread_create(&other.thread, NULL, capture, NULL), 0);
    cr_assert_eq(sem_wait(&other.begun), 0);
    assert_u64((unsigned)other.begin_code, 0);
}

static void end_capture(void) {
    cr_assert_eq(sem_post(&other.may_end), 0);
    cr_assert_eq(pthread_join(other.thread, NULL), 0);
    cr_assert_eq(other.end_code, 0, "the capture ended with %s", dvmm_code_name(other.end_code));
}

TestSuite(others_capture, .init = open_full);

Test(others_capture, survives_an_allocation_that_has_to_wait) {
    begin_capture();
    (void)take_for(40 * MIB, f.streams[0]);
    end_capture();
    close_audited();
}

static void refuse_while_captured(void) {
    begin_capture();
    assert_refused(60 * MIB, 0);
    end_capture();
}

Test(others_capture, survives_a_hopeless_allocation_where_the_stream_is_known) {
    (void)take_for(MIB, f.streams[2]);
    refuse_while_captured();
    close_audited();
}

Test(others_capture, survives_a_hopeless_allocation) {
    refuse_while_captured();
    close_audited();
}

Test(others_capture, survives_a_trim_where_the_stream_is_known) {
    (void)take_for(MIB, f.streams[2]);
    begin_capture();
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    end_capture();
    close_audited();
}
