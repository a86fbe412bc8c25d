/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about captures themselves: beginning, forking, joining, ending, and what stays of them. */
#include "tests/conformance/conformance_lab.h"

#define ROWS capture_life_rows
lab_rows capture_life_rows;

static const char *status_of(lab *l, ductile_stream stream) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    int code = CALL(l, capture_status, stream, &status);
    return code == DVMM_SUCCESS ? capture_word(status) : dvmm_code_name(code);
}

ROW("capture.begin_twice", "begin a second time") {
    ductile_stream stream = new_stream(l);
    say(l, CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    say(l, CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    note(l, "%s", status_of(l, stream));
    say(l, CALL(l, capture_end, stream));
}

ROW("capture.begin_legacy", "capture the legacy stream") {
    int code = say(l, CALL(l, capture_begin, NULL, DVMM_CAPTURE_GLOBAL));
    if (code == DVMM_SUCCESS) {
        say(l, CALL(l, capture_end, NULL));
    }
}

ROW("capture.begin_bad_mode", "begin in a mode that does not exist") {
    ductile_stream stream = new_stream(l);
    if (say(l, CALL(l, capture_begin, stream, (dvmm_capture_mode)7)) == DVMM_SUCCESS) {
        say(l, CALL(l, capture_end, stream));
    }
}

ROW("capture.end_without_begin", "end what was not begun") {
    say(l, CALL(l, capture_end, new_stream(l)));
}

typedef struct ending {
    lab *l;
    ductile_stream stream;
} ending;

static void end_capture(void *argument) {
    const ending *e = argument;
    say(e->l, CALL(e->l, capture_end, e->stream));
}

static void end_elsewhere(lab *l, const conformance_row *row) {
    ending e = {l, new_stream(l)};
    say(l, CALL(l, capture_begin, e.stream, (dvmm_capture_mode)row->mode));
    on_other_thread(l, end_capture, &e);
    note(l, "%s", status_of(l, e.stream));
    (void)CALL(l, capture_end, e.stream);
}

ADD_ROW("capture.end_elsewhere.global", "begin here, end in another thread", end_elsewhere, 0, 0,
        DVMM_CAPTURE_GLOBAL)
ADD_ROW("capture.end_elsewhere.thread", "begin here, end in another thread", end_elsewhere, 0, 0,
        DVMM_CAPTURE_THREAD_LOCAL)
ADD_ROW("capture.end_elsewhere.relaxed", "begin here, end in another thread", end_elsewhere, 0, 0,
        DVMM_CAPTURE_RELAXED)

/* An event of a capture, asked after the capture has ended and its graph is gone. */
ROW("capture.event_after", "query, sync, wait, record, sync, query") {
    ductile_stream stream = new_stream(l);
    ductile_stream other = new_stream(l);
    dvmm_event event = new_event(l);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    need(l, "record", CALL(l, event_record, event, stream));
    need(l, "end", CALL(l, capture_end, stream));
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, stream_wait_event, other, event));
    say(l, CALL(l, event_record, event, other));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
}

/* Waiting for a captured event draws the waiter into the capture. */
ROW("capture.wait_joins", "fork to a second stream and join it") {
    ductile_stream stream = new_stream(l);
    ductile_stream joined = new_stream(l);
    dvmm_event fork = new_event(l);
    dvmm_event join = new_event(l);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    need(l, "record", CALL(l, event_record, fork, stream));
    say(l, CALL(l, stream_wait_event, joined, fork));
    note(l, "waiter %s", status_of(l, joined));
    say(l, CALL(l, event_record, join, joined));
    say(l, CALL(l, stream_wait_event, stream, join));
    say(l, CALL(l, capture_end, stream));
    note(l, "then %s", status_of(l, joined));
}

ROW("capture.wait_without_join", "fork to a second stream, end") {
    ductile_stream stream = new_stream(l);
    ductile_stream joined = new_stream(l);
    dvmm_event fork = new_event(l);
    ductile_addr addr = mapped(l, 1, NULL);
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    need(l, "record", CALL(l, event_record, fork, stream));
    say(l, CALL(l, stream_wait_event, joined, fork));
    say(l, CALL(l, fill, addr, 1, 4096, joined));
    say(l, CALL(l, capture_end, stream));
    note(l, "then %s", status_of(l, joined));
}

/* Captured work is not done: the contents stay as they were. */
ROW("capture.work_is_not_done", "fill in a capture, read after it") {
    ductile_stream stream = new_stream(l);
    ductile_addr addr = mapped(l, 1, NULL);
    uint8_t seen = 0;
    need(l, "fill", CALL(l, fill, addr, 1, l->granule, stream));
    need(l, "sync", CALL(l, stream_sync, stream));
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_RELAXED));
    say(l, CALL(l, fill, addr, 2, l->granule, stream));
    say(l, CALL(l, capture_end, stream));
    say(l, CALL(l, read_back, &seen, addr, 1, stream));
    note(l, "byte=%u", seen);
}

ROW("capture.exchange_modes", "to relaxed, to global, to none there is") {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    say(l, CALL(l, capture_exchange_mode, &mode));
    note(l, "was %d", (int)mode);
    mode = DVMM_CAPTURE_GLOBAL;
    say(l, CALL(l, capture_exchange_mode, &mode));
    note(l, "was %d", (int)mode);
    mode = (dvmm_capture_mode)7;
    say(l, CALL(l, capture_exchange_mode, &mode));
    mode = DVMM_CAPTURE_GLOBAL;
    (void)CALL(l, capture_exchange_mode, &mode);
}

ROW_IN_OWN_PROCESS("capture.destroy_captured", "destroy a captured stream, then query") {
    ductile_stream stream = new_stream(l);
    ductile_stream other = new_stream(l);
    dvmm_event event = new_event(l);
    need(l, "record", CALL(l, event_record, event, other));
    need(l, "begin", CALL(l, capture_begin, stream, DVMM_CAPTURE_GLOBAL));
    say(l, CALL(l, stream_destroy, stream));
    forget_stream(l, stream);
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, stream_sync, other));
}
