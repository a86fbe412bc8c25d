/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows about events behind all work of the context: what they wait for, and what they do to
 * captures. What they do to a capture in each mode is a row of conformance_capture.c.
 *
 * An event that covers less than expected gets done a moment after its record, not at once: so an
 * answer counts once the device has had time for it.
 */
#include "tests/conformance/lab_outside.h"

#include <time.h>

#define ROWS context_rows
lab_rows context_rows;

#define PER_THREAD_STREAM ((ductile_stream)2)

enum { TRIES = 50 };

/* Says whether the event is done, after it has had time to be. */
static void say_whether_done(lab *l, dvmm_event event) {
    const struct timespec moment = {.tv_nsec = 1000000};
    int code = DVMM_NOT_READY;
    for (int i = 0; i < TRIES && code == DVMM_NOT_READY; i++) {
        code = CALL(l, event_query, event);
        (void)nanosleep(&moment, NULL);
    }
    say(l, code);
}

static void open_word(uint64_t *word) {
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
}

/* Work of the stream that waits for the word. */
static uint64_t *hold(lab *l, ductile_stream stream) {
    uint64_t *word = new_host_word(l);
    ductile_addr addr = mapped(l, 1, NULL);
    need(l, "wait_value", CALL(l, stream_wait_value, stream, word, 1));
    need(l, "fill", CALL(l, fill, addr, 1, l->granule, stream));
    return word;
}

static dvmm_event recorded(lab *l) {
    dvmm_event event = new_event(l);
    say(l, CALL(l, context_record, event));
    return event;
}

/* Whether the event is done before the word is written, and that it is afterwards. */
static void say_what_ends_it(lab *l, dvmm_event event, uint64_t *word) {
    say_whether_done(l, event);
    open_word(word);
    say(l, CALL(l, event_sync, event));
}

/* Whether a new event is held up until the word is written. */
static void say_whether_held_up(lab *l, uint64_t *word) {
    dvmm_event event = recorded(l);
    say_what_ends_it(l, event, word);
    say(l, CALL(l, event_query, event));
}

/* ---- What it waits for --------------------------------------------------------------------- */

ROW("context.idle", "record, sync, query") {
    dvmm_event event = recorded(l);
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
}

ROW_OF("context.stream", "behind work of a stream", say_whether_held_up(l, hold(l, new_stream(l))))
ROW_OF("context.blocking_stream", "behind work of a blocking stream",
       say_whether_held_up(l, hold(l, new_blocking_stream(l))))
ROW_OF("context.legacy_stream", "behind work of the legacy stream",
       say_whether_held_up(l, hold(l, NULL)))
ROW_OF("context.per_thread_stream", "behind work of a per-thread stream",
       say_whether_held_up(l, hold(l, PER_THREAD_STREAM)))

ROW("context.destroyed_stream", "behind work of a destroyed stream") {
    ductile_stream stream = new_stream(l);
    uint64_t *word = hold(l, stream);
    need(l, "stream_destroy", CALL(l, stream_destroy, stream));
    forget_stream(l, stream);
    say_whether_held_up(l, word);
}

ROW("context.host_function", "behind a host function") {
    uint64_t *word = new_host_word(l);
    hold_by_host_function(l, new_stream(l), word);
    say_whether_held_up(l, word);
}

ROW("context.graph_under_way", "behind a graph that was launched") {
    uint64_t *word = new_host_word(l);
    ductile_addr addr = mapped(l, 1, NULL);
    ductile_stream captured = new_stream(l);
    need(l, "begin", CALL(l, capture_begin, captured, DVMM_CAPTURE_RELAXED));
    hold_by_host_function(l, captured, word);
    need(l, "fill", CALL(l, fill, addr, 1, l->granule, captured));
    void *graph = end_capture_as_graph(l, captured);
    launch_graph(l, graph, new_stream(l));
    say_whether_held_up(l, word);
    destroy_graph(l, graph);
}

/* One thread's stream, another thread's record. */
typedef struct other_record {
    lab *l;
    uint64_t *word;
} other_record;

static void record_there(void *argument) {
    const other_record *o = argument;
    say_whether_held_up(o->l, o->word);
}

ROW("context.of_other_thread", "record in a new thread, work in this one") {
    other_record o = {l, hold(l, PER_THREAD_STREAM)};
    on_other_thread(l, record_there, &o);
}

ROW("context.later_work", "record, then more work, then query") {
    dvmm_event event = recorded(l);
    uint64_t *word = hold(l, new_stream(l));
    say_whether_done(l, event);
    open_word(word);
}

ROW("context.stream_waits", "a stream waits for it") {
    ductile_stream waiter = new_stream(l);
    dvmm_event behind = new_event(l);
    uint64_t *word = hold(l, new_stream(l));
    dvmm_event event = recorded(l);
    say(l, CALL(l, stream_wait_event, waiter, event));
    need(l, "record", CALL(l, event_record, behind, waiter));
    say_what_ends_it(l, behind, word);
    say(l, CALL(l, event_query, event));
}

ROW("context.recorded_again", "record, more work, record again") {
    dvmm_event event = recorded(l);
    uint64_t *word = hold(l, new_stream(l));
    say(l, CALL(l, context_record, event));
    say_what_ends_it(l, event, word);
}

/* ---- Captures ------------------------------------------------------------------------------ */

static void note_status(lab *l, ductile_stream stream) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    need(l, "status", CALL(l, capture_status, stream, &status));
    note(l, "%s", capture_word(status));
}

ROW("context.beside_two_captures", "record while two streams are captured") {
    ductile_stream one = new_stream(l);
    ductile_stream two = new_stream(l);
    need(l, "begin", CALL(l, capture_begin, one, DVMM_CAPTURE_RELAXED));
    need(l, "begin", CALL(l, capture_begin, two, DVMM_CAPTURE_THREAD_LOCAL));
    (void)recorded(l);
    note_status(l, one);
    note_status(l, two);
    say(l, CALL(l, capture_end, one));
    say(l, CALL(l, capture_end, two));
}

ROW("context.beside_broken_capture", "record beside a broken capture, and after") {
    ductile_stream stream = new_stream(l);
    dvmm_event event = new_event(l);
    need(l, "record", CALL(l, event_record, event, new_stream(l)));
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    say(l, CALL(l, event_query, event));
    (void)recorded(l);
    say(l, CALL(l, capture_end, stream));
    (void)recorded(l);
}

/* Asking about one beside a capture is as asking about any other event. */
ROW("context.queried_beside_capture", "query in a relaxed thread, under way and done") {
    ductile_stream stream = new_stream(l);
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    uint64_t *word = hold(l, new_stream(l));
    dvmm_event event = recorded(l);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    need(l, "exchange", CALL(l, capture_exchange_mode, &mode));
    say_what_ends_it(l, event, word);
    say(l, CALL(l, event_query, event));
    need(l, "exchange", CALL(l, capture_exchange_mode, &mode));
    say(l, CALL(l, capture_end, stream));
}

ROW("context.waited_for_in_capture", "a captured stream waits for it") {
    ductile_stream stream = new_stream(l);
    dvmm_event event = recorded(l);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_RELAXED));
    say(l, CALL(l, stream_wait_event, stream, event));
    say(l, CALL(l, capture_end, stream));
}

/* ---- Other contexts ------------------------------------------------------------------------ */

static void work_elsewhere(lab *l, const conformance_row *row) {
    uint64_t *word = new_host_word(l);
    elsewhere e = open_elsewhere(l, row->subject != 0);
    note(l, "context=%s", context_word(l, &e));
    hold_elsewhere(l, &e, word);
    dvmm_event event = recorded(l);
    say_what_ends_it(l, event, word);
    if (e.stream != NULL) {
        need(l, "sync", CALL(l, stream_sync, e.stream));
    }
    close_elsewhere(l, &e);
}

static void capture_elsewhere(lab *l, const conformance_row *row) {
    elsewhere e = open_elsewhere(l, row->subject != 0);
    begin_capture_elsewhere(l, &e);
    (void)recorded(l);
    say(l, end_capture_elsewhere(l, &e));
    close_elsewhere(l, &e);
}

/* ---- Whose a stream is ---------------------------------------------------------------------- */

static void say_whether_ours(lab *l, ductile_stream stream) {
    int is_ours = -1;
    say(l, CALL(l, stream_is_ours, stream, &is_ours));
    note(l, "%s", is_ours == 1 ? "ours" : is_ours == 0 ? "not-ours" : "no-answer");
}

ROW_OF("context.ours.legacy_stream", "is the legacy stream ours", say_whether_ours(l, NULL))
ROW_OF("context.ours.per_thread_stream", "is the per-thread stream ours",
       say_whether_ours(l, PER_THREAD_STREAM))
ROW_OF("context.ours.blocking_stream", "is a blocking stream ours",
       say_whether_ours(l, new_blocking_stream(l)))
ROW_OF("context.ours.stream", "is a non-blocking stream ours", say_whether_ours(l, new_stream(l)))

ROW("context.ours.captured_stream", "is a captured stream ours") {
    ductile_stream stream = new_stream(l);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    say_whether_ours(l, stream);
    say(l, CALL(l, capture_end, stream));
}

static void elsewhere_is_ours(lab *l, const conformance_row *row) {
    elsewhere e = open_elsewhere(l, row->subject != 0);
    if (e.stream != NULL) {
        say_whether_ours(l, e.stream);
    }
    close_elsewhere(l, &e);
}

ADD_ROW("context.elsewhere.ours_own", "is another context's stream ours", elsewhere_is_ours,
        ROW_ALONE, 0, 0)
ADD_ROW("context.elsewhere.ours_green", "is a green context's stream ours", elsewhere_is_ours,
        ROW_ALONE, 1, 0)
ADD_ROW("context.elsewhere.own", "beside work of another context", work_elsewhere, ROW_ALONE, 0, 0)
ADD_ROW("context.elsewhere.green", "beside work of a green context", work_elsewhere, ROW_ALONE, 1,
        0)
ADD_ROW("context.elsewhere.capture_own", "while another context's stream is captured",
        capture_elsewhere, ROW_ALONE, 0, 0)
ADD_ROW("context.elsewhere.capture_green", "while a green context's stream is captured",
        capture_elsewhere, ROW_ALONE, 1, 0)
