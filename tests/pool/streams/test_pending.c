/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pending blocks, and what other threads learn and hold meanwhile. How much is asked about very
 * many of them is in tests/scenarios/pressure.txt. The device is lazy, so that all are pending
 * until a thread waits.
 */
#include "bench/driver/bench_calls.h"
#include "pool/growth/attempt.h"
#include "pool/streams/host_waits.h"
#include "pool/streams/pending.h"
#include "pool/streams/stream_use.h"
#include "tests/support/one_fixture.h"
#include "vmm/captures.h"

#include <pthread.h>

enum { N_OTHERS = 3 };

static void open_lazy(void) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = N_OTHERS + 1});
}

static uint64_t calls_about_events(void) {
    return count("event_query") + count("event_sync");
}

static uint64_t pending(void) {
    return fixture_stats(f.allocator).pending_blocks;
}

/* The block is freed behind a use of that stream. */
static void free_on(ductile_addr block, int stream) {
    assert_ok(ductile_free_ex(f.allocator, block, &f.streams[stream], 1, NULL));
}

static void take_many(ductile_addr *block, int n) {
    for (int i = 0; i < n; i++) {
        block[i] = take(1024, 0);
    }
}

TestSuite(pending, .init = open_lazy);

static dvmm_capture_mode mode_now(void) {
    dvmm_capture_mode mode = DVMM_CAPTURE_GLOBAL;
    assert_ok(dvmm_capture_exchange_mode(f.allocator->driver, &mode));
    assert_ok(dvmm_capture_exchange_mode(f.allocator->driver, &(dvmm_capture_mode){mode}));
    return mode;
}

/* Both polls, of which one asks about several streams, leave it as the user has it. */
Test(pending, hit_that_asks_restores_the_capture_mode) {
    ductile_addr block[N_OTHERS];
    dvmm_capture_mode mode = DVMM_CAPTURE_THREAD_LOCAL;
    assert_ok(dvmm_capture_exchange_mode(f.allocator->driver, &mode));
    take_many(block, N_OTHERS);
    for (int i = 0; i < N_OTHERS; i++) {
        free_on(block[i], 1 + i);
    }
    for (int i = 0; i < 64; i++) {
        uint64_t before = calls_about_events();
        (void)take(1024, 0);
        cr_assert(i > 0 || calls_about_events() > before, "the first hit asks");
        assert_u64(mode_now(), DVMM_CAPTURE_THREAD_LOCAL);
    }
    close_audited();
}

/* ---- What the host learns between a poll's look at a marker and its question ---------------- */

ductile_status __real_dvmm_marker_query(dvmm_marker_pool *pool, dvmm_marker *marker);
ductile_status __wrap_dvmm_marker_query(dvmm_marker_pool *pool, dvmm_marker *marker);

static bool others_wait;       /* for the first marker that a hit is about to ask about */
static dvmm_marker *overtaken; /* what they wait for once one was found not done; NULL: nothing */

/* As a request that lacks memory waits, in a thread that is in relaxed mode. */
static void *wait_meanwhile(void *marker) {
    dvmm_capture_mode mode = dvmm_capture_relax(f.allocator->driver);
    assert_ok(dvmm_marker_wait(&f.allocator->markers, marker));
    dvmm_capture_restore(f.allocator->driver, mode);
    return NULL;
}

static void have_others_wait(dvmm_marker *marker) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, wait_meanwhile, marker), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

ductile_status __wrap_dvmm_marker_query(dvmm_marker_pool *pool, dvmm_marker *marker) {
    if (others_wait) {
        have_others_wait(marker);
        others_wait = false;
    }
    ductile_status status = __real_dvmm_marker_query(pool, marker);
    if (status == DUCTILE_ERR_NOT_READY && overtaken != NULL) {
        have_others_wait(overtaken);
        overtaken = NULL;
    }
    return status;
}

Test(pending, hit_that_another_wait_overtakes_leaves_captures_whole) {
    ductile_addr block[2];
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    take_many(block, 2);
    for (int i = 0; i < 2; i++) {
        free_on(block[i], 1 + i);
    }
    assert_ok(bench_capture_begin(f.allocator->driver, f.streams[3], DVMM_CAPTURE_GLOBAL));
    others_wait = true;
    (void)take(1024, 0);
    cr_assert(!others_wait, "the hit asked nothing");
    assert_u64(mode_now(), DVMM_CAPTURE_GLOBAL);
    assert_ok(dvmm_capture_status_of(f.allocator->driver, f.streams[3], &status));
    assert_u64(status, DVMM_CAPTURE_ACTIVE);
    assert_ok(bench_capture_end(f.allocator->driver, f.streams[3]));
    close_audited();
}

/* The host has waited for them, and knows. */
Test(pending, hit_that_frees_what_is_known_to_be_done_calls_no_driver) {
    ductile_addr first = take(1024, 0);
    free_on(first, 1);
    assert_u64(dpool_wait_oldest(f.allocator, NULL, UINT64_MAX), 1024);
    dvmm_counters before;
    dvmm_counters after;
    dvmm_get_counters(f.allocator->driver, &before);
    ductile_addr other = take(1024, 0);
    dvmm_get_counters(f.allocator->driver, &after);
    assert_u64(other, first);
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        assert_u64(after.calls[i], before.calls[i]);
    }
    close_audited();
}

/* Whatever else makes it look: here freed dedicated blocks, after each of which it does. */
Test(pending, hit_that_has_to_look_for_another_reason_asks_no_more_often) {
    ductile_addr block = take(1024, 0);
    (void)take(512, 0);
    free_on(block, 1);
    uint64_t before = count("event_query");
    for (int i = 0; i < 64; i++) {
        dti_lock_acquire(&f.allocator->index_lock);
        f.allocator->arenas->calls.maintenance_at = 0; /* as the free of a dedicated block does */
        dti_lock_release(&f.allocator->index_lock);
        (void)take(512, 0);
    }
    /* at the 1st, 2nd, 4th, ... 64th */
    cr_assert_leq(count("event_query") - before, 8);
    close_audited();
}

static dvmm_marker *marker_of_pending(int i) {
    const dpool_use *uses = f.allocator->arenas->pending.list.first;
    for (; i > 0; i--) {
        uses = uses->pending_next;
    }
    return uses->marker;
}

/* Its first look finds one block at work, the second one learns from another thread that all that
 * is left is done. */
Test(pending, hit_that_another_wait_overtakes_reads_on_while_it_finds_done_blocks) {
    enum { FRONT = 16, N_DONE = 7 * FRONT }; /* it reads 16, 32 and 64 */
    static ductile_addr block[N_DONE];
    take_many(block, N_DONE);
    for (int i = 0; i < N_DONE; i++) {
        free_on(block[i], i == 0 || i == FRONT ? 1 : 2);
    }
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[2]));
    overtaken = marker_of_pending(FRONT);
    (void)take(1024, 0);
    cr_assert_null(overtaken, "nothing was found at work");
    assert_u64(pending(), 1); /* the first one, until the next hit */
    close_audited();
}

/* ---- While another thread polls ------------------------------------------------------------ */

/* Holds the pending list out of its arena, as a poll does while it asks the driver. */
typedef struct slow_poll {
    dpool_arena *arena;
    pthread_barrier_t has_taken;
} slow_poll;

static void *poll_slowly(void *arg) {
    slow_poll *p = arg;
    dvmm_capture_mode mode = dpool_grow_lock(f.allocator);
    uint64_t context_epoch;
    dpool_pending_list waiting = dpool_pending_take(f.allocator, p->arena, &context_epoch);
    (void)pthread_barrier_wait(&p->has_taken);
    const struct timespec moment = {.tv_nsec = 50000000};
    (void)nanosleep(&moment, NULL);
    dpool_pending_put_back(f.allocator, p->arena, waiting);
    dpool_grow_unlock(f.allocator, mode);
    return NULL;
}

Test(pending, blocks_that_another_thread_polls_are_counted_and_waited_for) {
    slow_poll p;
    pthread_t thread;
    free_on(take(2 * MIB, 0), 1);
    p.arena = f.allocator->arenas;
    cr_assert_eq(pthread_barrier_init(&p.has_taken, NULL, 2), 0);
    cr_assert_eq(pthread_create(&thread, NULL, poll_slowly, &p), 0);
    (void)pthread_barrier_wait(&p.has_taken);
    assert_u64(dpool_count_pending_marks(f.allocator), 1);
    assert_u64(dpool_wait_oldest(f.allocator, NULL, UINT64_MAX), 2 * MIB);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    (void)pthread_barrier_destroy(&p.has_taken);
    close_audited();
}
