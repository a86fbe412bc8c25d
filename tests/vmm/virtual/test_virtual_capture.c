/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capture on the virtual GPU: which calls break it, in which mode, and who may still call. Mapping
 * memory never does; asking an event does unless the thread said it knows what it is doing.
 */
#include "tests/support/rig.h"

#include <pthread.h>

static rig r;
static ductile_stream captured, other;
static dvmm_event event;

static void open_rig(void) {
    rig_open(&r, NULL);
    captured = rig_stream(&r);
    other = rig_stream(&r);
    event = rig_event(&r);
    assert_ok(dvmm_event_record(r.d, event, other));
}

static void close_rig(void) {
    assert_ok(dvmm_event_destroy(r.d, event));
    assert_ok(dvmm_stream_destroy(r.d, captured));
    assert_ok(dvmm_stream_destroy(r.d, other));
    rig_close(&r);
}

TestSuite(virtual_capture, .init = open_rig, .fini = close_rig);

static dvmm_capture_status status_of(ductile_stream stream) {
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    assert_ok(dvmm_capture_status_of(r.d, stream, &status));
    return status;
}

static void begin(dvmm_capture_mode mode) {
    assert_ok(dvmm_capture_begin(r.d, captured, mode));
    assert_u64(status_of(captured), DVMM_CAPTURE_ACTIVE);
}

static void assert_unharmed(void) {
    assert_u64(status_of(captured), DVMM_CAPTURE_ACTIVE);
    assert_ok(dvmm_capture_end(r.d, captured));
    assert_u64(status_of(captured), DVMM_CAPTURE_NONE);
}

static void assert_broken(void) {
    assert_u64(status_of(captured), DVMM_CAPTURE_BROKEN);
    assert_code(RAW(&r, capture_end, captured), DVMM_CAPTURE_INVALIDATED);
    assert_u64(status_of(captured), DVMM_CAPTURE_NONE);
}

static void exchange(dvmm_capture_mode mode) {
    assert_ok(dvmm_capture_exchange_mode(r.d, &mode));
}

/* ---- What capture allows ------------------------------------------------------------------- */

static void map_in_capture(dvmm_capture_mode mode) {
    begin(mode);
    rig_unrow(&r, rig_row(&r, 3), 3);
    dvmm_event made = rig_event(&r);
    assert_ok(dvmm_event_destroy(r.d, made));
    assert_unharmed();
}

Test(virtual_capture, memory_is_mapped_in_every_mode) {
    map_in_capture(DVMM_CAPTURE_GLOBAL);
    map_in_capture(DVMM_CAPTURE_THREAD_LOCAL);
    map_in_capture(DVMM_CAPTURE_RELAXED);
}

Test(virtual_capture, recorded_work_does_not_run) {
    ductile_addr addr = rig_row(&r, 1);
    uint8_t byte = 9;
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_fill(r.d, addr, 1, 512, captured));
    assert_unharmed();
    assert_ok(dvmm_read_back(r.d, &byte, addr, 1, captured));
    assert_u64(byte, 0);
    rig_unrow(&r, addr, 1);
}

/* ---- What capture prohibits ---------------------------------------------------------------- */

static void assert_query_breaks(dvmm_capture_mode mode) {
    begin(mode);
    assert_code(RAW(&r, event_query, event), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
}

Test(virtual_capture, a_query_of_any_event_breaks_it) {
    assert_query_breaks(DVMM_CAPTURE_GLOBAL);
    assert_query_breaks(DVMM_CAPTURE_THREAD_LOCAL);
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_query(r.d, event));
    assert_unharmed();
}

Test(virtual_capture, a_relaxed_thread_may_query) {
    begin(DVMM_CAPTURE_GLOBAL);
    exchange(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_query(r.d, event));
    assert_ok(dvmm_stream_sync(r.d, other));
    exchange(DVMM_CAPTURE_GLOBAL);
    assert_unharmed();
}

Test(virtual_capture, waits_and_allocations_break_it) {
    ductile_addr addr = 0;
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(RAW(&r, mem_alloc, 512, &addr), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(RAW(&r, event_sync, event), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(RAW(&r, stream_sync, other), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
    begin(DVMM_CAPTURE_GLOBAL);
    void *host = NULL;
    assert_code(RAW(&r, host_alloc, 8, &host), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
}

/* No mode, of the capture or of the thread, makes it legal. */
static void assert_always_prohibited(dvmm_capture_mode mode) {
    exchange(DVMM_CAPTURE_RELAXED);
    begin(mode);
    assert_code(r.ops->context_sync(r.ctx), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
    exchange(DVMM_CAPTURE_GLOBAL);
}

Test(virtual_capture, a_wait_for_the_context_always_breaks_it) {
    assert_always_prohibited(DVMM_CAPTURE_GLOBAL);
    assert_always_prohibited(DVMM_CAPTURE_THREAD_LOCAL);
    assert_always_prohibited(DVMM_CAPTURE_RELAXED);
}

Test(virtual_capture, the_captured_stream_is_never_waited_for) {
    begin(DVMM_CAPTURE_RELAXED);
    exchange(DVMM_CAPTURE_RELAXED);
    assert_code(RAW(&r, stream_sync, captured), DVMM_CAPTURE_UNSUPPORTED);
    exchange(DVMM_CAPTURE_GLOBAL);
    assert_broken();
}

Test(virtual_capture, asking_a_captured_event_breaks_it) {
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_record(r.d, event, captured));
    assert_code(RAW(&r, event_query, event), DVMM_CAPTURED_EVENT);
    assert_broken();
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_record(r.d, event, captured));
    assert_code(RAW(&r, event_sync, event), DVMM_CAPTURED_EVENT);
    assert_broken();
}

Test(virtual_capture, an_event_of_a_graph_that_is_gone_means_nothing) {
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_record(r.d, event, captured));
    assert_unharmed();
    assert_code(RAW(&r, event_query, event), DVMM_INVALID_VALUE);
    assert_code(RAW(&r, event_sync, event), DVMM_INVALID_VALUE);
    assert_code(RAW(&r, stream_wait_event, other, event), DVMM_INVALID_VALUE);
    assert_ok(dvmm_event_record(r.d, event, other));
    assert_ok(dvmm_event_query(r.d, event));
}

/* ---- Threads ------------------------------------------------------------------------------- */

/* What another thread was answered. */
typedef struct question {
    dvmm_capture_mode mode;
    int code;
} question;

static void *ask(void *argument) {
    question *q = argument;
    dvmm_capture_mode mode = q->mode;
    (void)RAW(&r, capture_exchange_mode, &mode);
    q->code = RAW(&r, event_query, event);
    return NULL;
}

static int code_in_other_thread(dvmm_capture_mode mode) {
    question q = {.mode = mode, .code = -1};
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, ask, &q), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    return q.code;
}

Test(virtual_capture, a_global_capture_bars_other_threads) {
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(code_in_other_thread(DVMM_CAPTURE_GLOBAL), DVMM_CAPTURE_UNSUPPORTED);
    assert_broken();
}

Test(virtual_capture, a_thread_local_capture_bars_its_own_thread_only) {
    begin(DVMM_CAPTURE_THREAD_LOCAL);
    assert_code(code_in_other_thread(DVMM_CAPTURE_GLOBAL), DVMM_SUCCESS);
    assert_unharmed();
}

Test(virtual_capture, a_thread_local_thread_ignores_other_captures) {
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(code_in_other_thread(DVMM_CAPTURE_THREAD_LOCAL), DVMM_SUCCESS);
    assert_unharmed();
}

static void *end_elsewhere(void *out) {
    *(int *)out = RAW(&r, capture_end, captured);
    return NULL;
}

Test(virtual_capture, a_capture_ended_in_another_thread_is_lost) {
    int code = -1;
    pthread_t thread;
    begin(DVMM_CAPTURE_GLOBAL);
    cr_assert_eq(pthread_create(&thread, NULL, end_elsewhere, &code), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_code(code, DVMM_CAPTURE_WRONG_THREAD);
    assert_u64(status_of(captured), DVMM_CAPTURE_NONE);
}

/* ---- Begin, join, end ---------------------------------------------------------------------- */

Test(virtual_capture, the_legacy_stream_is_not_captured) {
    assert_code(RAW(&r, capture_begin, NULL, DVMM_CAPTURE_GLOBAL), DVMM_CAPTURE_UNSUPPORTED);
    assert_u64(status_of(NULL), DVMM_CAPTURE_NONE);
}

Test(virtual_capture, begin_and_end_come_in_pairs) {
    assert_code(RAW(&r, capture_end, captured), DVMM_ILLEGAL_STATE);
    begin(DVMM_CAPTURE_GLOBAL);
    assert_code(RAW(&r, capture_begin, captured, DVMM_CAPTURE_GLOBAL), DVMM_ILLEGAL_STATE);
    assert_unharmed();
}

Test(virtual_capture, a_stream_that_waits_for_a_capture_joins_it) {
    dvmm_event fork = rig_event(&r);
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_record(r.d, fork, captured));
    assert_ok(dvmm_stream_wait_event(r.d, other, fork));
    assert_u64(status_of(other), DVMM_CAPTURE_ACTIVE);
    assert_unharmed();
    assert_u64(status_of(other), DVMM_CAPTURE_NONE);
    assert_ok(dvmm_event_destroy(r.d, fork));
}

/* Work on `other`, which has joined; then, or not, the captured stream waits for it. */
static void fork_and_work(bool joins) {
    dvmm_event fork = rig_event(&r);
    dvmm_event join = rig_event(&r);
    begin(DVMM_CAPTURE_RELAXED);
    assert_ok(dvmm_event_record(r.d, fork, captured));
    assert_ok(dvmm_stream_wait_event(r.d, other, fork));
    assert_ok(dvmm_event_record(r.d, join, other));
    assert_ok(dvmm_stream_wait_event(r.d, captured, join));
    assert_ok(ductile_virtual_launch(r.gpu, other, NULL, 0));
    if (joins) {
        assert_ok(dvmm_event_record(r.d, join, other));
        assert_ok(dvmm_stream_wait_event(r.d, captured, join));
    }
    assert_ok(dvmm_event_destroy(r.d, fork));
    assert_ok(dvmm_event_destroy(r.d, join));
}

Test(virtual_capture, work_of_a_stream_that_joined_has_to_be_joined_back) {
    fork_and_work(true);
    assert_unharmed();
    fork_and_work(false);
    assert_code(RAW(&r, capture_end, captured), DVMM_CAPTURE_UNJOINED);
    assert_u64(status_of(captured), DVMM_CAPTURE_NONE);
    assert_u64(status_of(other), DVMM_CAPTURE_NONE);
}

Test(virtual_capture, a_captured_stream_waits_for_nothing_outside) {
    begin(DVMM_CAPTURE_RELAXED);
    assert_code(RAW(&r, stream_wait_event, captured, event), DVMM_CAPTURE_ISOLATION);
    assert_broken();
}

Test(virtual_capture, a_captured_default_stream_silences_the_legacy_one) {
    ductile_stream per_thread = (ductile_stream)(uintptr_t)2;
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    assert_ok(dvmm_capture_begin(r.d, per_thread, DVMM_CAPTURE_RELAXED));
    assert_code(RAW(&r, capture_status, NULL, &status), DVMM_CAPTURE_IMPLICIT);
    assert_u64(status_of(per_thread), DVMM_CAPTURE_ACTIVE);
    assert_ok(dvmm_capture_end(r.d, per_thread));
}

Test(virtual_capture, a_destroyed_stream_takes_its_capture_along) {
    ductile_stream gone = rig_stream(&r);
    assert_ok(dvmm_capture_begin(r.d, gone, DVMM_CAPTURE_GLOBAL));
    assert_ok(dvmm_stream_destroy(r.d, gone));
    assert_ok(dvmm_event_query(r.d, event));
}

Test(virtual_capture, a_mode_that_does_not_exist_begins_nothing) {
    dvmm_capture_mode mode = (dvmm_capture_mode)7;
    assert_code(RAW(&r, capture_exchange_mode, &mode), DVMM_SUCCESS);
    assert_u64(mode, DVMM_CAPTURE_GLOBAL);
    assert_u64(rig_state(&r).violations, 1);
    assert_code(RAW(&r, capture_begin, captured, (dvmm_capture_mode)7), DVMM_INVALID_VALUE);
}
