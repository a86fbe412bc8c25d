/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the seam counts is exact with many threads, of which some have ended, and with several
 * devices between which each goes to and fro.
 */
#include "tests/support/rig.h"

#include <pthread.h>

enum { N_THREADS = 37, N_ROUNDS = 2000, N_DEVICES = 2, CALL_NS = 1000 };

/* ---- A backend whose clock is that of the thread ------------------------------------------- */

static _Thread_local uint64_t clock_ns;
static _Thread_local int code;

static int answer(void) {
    clock_ns += CALL_NS;
    return code;
}

static void answer_close(void *ctx) {
    (void)ctx;
}

static uint64_t answer_clock(void *ctx) {
    (void)ctx;
    return clock_ns;
}

static int answer_event(void *ctx, dvmm_event event) {
    (void)ctx, (void)event;
    return answer();
}

static int answer_record(void *ctx, dvmm_event event, ductile_stream stream) {
    (void)ctx, (void)event, (void)stream;
    return answer();
}

static const dvmm_driver_ops answers = {.close = answer_close,
                                        .clock_ns = answer_clock,
                                        .event_query = answer_event,
                                        .event_sync = answer_event,
                                        .event_record = answer_record};

static dvmm_driver *devices[N_DEVICES];
static pthread_barrier_t all_ready;

static void open_devices(void) {
    dvmm_caps caps = {.granule_bytes = 2 << 20};
    for (int i = 0; i < N_DEVICES; i++) {
        assert_ok(dvmm_driver_new(&answers, NULL, &caps, &devices[i]));
        dvmm_time_calls(devices[i]);
    }
}

static void close_devices(void) {
    for (int i = 0; i < N_DEVICES; i++) {
        dvmm_close(devices[i]);
    }
}

TestSuite(driver_counts, .init = open_devices, .fini = close_devices);

/* ---- Many threads -------------------------------------------------------------------------- */

/* In each round and on each device: a query, one not answered yet, a wait that fails, and a record.
 */
static void *make_calls(void *user) {
    const dvmm_event event = (dvmm_event)(uintptr_t)64;
    (void)user;
    (void)pthread_barrier_wait(&all_ready);
    for (int i = 0; i < N_ROUNDS * N_DEVICES; i++) {
        dvmm_driver *d = devices[i % N_DEVICES];
        code = DVMM_SUCCESS;
        (void)dvmm_event_query(d, event);
        (void)dvmm_event_record(d, event, NULL);
        code = DVMM_NOT_READY;
        (void)dvmm_event_query(d, event);
        (void)dvmm_event_sync(d, event);
    }
    return NULL;
}

static dvmm_counters counters_of(const dvmm_driver *d) {
    dvmm_counters c;
    dvmm_get_counters(d, &c);
    return c;
}

static void assert_counts(const dvmm_driver *d, uint64_t n_threads) {
    uint64_t n = n_threads * N_ROUNDS;
    dvmm_counters c = counters_of(d);
    assert_u64(c.calls[DVMM_CALL_event_query], 2 * n);
    assert_u64(c.calls[DVMM_CALL_event_sync], n);
    assert_u64(c.calls[DVMM_CALL_event_record], n);
    assert_u64(c.failures[DVMM_CALL_event_query], 0);
    assert_u64(c.failures[DVMM_CALL_event_sync], n);
    assert_u64(c.driver_time_ns, 4 * n * CALL_NS);
}

/* What was counted never becomes less. */
static void watch(uint64_t until) {
    dvmm_counters before = counters_of(devices[0]);
    while (before.calls[DVMM_CALL_event_sync] < until) {
        dvmm_counters now = counters_of(devices[0]);
        for (int i = 0; i < DVMM_N_CALLS; i++) {
            cr_assert_geq(now.calls[i], before.calls[i]);
        }
        cr_assert_geq(now.host_time_ns, before.host_time_ns);
        before = now;
    }
}

static void run_wave(uint64_t n_before) {
    pthread_t threads[N_THREADS];
    cr_assert_eq(pthread_barrier_init(&all_ready, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, make_calls, NULL), 0);
    }
    watch((n_before + N_THREADS) * N_ROUNDS);
    for (int i = 0; i < N_THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    (void)pthread_barrier_destroy(&all_ready);
}

Test(driver_counts, are_exact_for_many_threads_and_for_those_that_ended) {
    for (uint64_t wave = 0; wave < 3; wave++) {
        run_wave(wave * N_THREADS);
        for (int i = 0; i < N_DEVICES; i++) {
            assert_counts(devices[i], (wave + 1) * N_THREADS);
        }
    }
}

/* A device is opened where another one was: its counts begin at nothing. */
Test(driver_counts, of_a_device_opened_anew_begin_at_nothing) {
    run_wave(0);
    close_devices();
    open_devices();
    run_wave(0);
    assert_counts(devices[0], N_THREADS);
}
