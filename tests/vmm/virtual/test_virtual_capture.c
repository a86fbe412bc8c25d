/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures on the virtual GPU beyond what the rows of tests/conformance state, which are held to an
 * H200: which calls break a capture, in which mode, from which thread, and how it begins and ends.
 */
#include "tests/support/rig.h"

#include <pthread.h>

static rig r;
static ductile_stream captured, other;

static void open_rig(void) {
    rig_open(&r, NULL);
    captured = rig_stream(&r);
    other = rig_stream(&r);
}

static void close_rig(void) {
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

static void *wait_as_thread_local(void *code) {
    dvmm_capture_mode mode = DVMM_CAPTURE_THREAD_LOCAL;
    (void)RAW(&r, capture_exchange_mode, &mode);
    *(int *)code = RAW(&r, stream_sync, other);
    return NULL;
}

Test(virtual_capture, a_thread_local_thread_ignores_other_captures) {
    int code = -1;
    pthread_t thread;
    begin(DVMM_CAPTURE_GLOBAL);
    cr_assert_eq(pthread_create(&thread, NULL, wait_as_thread_local, &code), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_code(code, DVMM_SUCCESS);
    assert_unharmed();
}

Test(virtual_capture, a_captured_default_stream_silences_the_legacy_one) {
    ductile_stream per_thread = (ductile_stream)(uintptr_t)2;
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    assert_ok(dvmm_capture_begin(r.d, per_thread, DVMM_CAPTURE_RELAXED));
    assert_code(RAW(&r, capture_status, NULL, &status), DVMM_CAPTURE_IMPLICIT);
    assert_u64(status_of(per_thread), DVMM_CAPTURE_ACTIVE);
    assert_ok(dvmm_capture_end(r.d, per_thread));
}

Test(virtual_capture, a_captured_blocking_stream_silences_the_legacy_one) {
    ductile_addr addr = rig_row(&r, 1);
    ductile_stream blocking = NULL;
    assert_ok(ductile_virtual_stream_create_blocking(r.gpu, &blocking));
    assert_ok(dvmm_capture_begin(r.d, blocking, DVMM_CAPTURE_RELAXED));
    assert_code(RAW(&r, fill, addr, 1, 512, NULL), DVMM_CAPTURE_IMPLICIT);
    assert_code(RAW(&r, capture_end, blocking), DVMM_CAPTURE_INVALIDATED);
    assert_ok(dvmm_stream_destroy(r.d, blocking));
    rig_unrow(&r, addr, 1);
}

Test(virtual_capture, exchanging_to_a_mode_that_does_not_exist_is_a_violation) {
    dvmm_capture_mode mode = (dvmm_capture_mode)7;
    assert_code(RAW(&r, capture_exchange_mode, &mode), DVMM_SUCCESS);
    assert_u64(rig_state(&r).violations, 1);
}
