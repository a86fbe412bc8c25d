/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam around a backend that does what the test tells it: every wrapper makes its call once,
 * with what it was given, and hands back what it got; nothing is called any more after a sticky
 * error, in a child of fork, or once the process exits.
 */
#include "tests/support/device_fixture.h"
#include "tests/support/in_child.h"
#include "vmm/base/check.h"
#include "vmm/base/lock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALL_NS = 1000 };

/* ---- A backend of answers ------------------------------------------------------------------ */

/* What the backend will answer, and what it was asked, of each thread. */
static _Thread_local struct {
    int code;
    uint64_t n_calls;
    uint64_t n_closed;
    uint64_t clock;
} told;

static int answer(void) {
    told.n_calls++;
    told.clock += CALL_NS;
    return told.code;
}

static void answer_close(void *ctx) {
    (void)ctx;
    told.n_closed++;
}

static uint64_t answer_clock(void *ctx) {
    (void)ctx;
    return told.clock;
}

static int answer_reserve(void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint,
                          ductile_addr *out) {
    (void)ctx, (void)size, (void)alignment, (void)hint;
    *out = 64 << 20;
    return answer();
}

static int answer_create(void *ctx, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out) {
    (void)ctx, (void)size, (void)props;
    *out = 7;
    return answer();
}

static int answer_span(void *ctx, ductile_addr addr, uint64_t size) {
    (void)ctx, (void)addr, (void)size;
    return answer();
}

static int answer_query(void *ctx, dvmm_event event) {
    (void)ctx, (void)event;
    return answer();
}

static int answer_record(void *ctx, dvmm_event event, ductile_stream stream) {
    (void)ctx, (void)event, (void)stream;
    return answer();
}

static int answer_stream(void *ctx, ductile_stream stream) {
    (void)ctx, (void)stream;
    return answer();
}

static int answer_batch(void *ctx, dvmm_batch *batch, ductile_stream stream) {
    (void)ctx, (void)batch, (void)stream;
    return answer();
}

static int answer_status(void *ctx, ductile_stream stream, dvmm_capture_status *out) {
    (void)ctx, (void)stream;
    *out = DVMM_CAPTURE_NONE;
    return answer();
}

static int answer_exchange(void *ctx, dvmm_capture_mode *mode) {
    (void)ctx;
    *mode = DVMM_CAPTURE_THREAD_LOCAL;
    return answer();
}

static const dvmm_driver_ops answers = {.close = answer_close,
                                        .clock_ns = answer_clock,
                                        .address_reserve = answer_reserve,
                                        .address_free = answer_span,
                                        .phys_create = answer_create,
                                        .unmap = answer_span,
                                        .event_query = answer_query,
                                        .event_sync = answer_query,
                                        .event_record = answer_record,
                                        .stream_sync = answer_stream,
                                        .copy_batch = answer_batch,
                                        .capture_status = answer_status,
                                        .capture_exchange_mode = answer_exchange};

static const uint64_t GRANULE = 2 << 20;

static dvmm_driver *d;

static void open_answers(void) {
    dvmm_caps caps = {.granule_bytes = GRANULE};
    assert_ok(dvmm_driver_new(&answers, NULL, &caps, &d));
}

static void close_answers(void) {
    dvmm_close(d);
}

TestSuite(driver, .init = open_answers, .fini = close_answers);

#define EVENT ((dvmm_event)(uintptr_t)64)

static ductile_status ask_event(int code) {
    told.code = code;
    return dvmm_event_query(d, EVENT);
}

static dvmm_counters counters_of(const dvmm_driver *of) {
    dvmm_counters c;
    dvmm_get_counters(of, &c);
    return c;
}

/* ---- Codes --------------------------------------------------------------------------------- */

Test(driver, codes_have_statuses) {
    assert_u64(dvmm_status_of(DVMM_SUCCESS), DUCTILE_OK);
    assert_u64(dvmm_status_of(DVMM_INVALID_VALUE), DUCTILE_ERR_DRIVER);
    assert_u64(dvmm_status_of(DVMM_OUT_OF_MEMORY), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(dvmm_status_of(DVMM_DEINITIALIZED), DUCTILE_ERR_EXITING);
    assert_u64(dvmm_status_of(DVMM_NOT_READY), DUCTILE_ERR_NOT_READY);
    assert_u64(dvmm_status_of(DVMM_ILLEGAL_ADDRESS), DUCTILE_ERR_DEVICE_LOST);
    assert_u64(dvmm_status_of(DVMM_NOT_SUPPORTED), DUCTILE_ERR_UNSUPPORTED);
    assert_u64(dvmm_status_of(DVMM_CAPTURE_UNSUPPORTED), DUCTILE_ERR_CAPTURING);
    assert_u64(dvmm_status_of(12345), DUCTILE_ERR_DRIVER);
}

Test(driver, codes_and_calls_have_names) {
    cr_assert_str_eq(dvmm_code_name(DVMM_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
    cr_assert_str_eq(dvmm_code_name(0), "CUDA_SUCCESS");
    cr_assert_not_null(dvmm_code_name(12345));
    cr_assert_str_eq(dvmm_call_name(DVMM_CALL_phys_create), "phys_create");
    cr_assert_not_null(dvmm_call_name(DVMM_N_CALLS));
}

Test(driver, running_out_of_addresses_is_no_lack_of_memory) {
    ductile_addr addr = 1;
    dvmm_phys phys = 1;
    dvmm_phys_props props = {0};
    told.code = DVMM_OUT_OF_MEMORY;
    assert_status(dvmm_address_reserve(d, GRANULE, &addr), DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_status(dvmm_phys_create(d, GRANULE, &props, &phys), DUCTILE_ERR_OUT_OF_MEMORY);
}

/* ---- Outputs ------------------------------------------------------------------------------- */

Test(driver, who_cannot_tell_is_capturing) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    told.code = DVMM_CAPTURE_IMPLICIT;
    assert_status(dvmm_capture_status_of(d, NULL, &status), DUCTILE_ERR_CAPTURING);
    cr_assert_neq(status, DVMM_CAPTURE_NONE);
    (void)ask_event(DVMM_ILLEGAL_ADDRESS);
    status = DVMM_CAPTURE_NONE;
    assert_status(dvmm_capture_status_of(d, NULL, &status), DUCTILE_ERR_DEVICE_LOST);
    cr_assert_neq(status, DVMM_CAPTURE_NONE);
}

Test(driver, a_failed_exchange_leaves_the_mode) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    told.code = DVMM_INVALID_VALUE;
    assert_status(dvmm_capture_exchange_mode(d, &mode), DUCTILE_ERR_DRIVER);
    assert_u64(mode, DVMM_CAPTURE_RELAXED);
    told.code = DVMM_SUCCESS;
    assert_ok(dvmm_capture_exchange_mode(d, &mode));
    assert_u64(mode, DVMM_CAPTURE_THREAD_LOCAL);
}

/* ---- Counters ------------------------------------------------------------------------------ */

Test(driver, calls_and_failures_are_counted) {
    (void)ask_event(DVMM_SUCCESS);
    (void)ask_event(DVMM_INVALID_VALUE);
    cr_assert_eq(dvmm_last_code(), DVMM_INVALID_VALUE);
    dvmm_counters c = counters_of(d);
    assert_u64(c.calls[DVMM_CALL_event_query], 2);
    assert_u64(c.failures[DVMM_CALL_event_query], 1);
    assert_u64(c.driver_time_ns + c.host_time_ns, 0);
}

Test(driver, calls_are_timed_once_asked_for) {
    dvmm_time_calls(d);
    (void)ask_event(DVMM_SUCCESS);
    (void)ask_event(DVMM_INVALID_VALUE);
    dvmm_counters c = counters_of(d);
    assert_u64(c.driver_time_ns, 2 * CALL_NS);
    cr_assert_gt(c.host_time_ns, 0);
}

/* A millisecond is far more than a reading of the clock takes anywhere. */
Test(driver, what_timing_takes_is_measured_before_the_first_call) {
    dvmm_time_calls(d);
    uint64_t ns = atomic_load(&d->timing_ns);
    cr_assert_lt(ns, 1000 * 1000, "%llu ns", (unsigned long long)ns);
}

Test(driver, not_ready_answers_a_query_and_fails_other_calls) {
    assert_status(ask_event(DVMM_NOT_READY), DUCTILE_ERR_NOT_READY);
    assert_status(dvmm_stream_sync(d, NULL), DUCTILE_ERR_NOT_READY);
    dvmm_counters c = counters_of(d);
    assert_u64(c.failures[DVMM_CALL_event_query], 0);
    assert_u64(c.failures[DVMM_CALL_stream_sync], 1);
}

typedef struct trace_notes {
    uint64_t n;
    dvmm_call call;
    int code;
    uint64_t address, size;
} trace_notes;

static void note_trace(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    trace_notes *notes = user;
    *notes = (trace_notes){notes->n + 1, call, code, address, size};
}

Test(driver, failures_are_traced_with_their_operands) {
    trace_notes notes = {0};
    dvmm_set_trace(d, note_trace, &notes, false);
    assert_ok(dvmm_unmap(d, 4 * GRANULE, GRANULE));
    assert_u64(notes.n, 0);
    told.code = DVMM_NOT_PERMITTED;
    assert_status(dvmm_unmap(d, 5 * GRANULE, GRANULE), DUCTILE_ERR_DRIVER);
    assert_u64(notes.n, 1);
    assert_u64(notes.call, DVMM_CALL_unmap);
    cr_assert_eq(notes.code, DVMM_NOT_PERMITTED);
    assert_u64(notes.address, 5 * GRANULE);
    assert_u64(notes.size, GRANULE);
}

Test(driver, all_calls_are_traced_when_asked) {
    trace_notes notes = {0};
    dvmm_set_trace(d, note_trace, &notes, true);
    assert_ok(dvmm_unmap(d, 4 * GRANULE, GRANULE));
    dvmm_set_trace(d, NULL, NULL, false);
    assert_ok(dvmm_unmap(d, 4 * GRANULE, GRANULE));
    assert_u64(notes.n, 1);
}

/* ---- Many threads, of which some have ended, and several devices ---------------------------- */

enum { N_THREADS = 37, N_ROUNDS = 2000, N_DEVICES = 2 };

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

/* In each round and on each device: a query, one not answered yet,
 * a wait that fails, and a record. */
static void *make_calls(void *user) {
    (void)user;
    (void)pthread_barrier_wait(&all_ready);
    for (int i = 0; i < N_ROUNDS * N_DEVICES; i++) {
        dvmm_driver *of = devices[i % N_DEVICES];
        told.code = DVMM_SUCCESS;
        (void)dvmm_event_query(of, EVENT);
        (void)dvmm_event_record(of, EVENT, NULL);
        told.code = DVMM_NOT_READY;
        (void)dvmm_event_query(of, EVENT);
        (void)dvmm_event_sync(of, EVENT);
    }
    return NULL;
}

static void assert_counts(const dvmm_driver *of, uint64_t n_threads) {
    uint64_t n = n_threads * N_ROUNDS;
    dvmm_counters c = counters_of(of);
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

/* ---- When nothing may be called ------------------------------------------------------------ */

Test(driver, a_sticky_error_ends_all_calls) {
    static const int sticky[] = {214, 220, 226, 700, 702, 709, 710, 714,
                                 715, 716, 717, 718, 719, 721, 810, 911};
    for (size_t i = 0; i < sizeof(sticky) / sizeof(sticky[0]); i++) {
        close_answers();
        open_answers();
        assert_status(ask_event(sticky[i]), DUCTILE_ERR_DEVICE_LOST);
        uint64_t n_before = told.n_calls;
        assert_status(ask_event(DVMM_SUCCESS), DUCTILE_ERR_DEVICE_LOST);
        assert_u64(told.n_calls, n_before);
        cr_assert_eq(dvmm_last_code(), sticky[i]);
    }
}

Test(driver, other_errors_end_nothing) {
    static const int passing[] = {1, 2, 201, 400, 500, 701, 800, 801, 900, 907, 999, 12345};
    for (size_t i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
        cr_assert_neq(ask_event(passing[i]), DUCTILE_OK);
        assert_ok(ask_event(DVMM_SUCCESS));
    }
}

Test(driver, a_driver_that_is_going_down_is_exit) {
    assert_status(ask_event(DVMM_DEINITIALIZED), DUCTILE_ERR_EXITING);
    assert_status(ask_event(DVMM_SUCCESS), DUCTILE_ERR_EXITING);
    assert_status(dvmm_usable(d), DUCTILE_ERR_EXITING);
}

Test(driver, a_poisoned_device_is_still_closed) {
    (void)ask_event(DVMM_ILLEGAL_ADDRESS);
    dvmm_close(d);
    assert_u64(told.n_closed, 1);
    open_answers();
}

static int child_calls_nothing(void) {
    uint64_t n_before = told.n_calls;
    bool refused = ask_event(DVMM_SUCCESS) == DUCTILE_ERR_FORKED;
    dvmm_close(d);
    return refused && told.n_calls == n_before && told.n_closed == 0 ? 0 : 1;
}

Test(driver, a_forked_child_calls_nothing) {
    assert_ok(ask_event(DVMM_SUCCESS));
    assert_u64((unsigned)in_child(child_calls_nothing), 0);
    assert_ok(ask_event(DVMM_SUCCESS));
}

static int child_opens_its_own(void) {
    open_answers();
    return ask_event(DVMM_SUCCESS) == DUCTILE_OK ? 0 : 1;
}

Test(driver, a_forked_child_may_open_its_own) {
    assert_u64((unsigned)in_child(child_opens_its_own), 0);
}

/* Registered before the seam's own handler, so it runs after it. */
static void ask_at_exit(void) {
    uint64_t n_before = told.n_calls;
    bool refused = ask_event(DVMM_SUCCESS) == DUCTILE_ERR_EXITING;
    dvmm_close(d);
    _exit(refused && told.n_calls == n_before && told.n_closed == 0 ? 42 : 1);
}

Test(driver_exit, nothing_is_called_once_exit_has_begun, .exit_code = 42) {
    cr_assert_eq(atexit(ask_at_exit), 0);
    open_answers();
    assert_ok(ask_event(DVMM_SUCCESS));
    exit(0);
}

/* ---- Checks -------------------------------------------------------------------------------- */

#if DUCTILE_CHECK >= 1
static unsigned n_failures;

static void count_failure(const dti_failure *failure) {
    (void)failure;
    n_failures++;
}

Test(driver, spans_that_are_no_granules_fail_a_check) {
    dti_set_fail_handler(count_failure);
    (void)dvmm_unmap(d, GRANULE / 2, GRANULE);
    (void)dvmm_unmap(d, GRANULE, GRANULE + 1);
    (void)dvmm_unmap(d, GRANULE, 0);
    assert_u64(n_failures, 3);
}

/* A backend takes no batch on the legacy default stream. */
Test(driver, a_batch_that_is_empty_or_on_the_default_stream_fails_a_check) {
    static dvmm_batch batch = {.n = 1};
    const ductile_stream stream = (ductile_stream)(uintptr_t)64;
    dti_set_fail_handler(count_failure);
    assert_ok(dvmm_copy_batch(d, &batch, stream));
    assert_u64(n_failures, 0);
    (void)dvmm_copy_batch(d, &batch, NULL);
    batch.n = 0;
    (void)dvmm_copy_batch(d, &batch, stream);
    batch.n = DVMM_BATCH_COPIES + 1;
    (void)dvmm_copy_batch(d, &batch, stream);
    assert_u64(n_failures, 3);
}
#endif

#if DUCTILE_CHECK >= 2
Test(driver, a_call_under_the_index_lock_fails_a_check) {
    dti_set_fail_handler(count_failure);
    dti_lock index_lock;
    dti_lock_init(&index_lock, DTI_RANK_INDEX);
    dti_lock_acquire(&index_lock);
    assert_ok(ask_event(DVMM_SUCCESS));
    dti_lock_release(&index_lock);
    assert_u64(n_failures, 1);
}
#endif
