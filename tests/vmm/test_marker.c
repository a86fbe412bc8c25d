/* SPDX-License-Identifier: Apache-2.0 */
/* Markers: they prove what they were recorded behind and nothing else, and an event is recorded
 * again only when nothing refers to it. Work completes when the test waits for it. */
#include "tests/support/rig.h"

#include "vmm/capture_mode.h"
#include "vmm/marker.h"

static rig r;
static dvmm_marker_pool pool;
static ductile_addr memory;
static ductile_stream stream;

static void open_pool(void) {
    rig_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    dvmm_markers_init(&pool, r.d);
    memory = rig_row(&r, 1);
    stream = rig_stream(&r);
}

static void close_pool(void) {
    assert_ok(dvmm_context_sync(r.d));
    assert_ok(dvmm_markers_fini(&pool));
    assert_ok(dvmm_stream_destroy(r.d, stream));
    rig_unrow(&r, memory, 1);
    rig_close(&r);
}

TestSuite(marker, .init = open_pool, .fini = close_pool);

static void issue_work(void) {
    assert_ok(dvmm_fill(r.d, memory, 1, r.granule, stream));
}

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

static void fail(const char *call, int code) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof(fault), .call = call, .nth = 1, .code = code};
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
}

/* ---- Proof --------------------------------------------------------------------------------- */

Test(marker, is_done_only_when_the_work_before_it_is) {
    issue_work();
    dvmm_marker *m = record();
    assert_status(dvmm_marker_query(&pool, m), DUCTILE_ERR_NOT_READY);
    cr_assert(!dvmm_marker_is_done(m));
    assert_ok(dvmm_marker_wait(&pool, m));
    cr_assert(dvmm_marker_is_done(m));
    drop(m);
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

Test(marker, wait_that_fails_proves_nothing) {
    issue_work();
    dvmm_marker *m = record();
    fail("event_sync", DVMM_UNKNOWN);
    assert_status(dvmm_marker_wait(&pool, m), DUCTILE_ERR_DRIVER);
    cr_assert(!dvmm_marker_is_done(m));
    drop(m);
}

Test(marker, query_that_a_capture_refuses_says_not_yet) {
    dvmm_marker *m = record();
    fail("event_query", DVMM_CAPTURE_UNSUPPORTED);
    assert_status(dvmm_marker_query(&pool, m), DUCTILE_ERR_NOT_READY);
    cr_assert(!dvmm_marker_is_done(m));
    drop(m);
}

Test(marker, wait_on_another_stream_is_made_on_the_gpu) {
    ductile_stream other = rig_stream(&r);
    issue_work();
    dvmm_marker *m = record();
    uint64_t syncs = count("event_sync");
    assert_ok(dvmm_marker_wait_on(&pool, other, m));
    assert_u64(count("stream_wait_event"), 1);
    assert_u64(count("event_sync"), syncs);
    drop(m);
    assert_ok(dvmm_stream_destroy(r.d, other));
}

/* ---- The context --------------------------------------------------------------------------- */

static dvmm_marker *record_context(void) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record_context(&pool, &m));
    return m;
}

Test(marker, of_the_context_is_done_only_when_all_streams_are) {
    ductile_stream other = rig_stream(&r);
    issue_work();
    dvmm_marker *m = record_context();
    assert_ok(dvmm_stream_sync(r.d, other));
    assert_status(dvmm_marker_query(&pool, m), DUCTILE_ERR_NOT_READY);
    assert_ok(dvmm_marker_wait(&pool, m));
    assert_ok(dvmm_stream_query(r.d, stream));
    drop(m);
    assert_ok(dvmm_stream_destroy(r.d, other));
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
    fail("context_record", code);
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

/* ---- Captures ------------------------------------------------------------------------------ */

Test(marker, nothing_is_recorded_or_created_on_a_captured_stream) {
    dvmm_marker *m = NULL;
    assert_ok(dvmm_capture_begin(r.d, stream, DVMM_CAPTURE_RELAXED));
    assert_status(dvmm_marker_record(&pool, stream, &m), DUCTILE_ERR_CAPTURING);
    cr_assert_null(m);
    assert_u64(count("event_create") + count("event_record"), 0);
    assert_ok(dvmm_capture_end(r.d, stream));
}

Test(marker, nothing_is_recorded_where_the_capture_cannot_be_asked_about) {
    dvmm_marker *m = NULL;
    fail("capture_status", DVMM_UNKNOWN);
    assert_status(dvmm_marker_record(&pool, stream, &m), DUCTILE_ERR_CAPTURING);
    cr_assert_null(m);
    assert_u64(count("event_record"), 0);
}

Test(marker, captured_stream_is_never_made_to_wait) {
    ductile_stream other = rig_stream(&r);
    issue_work();
    dvmm_marker *m = record();
    assert_ok(dvmm_capture_begin(r.d, other, DVMM_CAPTURE_RELAXED));
    dvmm_capture_mode mode = dvmm_capture_relax(r.d);
    assert_status(dvmm_marker_wait_on(&pool, other, m), DUCTILE_ERR_CAPTURING);
    dvmm_capture_restore(r.d, mode);
    assert_u64(count("stream_wait_event"), 0);
    assert_ok(dvmm_capture_end(r.d, other));
    drop(m);
    assert_ok(dvmm_stream_destroy(r.d, other));
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

Test(marker, record_that_fails_gives_its_event_back) {
    dvmm_marker *m = NULL;
    fail("event_record", DVMM_UNKNOWN);
    assert_status(dvmm_marker_record(&pool, stream, &m), DUCTILE_ERR_DRIVER);
    cr_assert_null(m);
    drop(record());
    assert_u64(count("event_create"), 1);
}

Test(marker, event_that_cannot_be_created_leaves_nothing) {
    dvmm_marker *m = NULL;
    fail("event_create", DVMM_OUT_OF_MEMORY);
    assert_status(dvmm_marker_record(&pool, stream, &m), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_null(m);
    drop(record());
}

/* The driver may destroy an event and complain all the same. */
Test(marker, fini_destroys_the_rest_and_returns_the_first_error) {
    dvmm_marker *m[2] = {record(), record()};
    ductile_virtual_fault fault = {.struct_size = sizeof(fault),
                                   .call = "event_destroy",
                                   .nth = 1,
                                   .code = DVMM_UNKNOWN,
                                   .effect = 1};
    drop(m[0]);
    drop(m[1]);
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    assert_status(dvmm_markers_fini(&pool), DUCTILE_ERR_DRIVER);
    assert_u64(count("event_destroy"), 2);
}
