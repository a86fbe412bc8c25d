/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the virtual GPU detects, and what orders work, in text (claims.txt): each claim is played on
 * a new device under every schedule, since how soon work completes must not matter. It is
 * operations between semicolons, of a verb and its words. tests/support/script.h says how such a
 * file looks.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"
#include "tests/support/numbered.h"
#include "tests/support/script.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EVENTS = 8, N_STREAMS = 10, MOST_HANDLES = 4 };

#define GRANULE ((uint64_t)2 << 20)

/* A device of a machine of two, with two handles of one granule at `at`
 * that both have access to. */
typedef struct state {
    device_fixture r;
    ductile_addr at, pair; /* pair: one handle at two addresses side by side, or an allocation */
    ductile_addr range;    /* addresses without memory */
    dvmm_phys handles[MOST_HANDLES];
    dvmm_phys of_pair;
    ductile_stream streams[N_STREAMS];
    bool is_made[N_STREAMS];
    dvmm_event events[MOST_EVENTS];
    ductile_virtual_graph *graph;
    uint64_t *gate;
    uint64_t clock;
} state;

static state s;

/* ---- Words ---------------------------------------------------------------------------------- */

enum { MOST_WORDS = 8 };

typedef struct verb {
    const char *name;
    void (*play)(void);
} verb;

#define VERB(name)                                                                                 \
    { #name, play_##name }

static char *word[MOST_WORDS]; /* of the operation */

static bool is(unsigned i, const char *text) {
    return word[i] != NULL && strcmp(word[i], text) == 0;
}

/* ---- Operands ------------------------------------------------------------------------------ */

/* "pair", "range" */
static bool is_place(const char *text, uint64_t *out) {
    bool is_pair = strcmp(text, "pair") == 0;
    *out = (is_pair ? s.pair : s.range) - s.at;
    return is_pair || strcmp(text, "range") == 0;
}

/* "4096", "2M-512", "pair+2M" */
static uint64_t number(const char *text) {
    uint64_t sum = 0;
    char piece[32];
    for (char sign = '+'; text != NULL && *text != '\0';) {
        uint64_t part = 0;
        size_t n = strcspn(text, "+-");
        (void)snprintf(piece, sizeof piece, "%.*s", (int)n, text);
        cr_assert(is_place(piece, &part) || script_number(piece, &part), "%s is no number", piece);
        sum = sign == '+' ? sum + part : sum - part;
        sign = text[n];
        text += n + (sign != '\0');
    }
    return sum;
}

static ductile_addr place(unsigned i) {
    return s.at + number(word[i]);
}

static ductile_stream make_stream(char name) {
    ductile_stream made = NULL;
    ductile_virtual_gpu *gpu = s.r.gpu;
    ductile_status status = name == 'b'   ? ductile_virtual_stream_create_blocking(gpu, &made)
                            : name == 'x' ? ductile_virtual_stream_create_foreign(gpu, &made)
                            : name == 'p' ? ductile_virtual_stream_create_on(gpu, 1, &made)
                                          : dvmm_stream_create(s.r.d, &made);
    assert_ok(status);
    return made;
}

/* Streams 1 to 3; the default ones, 0, which l is, too, and t; b, a blocking one, x, of another
 * context, p, of the other device, and n, one more. Each is made when it is named first. */
static ductile_stream *stream(unsigned i) {
    static const char names[] = "0lt123bxpn";
    const char *at = word[i] != NULL && word[i][1] == '\0' ? strchr(names, word[i][0]) : NULL;
    cr_assert(at != NULL, "no stream is named %s", word[i]);
    size_t k = (size_t)(at - names);
    if (!s.is_made[k]) {
        s.is_made[k] = true;
        s.streams[k] = k < 3 ? (ductile_stream)(uintptr_t)k : make_stream(*at);
    }
    return &s.streams[k];
}

/* "e0" */
static dvmm_event *event(unsigned i) {
    size_t k = word[i] != NULL && word[i][0] == 'e' ? (size_t)(word[i][1] - '0') : MOST_EVENTS;
    cr_assert(k < MOST_EVENTS, "no event is named %s", word[i]);
    s.events[k] = s.events[k] != NULL ? s.events[k] : device_event(&s.r);
    return &s.events[k];
}

/* ---- Answers -------------------------------------------------------------------------------- */

/* The word behind `name`, or NULL. */
static const char *behind(const char *name) {
    for (unsigned i = 1; i + 1 < MOST_WORDS; i++) {
        if (is(i, name)) {
            return word[i + 1];
        }
    }
    return NULL;
}

static bool last_is(const char *name) {
    unsigned last = 0;
    while (last + 1 < MOST_WORDS && word[last + 1] != NULL) {
        last++;
    }
    return is(last, name);
}

/* The operation gave what the last word says; nothing says that it succeeded. */
static void gave(ductile_status status) {
    static const struct {
        const char *name;
        ductile_status status;
    } all[] = {{"refused", DUCTILE_ERR_CAPTURING},
               {"unsupported", DUCTILE_ERR_UNSUPPORTED},
               {"failed", DUCTILE_ERR_DRIVER},
               {"device_lost", DUCTILE_ERR_DEVICE_LOST}};
    ductile_status expected = DUCTILE_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        expected = last_is(all[i].name) ? all[i].status : expected;
    }
    assert_status(status, expected);
}

/* What the call gave is the driver's code behind "->", or 0. */
static void gives(int code) {
    const char *told = behind("->");
    int expected = told != NULL ? (int)number(told) : 0;
    cr_assert_eq(code, expected, "it gave %d", code);
}

/* ---- Work ---------------------------------------------------------------------------------- */

/* "writes 1 0 4096"; "lost": that ends the device, sooner or later. */
static void launch(bool writes) {
    const ductile_virtual_use use = {place(2), number(word[3]), writes};
    ductile_status status = ductile_virtual_launch(s.r.gpu, *stream(1), &use, 1);
    if (is(4, "lost")) {
        cr_assert_neq(device_state(&s.r).violations, 0, "it was not seen when it was issued");
        status = status == DUCTILE_OK ? dvmm_stream_sync(s.r.d, *stream(1)) : status;
        assert_u64((unsigned)device_state(&s.r).poisoned, DVMM_ILLEGAL_ADDRESS);
    }
    assert_status(status, is(4, "lost") ? DUCTILE_ERR_DEVICE_LOST : DUCTILE_OK);
}

static void play_reads(void) {
    launch(false);
}

static void play_writes(void) {
    launch(true);
}

/* "fill 1 0 512 7": by the program; "fills 1 0 512": by the allocator; "failed" behind either. */
static void play_fill(void) {
    gave(ductile_virtual_fill(s.r.gpu, place(2), (uint8_t)number(word[4]), number(word[3]),
                              *stream(1)));
}

static void play_fills(void) {
    gave(dvmm_fill(s.r.d, place(2), 0, number(word[3]), *stream(1)));
}

static void play_copy(void) {
    gave(bench_copy(s.r.d, place(2), place(3), number(word[4]), *stream(1)));
}

/* "upload p 0 failed": a byte. */
static void play_upload(void) {
    const uint8_t byte = 1;
    gave(dvmm_upload(s.r.d, place(2), &byte, 1, *stream(1)));
}

/* "byte 1 0 7": a read by the host, behind the stream's work; "byte 1 0 failed". */
static void play_byte(void) {
    uint8_t got = 0;
    gave(ductile_virtual_read_back(s.r.gpu, &got, place(2), 1, *stream(1)));
    cr_assert(word[3] == NULL || is(3, "failed") || got == number(word[3]), "it is %d", got);
}

/* "order 1 2": stream 2 waits for 1. */
static void play_order(void) {
    assert_ok(ductile_virtual_stream_wait(s.r.gpu, *stream(2), *stream(1)));
}

static void play_destroy(void) {
    assert_ok(ductile_virtual_stream_destroy(s.r.gpu, *stream(1)));
}

/* "new 1": in its place; "same": with its handle. */
static void play_new(void) {
    ductile_stream *it = stream(1);
    ductile_stream before = *it;
    s.is_made[it - s.streams] = false;
    cr_assert(*stream(1) == before || !is(2, "same"));
}

/* "sync 1", "sync context"; "refused" behind it. */
static void play_sync(void) {
    ductile_status status =
        is(1, "context") ? dvmm_context_sync(s.r.d) : dvmm_stream_sync(s.r.d, *stream(1));
    cr_assert_eq(status != DUCTILE_OK, is(2, "refused"), "%s", ductile_status_name(status));
}

/* ---- Events -------------------------------------------------------------------------------- */

/* "record e0 1", "record e0 context", "record e0 context refused" */
static void play_record(void) {
    gave(is(2, "context") ? dvmm_context_record(s.r.d, *event(1))
                          : dvmm_event_record(s.r.d, *event(1), *stream(2)));
}

static void play_wait(void) {
    assert_ok(dvmm_event_sync(s.r.d, *event(1)));
}

/* "await 2 e0": the stream waits for it. */
static void play_await(void) {
    assert_ok(dvmm_stream_wait_event(s.r.d, *stream(1), *event(2)));
}

static void play_known(void) {
    assert_ok(dvmm_event_query(s.r.d, *event(1)));
}

static void play_advance(void) {
    ductile_virtual_advance(s.r.gpu, number(word[1]));
}

static void play_pending(void) {
    for (int i = 0; i < 40; i++) {
        assert_status(dvmm_event_query(s.r.d, *event(1)), DUCTILE_ERR_NOT_READY);
        ductile_virtual_advance(s.r.gpu, 1);
    }
}

/* Without waiting, where the schedule lets work go on by itself. */
static void play_done(void) {
    for (int i = 0; i < 400; i++) {
        ductile_virtual_advance(s.r.gpu, 1);
        (void)dvmm_event_query(s.r.d, *event(1));
    }
    assert_ok(dvmm_event_sync(s.r.d, *event(1)));
    assert_ok(dvmm_event_query(s.r.d, *event(1)));
}

/* "gate 1": its work stays under way until "open". */
static void play_gate(void) {
    void *memory = NULL;
    if (s.gate == NULL) {
        assert_ok(bench_host_alloc(s.r.d, 4096, &memory));
        s.gate = memory;
    }
    *s.gate = 0;
    assert_ok(bench_stream_wait_value(s.r.d, *stream(1), s.gate, 1));
}

static void play_open(void) {
    __atomic_store_n(s.gate, 1, __ATOMIC_SEQ_CST);
    s.gate = NULL;
}

/* Before it was opened. */
static void play_free_gate(void) {
    assert_ok(bench_host_free(s.r.d, s.gate));
    s.gate = NULL;
}

static void *gate_of_thread(void *unused) {
    play_gate();
    return unused;
}

/* "elsewhere t": as "gate", by another thread. */
static void play_elsewhere(void) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, gate_of_thread, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static void play_begin(void) {
    ductile_virtual_block_begin(s.r.gpu, place(1), number(word[2]));
}

static void play_end(void) {
    ductile_virtual_block_end(s.r.gpu, place(1));
}

/* "over 0 4096": the block has its second owner. */
static void play_over(void) {
    play_end();
    play_begin();
}

static void play_unmap(void) {
    assert_ok(dvmm_unmap(s.r.d, place(1), GRANULE));
}

/* "map 0": another handle. */
static void play_map(void) {
    device_back(&s.r, place(1), 1);
}

static void map_of_pair(uint64_t offset) {
    assert_ok(dvmm_map(s.r.d, s.pair + offset, GRANULE, s.of_pair));
    assert_ok(dvmm_set_access(s.r.d, s.pair + offset, GRANULE, DVMM_ACCESS_RW));
}

static void play_twice(void) {
    map_of_pair(GRANULE);
}

/* "pair once": its second address comes with "twice". */
static void play_pair(void) {
    s.of_pair = device_create(&s.r, 1);
    s.pair = device_reserve(&s.r, 2);
    map_of_pair(0);
    if (!is(1, "once")) {
        play_twice();
    }
}

static void play_alloc(void) {
    assert_ok(bench_mem_alloc(s.r.d, 2 * GRANULE, &s.pair));
}

static void play_release(void) {
    assert_ok(bench_mem_free(s.r.d, s.pair));
}

/* "access 0 none", "access 0 read"; "close 0": the other device loses it. */
static void play_access(void) {
    assert_ok(dvmm_set_access(s.r.d, place(1), GRANULE,
                              is(2, "read") ? DVMM_ACCESS_READ : DVMM_ACCESS_NONE));
}

static void play_close(void) {
    static const int they[] = {1};
    assert_ok(dvmm_set_access_for(s.r.d, place(1), GRANULE, DVMM_ACCESS_NONE, they, 1));
}

/* ---- Memory by the raw table: the wrappers' own checks forbid misuse ------------------------ */

static dvmm_phys *handle(unsigned i) {
    size_t k = word[i] != NULL && word[i][0] == 'h' ? (size_t)(word[i][1] - '0') : MOST_HANDLES;
    cr_assert(k < MOST_HANDLES, "no handle is named %s", word[i]);
    return &s.handles[k];
}

static dvmm_access access_named(unsigned i) {
    return is(i, "rw") ? DVMM_ACCESS_RW : is(i, "read") ? DVMM_ACCESS_READ : DVMM_ACCESS_NONE;
}

/* "reserve 4M", "unreserve 4M": the addresses that "range" names. */
static void play_reserve(void) {
    assert_ok(dvmm_address_reserve(s.r.d, number(word[1]), &s.range));
}

static void play_unreserve(void) {
    gives(RAW(&s.r, address_free, s.range, number(word[1])));
}

/* "create h0 4M" */
static void play_create(void) {
    static const dvmm_phys_props plain;
    gives(RAW(&s.r, phys_create, number(word[2]), &plain, handle(1)));
    cr_assert(*handle(1) != 0 || is(3, "->"));
}

/* "forget h0" */
static void play_forget(void) {
    gives(RAW(&s.r, phys_release, *handle(1)));
}

/* "place range 4M h0" */
static void play_place(void) {
    gives(RAW(&s.r, map, place(1), number(word[2]), 0, *handle(3)));
}

/* "back range 2M": a new handle, open for reading and writing. */
static void play_back(void) {
    device_back(&s.r, place(1), number(word[2]) / GRANULE);
}

static void play_take_away(void) {
    gives(RAW(&s.r, unmap, place(1), number(word[2])));
}

/* "let range 4M read"; "let_both": the other device, too. */
static void play_let(void) {
    gives(RAW(&s.r, set_access, place(1), number(word[2]), access_named(3)));
}

static void play_let_both(void) {
    static const int both[] = {0, 1};
    assert_ok(dvmm_set_access_for(s.r.d, place(1), number(word[2]), access_named(3), both, 2));
}

/* "can range read", "can range unmapped"; "they_can": the other device. */
static void play_can(void) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = RAW(&s.r, get_access, place(1), &access);
    cr_assert_eq(code, is(2, "unmapped") ? DVMM_INVALID_VALUE : DVMM_SUCCESS);
    cr_assert(code != DVMM_SUCCESS || access == access_named(2), "it can %d", (int)access);
}

static void play_they_can(void) {
    assert_u64((unsigned)ductile_virtual_access(s.r.gpu, place(1), 1), access_named(2));
}

/* "left 10M": others take the device's memory but for so much. */
static void play_left(void) {
    uint64_t total = dvmm_get_caps(s.r.d)->total_bytes;
    uint64_t used = device_state(&s.r).used_bytes;
    uint64_t left = 0;
    assert_ok(ductile_virtual_set_external_bytes(s.r.gpu, total - used - number(word[1])));
    assert_ok(dvmm_mem_info(s.r.d, &left, &total));
    assert_u64(left, number(word[1]));
    assert_status(ductile_virtual_set_external_bytes(s.r.gpu, total), DUCTILE_ERR_OUT_OF_MEMORY);
}

/* "peak 12M": the most that was in use. */
static void play_peak(void) {
    assert_u64(device_state(&s.r).used_peak_bytes, number(word[1]));
}

/* "mem_free pair+512 -> 1" */
static void play_mem_free(void) {
    gives(BENCH_RAW(&s.r, mem_free, place(1)));
}

/* "end_event e0", "query e0 -> 400" */
static void play_end_event(void) {
    gives(RAW(&s.r, event_destroy, *event(1)));
}

static void play_query(void) {
    gives(RAW(&s.r, event_query, *event(1)));
}

/* ---- Graphs -------------------------------------------------------------------------------- */

/* "capture 1", "capture p global" */
static void play_capture(void) {
    assert_ok(ductile_virtual_capture_begin(
        s.r.gpu, *stream(1), is(2, "global") ? DUCTILE_CAPTURE_GLOBAL : DUCTILE_CAPTURE_RELAXED));
}

/* "captured 1", "captured 0 -> 906" */
static void play_captured(void) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    gives(RAW(&s.r, capture_status, *stream(1), &status));
    cr_assert(is(2, "->") || status == DVMM_CAPTURE_ACTIVE);
}

/* "end_capture 1", "end_capture 1 broken" */
static void play_end_capture(void) {
    ductile_status status = ductile_virtual_capture_end(s.r.gpu, *stream(1), &s.graph);
    cr_assert_eq(status != DUCTILE_OK, is(2, "broken"), "%s", ductile_status_name(status));
    cr_assert_eq(s.graph == NULL, is(2, "broken"));
}

static void play_launch(void) {
    assert_ok(ductile_virtual_graph_launch(s.graph, *stream(1)));
}

static void play_drop(void) {
    ductile_virtual_graph_destroy(s.graph);
    s.graph = NULL;
}

static void play_rest(void) {
    ductile_virtual_graph_rest(s.graph, is(1, "on"));
}

/* ---- What is seen -------------------------------------------------------------------------- */

/* "fault map", "fault unmap effect 2", "fault phys_create code 2 nth 3 on"; "fault any" */
static void play_fault(void) {
    const char *nth = behind("nth");
    const char *code = behind("code");
    const char *effect = behind("effect");
    const ductile_virtual_fault it = {.struct_size = sizeof it,
                                      .call = is(1, "any") ? NULL : word[1],
                                      .nth = nth != NULL ? number(nth) : 1,
                                      .code = code != NULL ? (int)number(code) : DVMM_INVALID_VALUE,
                                      .effect = effect != NULL ? (int)number(effect) : 0,
                                      .persistent = last_is("on")};
    assert_ok(ductile_virtual_inject(s.r.gpu, &it));
}

/* "called unmap 2": since the beginning. */
static void play_called(void) {
    assert_u64(ductile_virtual_count(s.r.gpu, word[1]), number(word[2]));
}

/* "fired 4": so often the fault. */
static void play_fired(void) {
    assert_u64(ductile_virtual_faults_fired(s.r.gpu), number(word[1]));
}

/* "mark", and "asked 0": driver calls since. */
static uint64_t marked;

static void play_mark(void) {
    marked = device_state(&s.r).calls;
}

static void play_asked(void) {
    assert_u64(device_state(&s.r).calls - marked, number(word[1]));
}

static void play_mend(void) {
    device_recover(&s.r);
}

/* "lost": the device is, by that code. */
static void play_lost(void) {
    assert_u64((unsigned)device_state(&s.r).poisoned, number(word[1]));
}

/* "ours 1", "theirs x": whether the stream is of the driver's context. */
static void play_ours(void) {
    cr_assert(dvmm_stream_is_ours(s.r.d, *stream(1)));
}

static void play_theirs(void) {
    cr_assert(!dvmm_stream_is_ours(s.r.d, *stream(1)));
}

/* "clock", and "took 200" nanoseconds since. */
static void play_clock(void) {
    s.clock = dvmm_clock_ns(s.r.d);
}

static void play_took(void) {
    assert_u64(dvmm_clock_ns(s.r.d) - s.clock, number(word[1]));
}

/* "saw nothing", "saw reuse": one violation in all; "saw misuse 2". */
static void play_saw(void) {
    char text[256];
    uint64_t n = device_state(&s.r).violations;
    ductile_virtual_last_violation(s.r.gpu, text, sizeof text);
    uint64_t expected = word[2] != NULL ? number(word[2]) : !is(1, "nothing");
    cr_assert_eq(n, expected, "%llu violations, the last: %s", (unsigned long long)n, text);
    for (int kind = 0; n > 0 && kind <= DUCTILE_VIOLATION_OVERLAP; kind++) {
        bool is_it = is(1, ductile_virtual_violation_name((ductile_violation)kind));
        cr_assert_eq(ductile_virtual_violations_of(s.r.gpu, (ductile_violation)kind), is_it ? n : 0,
                     "not %s but %s", word[1], text);
    }
}

/* ---- Playing ------------------------------------------------------------------------------- */

static const verb verbs[] = {
    VERB(reads),     VERB(writes),  VERB(fill),     VERB(fills),       VERB(copy),
    VERB(byte),      VERB(upload),  VERB(order),    VERB(destroy),     VERB(new),
    VERB(sync),      VERB(record),  VERB(wait),     VERB(await),       VERB(known),
    VERB(advance),   VERB(pending), VERB(done),     VERB(gate),        VERB(open),
    VERB(elsewhere), VERB(begin),   VERB(end),      VERB(over),        VERB(unmap),
    VERB(map),       VERB(twice),   VERB(pair),     VERB(alloc),       VERB(release),
    VERB(access),    VERB(close),   VERB(reserve),  VERB(unreserve),   VERB(create),
    VERB(forget),    VERB(place),   VERB(back),     VERB(take_away),   VERB(let),
    VERB(let_both),  VERB(can),     VERB(they_can), VERB(left),        VERB(mem_free),
    VERB(end_event), VERB(query),   VERB(capture),  VERB(end_capture), VERB(launch),
    VERB(drop),      VERB(rest),    VERB(fault),    VERB(mend),        VERB(called),
    VERB(fired),     VERB(mark),    VERB(asked),    VERB(saw),         VERB(captured),
    VERB(free_gate), VERB(ours),    VERB(theirs),   VERB(clock),       VERB(took),
    VERB(peak),      VERB(lost)};

static void open_claim(unsigned schedule, const scenario *claim) {
    static const int both[] = {0, 1};
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.schedule = (ductile_schedule)schedule;
    options.lag = 3;
    options.seed = 11;
    options.n_devices = 2;
    options.no_context_events = claim->has_old_driver;
    memset(&s, 0, sizeof s);
    device_open(&s.r, &options);
    s.at = device_row(&s.r, 2);
    assert_ok(dvmm_set_access_for(s.r.d, s.at, 2 * GRANULE, DVMM_ACCESS_RW, both, 2));
}

static void close_claim(void) {
    device_abandon(&s.r);
}

static const scenario *now;
static unsigned now_schedule;
static char now_text[64]; /* what is played */

static void play_operation(char *text) {
    char *rest_of = NULL;
    for (unsigned i = 0; i < MOST_WORDS; i++) {
        word[i] = strtok_r(i == 0 ? text : NULL, " ", &rest_of);
    }
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (is(0, verbs[i].name)) {
            verbs[i].play();
            return;
        }
    }
    cr_assert_fail("what is %s?", word[0]);
}

static void play_lines(const scenario *claim, unsigned schedule) {
    char text[1024];
    now = claim;
    now_schedule = schedule;
    for (size_t i = 0; i < claim->n_lines; i++) {
        char *rest_of = NULL;
        (void)snprintf(text, sizeof text, "%s", claim->lines[i]);
        for (char *at = strtok_r(text, ";", &rest_of); at != NULL;
             at = strtok_r(NULL, ";", &rest_of)) {
            (void)snprintf(now_text, sizeof now_text, "line %u:%s", claim->numbers[i], at);
            play_operation(at);
        }
    }
}

static void say_what_failed(void) {
    if (now != NULL) {
        cr_log_error("%s: schedule %u, %s", now->name, now_schedule, now_text);
    }
}

/* A test of each claim, under each schedule that it names. A file that cannot be read fails one
 * test: where the parameters are made, nothing can fail. */
ParameterizedTestParameters(virtual_claims, hold) {
    script claims;
    bool is_read = script_read(&claims, CLAIMS) == NULL;
    return numbered(0, is_read ? claims.n : 1);
}

ParameterizedTest(uint64_t *i, virtual_claims, hold, .fini = say_what_failed) {
    script claims;
    assert_fine(script_read(&claims, CLAIMS));
    const scenario *claim = &claims.all[*i];
    for (unsigned schedule = 0; schedule < 4; schedule++) {
        if ((claim->schedules >> schedule & 1) != 0) {
            open_claim(schedule, claim);
            play_lines(claim, schedule);
            close_claim();
            now = NULL;
        }
    }
    free(claims.all);
    free(claims.text);
}
