/* SPDX-License-Identifier: Apache-2.0 */
/* Markers: what they cost, and that an event is recorded again only when nothing refers to it. What
 * they prove is in tests/scenarios/proof.txt, and how they fail in faults.txt. */
#include "tests/support/rig.h"

#include "vmm/marker.h"

static rig r;
static dvmm_marker_pool pool;
static ductile_stream stream;

static void open_pool(void) {
    rig_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    dvmm_markers_init(&pool, r.d);
    stream = rig_stream(&r);
}

static void close_pool(void) {
    assert_ok(dvmm_context_sync(r.d));
    assert_ok(dvmm_markers_fini(&pool));
    assert_ok(dvmm_stream_destroy(r.d, stream));
    rig_close(&r);
}

TestSuite(marker, .init = open_pool, .fini = close_pool);

static dvmm_marker *record(void) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record(&pool, stream, &m));
    return m;
}

static void drop(dvmm_marker *m) {
    dvmm_marker_drop(&pool, m);
}

static uint64_t count(const char *call) {
    return ductile_virtual_count(r.gpu, call);
}

Test(marker, known_to_be_done_is_asked_no_more) {
    dvmm_marker *m = record();
    assert_ok(dvmm_marker_wait(&pool, m));
    uint64_t calls = rig_state(&r).calls;
    assert_ok(dvmm_marker_query(&pool, m));
    assert_ok(dvmm_marker_wait(&pool, m));
    assert_ok(dvmm_marker_wait_on(&pool, stream, m));
    assert_u64(rig_state(&r).calls, calls);
    drop(m);
}

Test(marker, query_that_a_capture_refuses_says_not_yet) {
    dvmm_marker *m = record();
    rig_fail(&r, "event_query", 1, DVMM_CAPTURE_UNSUPPORTED);
    assert_status(dvmm_marker_query(&pool, m), DUCTILE_ERR_NOT_READY);
    cr_assert(!dvmm_marker_is_done(m));
    drop(m);
}

/* ---- The context --------------------------------------------------------------------------- */

static dvmm_marker *record_context(void) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record_context(&pool, &m));
    return m;
}

Test(marker, of_the_context_asks_no_stream_whether_it_is_captured) {
    dvmm_marker *m = record_context();
    assert_u64(count("capture_status"), 0);
    drop(m);
}

Test(marker, of_the_context_is_used_again_like_others) {
    dvmm_marker *m = record_context();
    assert_ok(dvmm_marker_wait(&pool, m));
    drop(m);
    dvmm_marker *again = record();
    cr_assert_eq(m, again);
    cr_assert(!dvmm_marker_is_done(again));
    drop(again);
}

static void expect_no_context_marker(int code, ductile_status expected) {
    dvmm_marker *m = NULL;
    rig_fail(&r, "context_record", 1, code);
    assert_status(dvmm_marker_record_context(&pool, &m), expected);
    cr_assert_null(m);
}

Test(marker, of_the_context_that_is_refused_gives_its_event_back) {
    expect_no_context_marker(DVMM_CAPTURE_UNSUPPORTED, DUCTILE_ERR_CAPTURING);
    expect_no_context_marker(DVMM_NOT_SUPPORTED, DUCTILE_ERR_UNSUPPORTED);
    expect_no_context_marker(DVMM_UNKNOWN, DUCTILE_ERR_DRIVER);
    drop(record_context());
    assert_u64(count("event_create"), 1);
}

/* ---- Events are used again ----------------------------------------------------------------- */

Test(marker, event_is_recorded_again_once_nobody_refers_to_it) {
    dvmm_marker *m = record();
    dvmm_marker_hold(m);
    drop(m);
    dvmm_marker *other = record();
    cr_assert_neq(m->event, other->event, "one reference is left");
    drop(m);
    dvmm_marker *third = record();
    cr_assert_eq(m, third);
    cr_assert(!dvmm_marker_is_done(third), "what it proved before is forgotten");
    assert_u64(count("event_create"), 2);
    drop(other);
    drop(third);
}
