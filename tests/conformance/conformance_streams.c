/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows about streams and events. Work that stays under way for as long as an experiment needs is
 * a stream that waits for a word of host memory, which the experiment writes in the end.
 */
#include "tests/conformance/conformance_lab.h"

#include <string.h>

#define ROWS stream_rows
lab_rows stream_rows;

/* ---- Work under way ------------------------------------------------------------------------ */

typedef struct gate {
    ductile_stream stream;
    uint64_t *word;
} gate;

/* Everything issued to the stream from now on waits for open_gate. */
static gate closed_gate(lab *l) {
    gate g = {.stream = new_stream(l), .word = new_host_word(l)};
    need(l, "wait_value", CALL(l, stream_wait_value, g.stream, g.word, 1));
    return g;
}

static void open_gate(const gate *g) {
    __atomic_store_n(g->word, 1, __ATOMIC_SEQ_CST);
}

/* ---- Events -------------------------------------------------------------------------------- */

ROW("event.never_recorded", "query, sync, wait, drain") {
    dvmm_event event = new_event(l);
    ductile_stream stream = new_stream(l);
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, stream_wait_event, stream, event));
    say(l, CALL(l, stream_sync, stream));
}

ROW("event.idle_stream", "record, sync, query") {
    dvmm_event event = new_event(l);
    ductile_stream stream = new_stream(l);
    say(l, CALL(l, event_record, event, stream));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
}

ROW("event.legacy_stream", "record on NULL, sync, query, query NULL") {
    dvmm_event event = new_event(l);
    say(l, CALL(l, event_record, event, NULL));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, stream_query, NULL));
}

ROW("event.under_way", "record, query twice, finish, query again") {
    gate g = closed_gate(l);
    dvmm_event event = new_event(l);
    say(l, CALL(l, event_record, event, g.stream));
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, stream_query, g.stream));
    open_gate(&g);
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, stream_sync, g.stream));
    say(l, CALL(l, stream_query, g.stream));
}

/* Recording again replaces the point that is waited for, also while the first is under way. */
ROW("event.recorded_again", "record under way, then on an idle stream") {
    gate g = closed_gate(l);
    dvmm_event event = new_event(l);
    ductile_stream idle = new_stream(l);
    say(l, CALL(l, event_record, event, g.stream));
    say(l, CALL(l, event_record, event, idle));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
    open_gate(&g);
}

/* A wait keeps the point it saw: recording the event again elsewhere does not free the waiter. */
ROW("event.wait_keeps_its_point", "wait, record elsewhere, query the waiter") {
    gate g = closed_gate(l);
    dvmm_event event = new_event(l);
    ductile_stream waiter = new_stream(l);
    ductile_stream idle = new_stream(l);
    need(l, "record", CALL(l, event_record, event, g.stream));
    say(l, CALL(l, stream_wait_event, waiter, event));
    say(l, CALL(l, event_record, event, idle));
    say(l, CALL(l, stream_query, waiter));
    open_gate(&g);
    say(l, CALL(l, stream_sync, waiter));
}

ROW("event.destroyed_under_way", "wait, destroy, query the waiter") {
    gate g = closed_gate(l);
    dvmm_event event = new_event(l);
    ductile_stream waiter = new_stream(l);
    need(l, "record", CALL(l, event_record, event, g.stream));
    say(l, CALL(l, stream_wait_event, waiter, event));
    say(l, CALL(l, event_destroy, event));
    forget_event(l, event);
    say(l, CALL(l, stream_query, waiter));
    open_gate(&g);
    say(l, CALL(l, stream_sync, waiter));
}

/* ---- Streams ------------------------------------------------------------------------------- */

ROW("stream.destroyed_under_way", "record, destroy, query, finish") {
    gate g = closed_gate(l);
    dvmm_event event = new_event(l);
    need(l, "record", CALL(l, event_record, event, g.stream));
    say(l, CALL(l, stream_destroy, g.stream));
    forget_stream(l, g.stream);
    say(l, CALL(l, event_query, event));
    open_gate(&g);
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
}

ROW("stream.order", "fill, upload, copy, read back") {
    dvmm_phys phys;
    ductile_addr addr = mapped(l, 1, &phys);
    ductile_stream stream = new_stream(l);
    uint8_t seen[2] = {0, 0};
    const uint8_t sent[2] = {7, 9};
    say(l, CALL(l, fill, addr, 1, l->granule, stream));
    say(l, CALL(l, upload, addr + 100, sent, 2, stream));
    say(l, CALL(l, copy, addr + 4096, addr + 100, 2, stream));
    say(l, CALL(l, read_back, seen, addr + 4096, 2, stream));
    note(l, "bytes=%u,%u", seen[0], seen[1]);
}

/* Two copies to the device and two back, each way in one call, behind a fill. */
ROW("stream.batch", "fill, a batch in, a batch out") {
    dvmm_phys phys;
    ductile_addr addr = mapped(l, 1, &phys);
    ductile_stream stream = new_stream(l);
    uint64_t *sent = new_host_word(l);
    uint64_t *got = new_host_word(l);
    ductile_addr from = (ductile_addr)(uintptr_t)sent;
    ductile_addr to = (ductile_addr)(uintptr_t)got;
    dvmm_batch in = {.bytes = 4,
                     .n = 2,
                     .device = {addr + 100, addr + 4096},
                     .host = {from, from + 2},
                     .sizes = {2, 2}};
    dvmm_batch out = {.bytes = 4,
                      .n = 2,
                      .is_out = true,
                      .device = {addr + 4096, addr + 101},
                      .host = {to, to + 2},
                      .sizes = {2, 2}};
    memcpy(sent, (const uint8_t[]){7, 9, 11, 13}, 4);
    say(l, CALL(l, fill, addr, 1, l->granule, stream));
    say(l, CALL(l, copy_batch, &in, stream));
    say(l, CALL(l, copy_batch, &out, stream));
    say(l, CALL(l, stream_sync, stream));
    const uint8_t *seen = (const uint8_t *)got;
    note(l, "bytes=%u,%u,%u,%u", seen[0], seen[1], seen[2], seen[3]);
}

/* Two addresses of one handle are one memory. */
ROW("stream.alias", "write by one address, read by the other") {
    dvmm_phys phys;
    ductile_addr first = mapped(l, 1, &phys);
    ductile_addr second = reserve(l, 1);
    map(l, second, 1, phys);
    open_access(l, second, 1);
    ductile_stream stream = new_stream(l);
    uint8_t seen = 0;
    say(l, CALL(l, fill, first, 3, l->granule, stream));
    say(l, CALL(l, read_back, &seen, second + 77, 1, stream));
    note(l, "by second=%u", seen);
    say(l, CALL(l, fill, second, 4, l->granule, stream));
    say(l, CALL(l, read_back, &seen, first + 77, 1, stream));
    note(l, "by first=%u", seen);
}

ROW("stream.fill_zero_bytes", "fill and copy 0 bytes") {
    ductile_addr addr = mapped(l, 1, NULL);
    ductile_stream stream = new_stream(l);
    say(l, CALL(l, fill, addr, 1, 0, stream));
    say(l, CALL(l, copy, addr, addr + 512, 0, stream));
    say(l, CALL(l, stream_sync, stream));
}

/* Mapping calls do not wait for work: all of them return while a stream is held up. */
ROW("stream.memory_while_work", "all mapping calls beside work that waits") {
    ductile_addr busy = mapped(l, 1, NULL);
    gate g = closed_gate(l);
    need(l, "fill", CALL(l, fill, busy, 1, l->granule, g.stream));
    const dvmm_phys_props plain = {0};
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    say(l, CALL(l, address_reserve, l->granule, 0, 0, &addr));
    say(l, CALL(l, phys_create, l->granule, &plain, &phys));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, set_access, addr, l->granule, DVMM_ACCESS_RW));
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, phys_release, phys));
    say(l, CALL(l, address_free, addr, l->granule));
    say(l, CALL(l, stream_query, g.stream));
    open_gate(&g);
    say(l, CALL(l, stream_sync, g.stream));
}

/* ---- Other threads ------------------------------------------------------------------------- */

static void use_streams(void *argument) {
    lab *l = argument;
    ductile_stream stream = NULL;
    dvmm_event event = NULL;
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    say(l, CALL(l, stream_create, &stream));
    say(l, CALL(l, event_create, &event));
    say(l, CALL(l, event_record, event, stream));
    say(l, CALL(l, event_record, event, NULL));
    say(l, CALL(l, event_sync, event));
    say(l, CALL(l, event_query, event));
    say(l, CALL(l, stream_wait_event, stream, event));
    say(l, CALL(l, stream_sync, stream));
    say(l, CALL(l, stream_query, stream));
    say(l, CALL(l, capture_status, stream, &status));
    say(l, CALL(l, event_destroy, event));
    say(l, CALL(l, stream_destroy, stream));
}

ROW("stream.in_new_thread", "every stream call without a context") {
    on_other_thread(l, use_streams, l);
}

/* What one thread makes, another uses, with no context of its own. */
typedef struct shared_things {
    lab *l;
    ductile_stream stream;
    dvmm_event event;
} shared_things;

static void use_shared(void *argument) {
    const shared_things *s = argument;
    lab *l = s->l;
    say(l, CALL(l, event_record, s->event, s->stream));
    say(l, CALL(l, event_sync, s->event));
    say(l, CALL(l, event_query, s->event));
    say(l, CALL(l, stream_query, s->stream));
    say(l, CALL(l, stream_sync, s->stream));
}

ROW("stream.of_other_thread", "another thread's stream and event") {
    shared_things s = {l, new_stream(l), new_event(l)};
    on_other_thread(l, use_shared, &s);
}
