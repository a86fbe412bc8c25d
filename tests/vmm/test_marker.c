/* SPDX-License-Identifier: Apache-2.0 */
/* Markers: what is asked of the driver, and when an event is recorded again. What they prove is in
 * tests/scenarios/proof.txt, and how they fail in faults.txt. */
#include "vmm/marker.h"

#include "tests/support/device_fixture.h"

static device_fixture r;
static dvmm_marker_pool markers;
static ductile_stream stream;

static void open_markers(void) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 3, 11);
    dvmm_markers_init(&markers, r.d);
    stream = device_stream(&r);
}

static void close_markers(void) {
    device_recover(&r);
    assert_ok(dvmm_context_sync(r.d));
    assert_ok(dvmm_markers_fini(&markers));
    assert_ok(dvmm_stream_destroy(r.d, stream));
    device_close(&r);
}

TestSuite(marker, .init = open_markers, .fini = close_markers);

static dvmm_marker *record(void) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record(&markers, stream, &m));
    cr_assert_not_null(m);
    return m;
}

static dvmm_marker *record_context(void) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record_context(&markers, &m));
    cr_assert_not_null(m);
    return m;
}

static void assert_refused(int code, ductile_status status) {
    dvmm_marker *m = NULL;
    device_fail(&r, "context_record", 1, code);
    assert_status(dvmm_marker_record_context(&markers, &m), status);
    cr_assert_null(m);
}

static void drop(dvmm_marker *m) {
    dvmm_marker_drop(&markers, m);
}

/* ---- What is asked ------------------------------------------------------------------------- */

Test(marker, that_is_known_to_be_done_is_asked_no_more) {
    dvmm_marker *m = record();
    assert_ok(dvmm_marker_wait(&markers, m));
    uint64_t calls = device_state(&r).calls;
    assert_ok(dvmm_marker_query(&markers, m));
    assert_ok(dvmm_marker_wait(&markers, m));
    assert_ok(dvmm_marker_wait_on(&markers, stream, m));
    assert_u64(device_state(&r).calls, calls);
    drop(m);
}

Test(marker, is_not_done_where_a_capture_refuses_the_query) {
    dvmm_marker *m = record();
    device_fail(&r, "event_query", 1, DVMM_CAPTURE_UNSUPPORTED);
    assert_status(dvmm_marker_query(&markers, m), DUCTILE_ERR_NOT_READY);
    cr_assert_not(dvmm_marker_is_done(m));
    drop(m);
}

Test(marker, of_the_context_asks_no_stream_whether_it_is_captured) {
    drop(record_context());
    assert_called(&r, "capture_status", 0);
}

/* ---- Events that are recorded again -------------------------------------------------------- */

Test(marker, of_the_context_is_used_again_like_others) {
    dvmm_marker *first = record_context();
    assert_ok(dvmm_marker_wait(&markers, first));
    drop(first);
    dvmm_marker *second = record();
    cr_assert_eq(second, first);
    cr_assert_not(dvmm_marker_is_done(second));
    drop(second);
}

Test(marker, of_the_context_that_is_refused_gives_its_event_back) {
    assert_refused(DVMM_CAPTURE_UNSUPPORTED, DUCTILE_ERR_CAPTURING);
    assert_refused(DVMM_NOT_SUPPORTED, DUCTILE_ERR_UNSUPPORTED);
    assert_refused(DVMM_UNKNOWN, DUCTILE_ERR_DRIVER);
    drop(record_context());
    assert_called(&r, "event_create", 1);
}

Test(marker, is_recorded_again_once_nothing_refers_to_it_and_proves_nothing_of_before) {
    dvmm_marker *first = record();
    dvmm_marker_hold(first);
    drop(first);
    dvmm_marker *second = record();
    cr_assert_neq(second->event, first->event);
    drop(first);
    dvmm_marker *third = record();
    cr_assert_eq(third, first);
    cr_assert_not(dvmm_marker_is_done(third));
    assert_called(&r, "event_create", 2);
    drop(second);
    drop(third);
}
