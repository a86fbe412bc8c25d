/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events behind all work of the context: they are done once every stream of this device is done
 * with what it had then, whatever knows the stream, and not before, under every schedule; what the
 * detector takes them for; and what they do to captures.
 */
#include "tests/support/detection.h"

#include <pthread.h>

/* ---- Recording ----------------------------------------------------------------------------- */

static dvmm_event record(void) {
    dvmm_event event = rig_event(&r);
    assert_ok(dvmm_context_record(r.d, event));
    return event;
}

static void is_pending(dvmm_event event) {
    for (int i = 0; i < 40; i++) {
        assert_status(dvmm_event_query(r.d, event), DUCTILE_ERR_NOT_READY);
        ductile_virtual_advance(r.gpu, 1);
    }
}

/* Without waiting, where the schedule lets work go on by itself. */
static void gets_done(dvmm_event event) {
    for (int i = 0; i < 400; i++) {
        ductile_virtual_advance(r.gpu, 1);
        (void)dvmm_event_query(r.d, event);
    }
    assert_ok(dvmm_event_sync(r.d, event));
    assert_ok(dvmm_event_query(r.d, event));
}

/* ---- Work that stays under way until the test lets it go ----------------------------------- */

static uint64_t *word;

static void close_gate(ductile_stream stream) {
    void *memory = NULL;
    if (word == NULL) {
        assert_ok(dvmm_host_alloc(r.d, 4096, &memory));
        word = memory;
    }
    *word = 0;
    assert_ok(dvmm_stream_wait_value(r.d, stream, word, 1));
}

static void open_gate(void) {
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    word = NULL;
}

static void is_held_up_by(ductile_stream stream) {
    close_gate(stream);
    dvmm_event event = record();
    is_pending(event);
    open_gate();
    gets_done(event);
}

/* ---- What it waits for --------------------------------------------------------------------- */

CLAIM(context_event, waits_for_each_stream) {
    is_held_up_by(s1);
    is_held_up_by(s3);
}

CLAIM(context_event, waits_for_the_default_streams) {
    is_held_up_by(NULL);
    is_held_up_by((ductile_stream)2);
}

CLAIM(context_event, waits_for_a_blocking_stream) {
    ductile_stream blocking = NULL;
    assert_ok(ductile_virtual_stream_create_blocking(r.gpu, &blocking));
    is_held_up_by(blocking);
}

static void *close_gate_of_own_default_stream(void *unused) {
    close_gate((ductile_stream)2);
    return unused;
}

CLAIM(context_event, waits_for_the_default_stream_of_another_thread) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, close_gate_of_own_default_stream, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    dvmm_event event = record();
    is_pending(event);
    open_gate();
    gets_done(event);
}

CLAIM(context_event, waits_for_a_stream_that_is_gone) {
    close_gate(s1);
    writes(s1, at, BLOCK);
    assert_ok(dvmm_stream_destroy(r.d, s1));
    dvmm_event event = record();
    is_pending(event);
    open_gate();
    gets_done(event);
    saw_nothing();
}

CLAIM(context_event, waits_for_a_graph_under_way) {
    ductile_virtual_graph *graph = NULL;
    assert_ok(ductile_virtual_capture_begin(r.gpu, s2, DUCTILE_CAPTURE_RELAXED));
    writes(s2, at, BLOCK);
    assert_ok(ductile_virtual_capture_end(r.gpu, s2, &graph));
    close_gate(s1);
    assert_ok(ductile_virtual_graph_launch(graph, s1));
    dvmm_event event = record();
    is_pending(event);
    open_gate();
    gets_done(event);
    unmap(at);
    ductile_virtual_graph_destroy(graph);
    saw(DUCTILE_VIOLATION_GRAPH_MEMORY, 1); /* the graph lives, but its work is done */
}

CLAIM(context_event, does_not_wait_for_later_work) {
    writes(s1, at, BLOCK);
    dvmm_event event = record();
    close_gate(s1);
    close_gate(s2);
    gets_done(event);
    open_gate();
}

/* A stream of another device is of another context, unless one of ours waits for it. */
CLAIM(context_event, waits_for_no_other_context) {
    ductile_stream theirs = NULL;
    rig_abandon(&r);
    rig_open_devices(&r, 2);
    s1 = rig_stream(&r);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
    close_gate(theirs);
    gets_done(record());
    order(theirs, s1);
    dvmm_event event = record();
    is_pending(event);
    open_gate();
    gets_done(event);
}

CLAIM(context_event, a_stream_waits_for_it) {
    dvmm_event behind = rig_event(&r);
    close_gate(s1);
    assert_ok(dvmm_stream_wait_event(r.d, s2, record()));
    assert_ok(dvmm_event_record(r.d, behind, s2));
    is_pending(behind);
    open_gate();
    assert_ok(dvmm_stream_sync(r.d, s2));
    assert_ok(dvmm_event_query(r.d, behind));
}

/* Forcing a wait goes through events, streams that wait for them, and events again. */
CLAIM(context_event, waits_for_streams_that_wait_for_others) {
    dvmm_event event = NULL;
    for (int i = 0; i < 5; i++) {
        writes(s1, at, BLOCK);
        event = record();
        assert_ok(dvmm_stream_wait_event(r.d, s2, event));
        writes(s2, at, BLOCK);
        event = record();
        assert_ok(dvmm_stream_wait_event(r.d, s1, event));
    }
    assert_ok(dvmm_event_sync(r.d, event));
    unmap(at);
    saw_nothing();
}

/* As one on an idle stream: its own schedule holds it back, too. */
Test(context_event, of_an_idle_device_is_done_as_its_schedule_says) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_ok(dvmm_event_query(r.d, record()));
    ductile_virtual_set_schedule(r.gpu, DUCTILE_SCHEDULE_LAGGING, 3);
    dvmm_event event = record();
    ductile_virtual_advance(r.gpu, 2);
    assert_status(dvmm_event_query(r.d, event), DUCTILE_ERR_NOT_READY);
    ductile_virtual_advance(r.gpu, 1);
    assert_ok(dvmm_event_query(r.d, event));
    ductile_virtual_set_schedule(r.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    event = record();
    is_pending(event);
    assert_ok(dvmm_event_sync(r.d, event));
    rig_abandon(&r);
}

Test(context_event, of_many_streams_is_done_as_soon_as_the_dice_say_so_of_each) {
    enum { N = 64, ROLLS = 400 };
    open_detecting(DUCTILE_SCHEDULE_RANDOM);
    for (int i = 0; i < N; i++) {
        writes(rig_stream(&r), at + (uint64_t)i * BLOCK, BLOCK);
    }
    dvmm_event event = record();
    int n = 0;
    while (dvmm_event_query(r.d, event) == DUCTILE_ERR_NOT_READY) {
        cr_assert(n++ < ROLLS, "not done after %d queries", n);
    }
    cr_expect_gt(n, 1, "64 streams were done at once");
    rig_abandon(&r);
}

/* ---- What it proves ------------------------------------------------------------------------ */

CLAIM(context_event, once_done_all_streams_memory_may_be_unmapped) {
    writes(s1, at, BLOCK);
    writes(s2, at + BLOCK, BLOCK);
    writes(NULL, at + 2 * BLOCK, BLOCK);
    assert_ok(dvmm_stream_destroy(r.d, s1));
    assert_ok(dvmm_event_sync(r.d, record()));
    unmap(at);
    saw_nothing();
}

CLAIM(context_event, recorded_and_not_known_to_be_done_proves_nothing) {
    writes(s1, at, BLOCK);
    (void)record();
    ductile_virtual_advance(r.gpu, 1000);
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

CLAIM(context_event, once_done_memory_is_used_again_by_any_stream) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    assert_ok(dvmm_event_sync(r.d, record()));
    writes(s2, at, BLOCK);
    saw_nothing();
}

CLAIM(context_event, recorded_before_the_last_use_proves_nothing_of_it) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    dvmm_event event = record();
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    assert_ok(dvmm_event_sync(r.d, event));
    writes(s2, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(context_event, a_wait_on_the_device_orders_after_all_streams) {
    begin(at, BLOCK);
    begin(at + BLOCK, BLOCK);
    writes(s1, at, BLOCK);
    writes(s3, at + BLOCK, BLOCK);
    hand_over(at, BLOCK);
    hand_over(at + BLOCK, BLOCK);
    assert_ok(dvmm_stream_wait_event(r.d, s2, record()));
    writes(s2, at, BLOCK);
    writes(s2, at + BLOCK, BLOCK);
    saw_nothing();
}

CLAIM(context_event, a_wait_of_one_stream_orders_no_other) {
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    hand_over(at, BLOCK);
    assert_ok(dvmm_stream_wait_event(r.d, s2, record()));
    writes(s3, at, BLOCK);
    saw_one(DUCTILE_VIOLATION_REUSE);
}

CLAIM(context_event, work_of_another_device_is_not_proven) {
    static const int both[] = {0, 1};
    ductile_stream theirs = NULL;
    rig_abandon(&r);
    rig_open_devices(&r, 2);
    at = rig_row(&r, 1);
    assert_ok(dvmm_set_access_for(r.d, at, r.granule, DVMM_ACCESS_RW, both, 2));
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
    writes(theirs, at, BLOCK);
    assert_ok(dvmm_event_sync(r.d, record()));
    unmap(at);
    saw_one(DUCTILE_VIOLATION_EARLY_UNMAP);
}

/* ---- Captures ------------------------------------------------------------------------------ */

/* One record beside a capture of s1, in the capture's thread or in another. */
typedef struct attempt {
    bool is_relaxed;
    int code;
} attempt;

Test(context_event, leaves_captures_of_another_device_alone) {
    ductile_stream theirs = NULL;
    rig_open_devices(&r, 2);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
    assert_ok(dvmm_capture_begin(r.d, theirs, DVMM_CAPTURE_GLOBAL));
    assert_ok(dvmm_context_record(r.d, rig_event(&r)));
    assert_ok(dvmm_capture_end(r.d, theirs));
    rig_abandon(&r);
}

/* What it stood for before stays: a refusal proves nothing. */
CLAIM(context_event, keeps_its_recording_when_a_capture_refuses_a_new_one) {
    dvmm_event event = rig_event(&r);
    close_gate(s2);
    assert_ok(dvmm_event_record(r.d, event, s2));
    assert_ok(dvmm_capture_begin(r.d, s1, DVMM_CAPTURE_RELAXED));
    assert_status(dvmm_context_record(r.d, event), DUCTILE_ERR_CAPTURING);
    assert_code(RAW(&r, capture_end, s1), DVMM_CAPTURE_INVALIDATED);
    is_pending(event);
    open_gate();
    gets_done(event);
}

/* ---- The call ------------------------------------------------------------------------------ */

Test(context_event, is_unsupported_on_a_driver_that_lacks_it) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    rig_open(&r, &options);
    cr_assert(dvmm_has_context_events(r.d));
    rig_abandon(&r);
    options.no_context_events = 1;
    rig_open(&r, &options);
    cr_assert(!dvmm_has_context_events(r.d));
    assert_status(dvmm_context_record(r.d, rig_event(&r)), DUCTILE_ERR_UNSUPPORTED);
    rig_abandon(&r);
}

Test(context_event, of_no_event_is_a_misuse) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_code(RAW(&r, context_record, (dvmm_event)&r), DVMM_INVALID_HANDLE);
    saw_one(DUCTILE_VIOLATION_MISUSE);
    rig_abandon(&r);
}

Test(context_event, costs_what_was_measured) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    dvmm_event event = rig_event(&r);
    uint64_t before = dvmm_clock_ns(r.d);
    assert_ok(dvmm_context_record(r.d, event));
    assert_u64(dvmm_clock_ns(r.d) - before, 200);
    rig_abandon(&r);
}

Test(context_event, fails_as_planned_and_then_proves_nothing) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof(fault), .call = "context_record", .nth = 2, .code = DVMM_UNKNOWN};
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    dvmm_event event = record();
    assert_status(dvmm_context_record(r.d, event), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 1);
    rig_abandon(&r);
}
