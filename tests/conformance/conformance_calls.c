/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the words of a conformance row mean. Calls have the names and the order of arguments of the
 * raw table, without what they give; a map's offset and an address_reserve's alignment and hint may
 * be left out.
 */
#include "tests/conformance/conformance_words.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static call_word call_words[100];
static size_t n_call_words;

void session_add_word(call_word it) {
    if (n_call_words == COUNT_OF(call_words)) {
        abort();
    }
    call_words[n_call_words++] = it;
}

/* ---- Operands ------------------------------------------------------------------------------ */

uint64_t session_value(const session *s, const words *w, size_t i) {
    uint64_t out = 0;
    const char *why = i < w->n ? names_value(&s->names, w->at[i], &out) : NULL;
    if (why != NULL) {
        session_refuse(why, w->at[0]);
    }
    return out;
}

static void name_value(session *s, const char *name, uint64_t it) {
    const char *why = name != NULL ? names_set(&s->names, name, it) : NULL;
    if (why != NULL) {
        session_refuse(why, name);
    }
}

/* "after_trim" is two words of a line. */
static const char *spaced(const char *word) {
    static _Thread_local char text[WORD_BYTES];
    (void)snprintf(text, sizeof(text), "%s", word);
    for (char *at = strchr(text, '_'); at != NULL; at = strchr(at, '_')) {
        *at = ' ';
    }
    return text;
}

/* ---- Calls of the raw table ---------------------------------------------------------------- */

/* It gives what is free. */
SAYS(mem_info) {
    uint64_t total_bytes = 0;
    return CALL(s, mem_info, out, &total_bytes);
}

GIVES(MAKES(address_reserve, A_RANGE), address_reserve, ductile_addr, N(1), N(2), N(3), &made)
PLAIN(ENDS(address_free, A_RANGE), address_free, N(1), N(2))

MAKES(phys_create, A_HANDLE) {
    const dvmm_phys_props props = {.handle_types = has_word(w, "fd")       ? DVMM_SHARE_FD
                                                   : has_word(w, "fabric") ? DVMM_SHARE_FABRIC
                                                                           : DVMM_SHARE_NONE,
                                   .rdma = has_word(w, "rdma"),
                                   .is_host = has_word(w, "host")};
    dvmm_phys phys = 0;
    int code = CALL(s, phys_create, N(1), &props, &phys);
    *out = phys;
    return code;
}

PLAIN(ENDS(phys_release, A_HANDLE), phys_release, N(1))
PLAIN(SAYS(map), map, N(1), N(2), N(4), N(3))
PLAIN(SAYS(unmap), unmap, N(1), N(2))
PLAIN(SAYS(set_access), set_access, N(1), N(2), (dvmm_access)N(3))
GIVES(SAYS(get_access), get_access, dvmm_access, N(1), &made)
GIVES(SAYS(can_access_peer), can_access_peer, int, (int)N(1), &made)

/* For the devices behind the access, if any. */
SAYS(set_access_for) {
    int devices[MOST_WORDS] = {0};
    size_t n = 0;
    for (size_t i = 4; i < w->n; i++) {
        devices[n++] = (int)N(i);
    }
    return CALL(s, set_access_for, N(1), N(2), (dvmm_access)N(3), devices, n);
}

static dvmm_share_type type_of(const words *w) {
    return has_word(w, "fd") ? DVMM_SHARE_FD : DVMM_SHARE_NONE;
}

SAYS(phys_export) {
    dvmm_shared shared = {.type = type_of(w), .fd = -1};
    int code = CALL(s, phys_export, N(1), shared.type, &shared);
    *out = (uint64_t)shared.fd;
    return code;
}

MAKES(phys_import, A_HANDLE) {
    const dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = (int)N(1)};
    dvmm_phys phys = 0;
    int code = CALL(s, phys_import, &shared, &phys);
    *out = phys;
    return code;
}

BENCH_GIVES(MAKES(mem_alloc, CLASSIC_MEMORY), mem_alloc, ductile_addr, N(1), &made)
BENCH_PLAIN(ENDS(mem_free, CLASSIC_MEMORY), mem_free, N(1))
BENCH_GIVES(ADD_WORD(mem_alloc_async, SAID, ORDERED_MEMORY, NO_RESOURCE, "alloc"), mem_alloc_async,
            ductile_addr, N(1), P(2), &made)
BENCH_PLAIN(ADD_WORD(mem_free_async, SAID, NO_RESOURCE, ORDERED_MEMORY, "free"), mem_free_async,
            N(1), P(2))

/* What it kept is "now" and "peak". */
SAYS(async_pool_info) {
    uint64_t now = 0;
    uint64_t peak = 0;
    int code = BENCH_CALL(s, async_pool_info, &now, &peak);
    name_value(s, "now", now);
    name_value(s, "peak", peak);
    return code;
}

BENCH_PLAIN(SAYS(async_pool_trim), async_pool_trim, N(1))
GIVES(MAKES(stream_create, A_STREAM), stream_create, ductile_stream, &made)
PLAIN(ENDS(stream_destroy, A_STREAM), stream_destroy, P(1))
PLAIN(SAYS(stream_sync), stream_sync, P(1))
BENCH_PLAIN(SAYS(stream_query), stream_query, P(1))
PLAIN(SAYS(stream_wait_event), stream_wait_event, P(1), P(2))
BENCH_PLAIN(SAYS(stream_wait_value), stream_wait_value, P(1), P(2), N(3))
GIVES(SAYS(capture_status), capture_status, dvmm_capture_status, P(1), &made)
BENCH_PLAIN(SAYS(capture_begin), capture_begin, P(1), (dvmm_capture_mode)N(2))
BENCH_PLAIN(SAYS(capture_end), capture_end, P(1))

SAYS(capture_exchange_mode) {
    dvmm_capture_mode mode = (dvmm_capture_mode)N(1);
    int code = CALL(s, capture_exchange_mode, &mode);
    *out = mode;
    return code;
}

SAYS(context_sync) {
    return s->ops->context_sync(s->ctx);
}

PLAIN(SAYS(context_record), context_record, P(1))
GIVES(MAKES(event_create, AN_EVENT), event_create, dvmm_event, &made)
PLAIN(ENDS(event_destroy, AN_EVENT), event_destroy, P(1))
PLAIN(SAYS(event_record), event_record, P(1), P(2))
PLAIN(SAYS(event_query), event_query, P(1))
PLAIN(SAYS(event_sync), event_sync, P(1))

/* Of zeros. */
MAKES(host_alloc, HOST_MEMORY) {
    const uint64_t size = w->n > 1 ? N(1) : sizeof(uint64_t);
    void *memory = NULL;
    int code = BENCH_CALL(s, host_alloc, size, &memory);
    if (memory != NULL) {
        memset(memory, 0, size);
    }
    *out = (uint64_t)(uintptr_t)memory;
    return code;
}

BENCH_PLAIN(ENDS(host_free, HOST_MEMORY), host_free, P(1))
PLAIN(SAYS(fill), fill, N(1), (uint8_t)N(2), N(3), P(4))
BENCH_PLAIN(SAYS(copy), copy, N(1), N(2), N(3), P(4))
PLAIN(SAYS(upload), upload, N(1), P(2), N(3), P(4))

SAYS(read_back) {
    if (P(1) == s->bytes) {
        memset(s->bytes, 0, sizeof(s->bytes));
    }
    return BENCH_CALL(s, read_back, P(1), N(2), N(3), P(4));
}

/* "copy_batch in STREAM", or out, then the device's place, the host's and the size of each. */
SAYS(copy_batch) {
    dvmm_batch batch = {.is_out = has_word(w, "out")};
    for (size_t i = 3; i + 2 < w->n; i += 3) {
        batch.device[batch.n] = N(i);
        batch.host[batch.n] = N(i + 1);
        batch.sizes[batch.n] = N(i + 2);
        batch.bytes += batch.sizes[batch.n++];
    }
    return CALL(s, copy_batch, &batch, P(2));
}

/* ---- Whether an event is done -------------------------------------------------------------- */

enum { TRIES = 50 };

/* An event that covers less than expected gets done a moment after its record, not at once: so an
 * answer counts once the device has had time for it. */
SAYS(done) {
    const struct timespec moment = {.tv_nsec = 1000000};
    int code = DVMM_NOT_READY;
    for (int i = 0; i < TRIES && code == DVMM_NOT_READY; i++) {
        code = CALL(s, event_query, P(1));
        (void)nanosleep(&moment, NULL);
    }
    return code;
}

SAYS(ours) {
    int is_ours = -1;
    int code = CALL(s, stream_is_ours, P(1), &is_ours);
    note(s, "%s", is_ours == 1 ? "ours" : is_ours == 0 ? "not-ours" : "no-answer");
    return code;
}

/* Handles until the driver refuses; that is the code. It gives the first. */
SAYS(create_all) {
    const dvmm_phys_props plain = {0};
    dvmm_phys phys = 0;
    int code = DVMM_SUCCESS;
    while (s->made.n < MOST_RESOURCES - 1 &&
           (code = CALL(s, phys_create, N(1), &plain, &phys)) == DVMM_SUCCESS) {
        remember(s, A_HANDLE, phys, 0);
        *out = *out != 0 ? *out : phys;
    }
    return code;
}

/* ---- What is noted ------------------------------------------------------------------------- */

static void note_code_or(session *s, const char *name, int code, dvmm_access access) {
    note(s, code == DVMM_SUCCESS ? "%s=%d" : "%s=!%d", name,
         code == DVMM_SUCCESS ? (int)access : code);
}

/* "see first a": the access there, "first=0", "=1", "=3", or "=!CODE" when asking fails. */
DOES(see) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = CALL(s, get_access, N(2), &access);
    note_code_or(s, word_at(w, 1), code, access);
}

/* "see_for next a 1": another device's. */
DOES(see_for) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = BENCH_CALL(s, get_access_for, N(2), (int)N(3), &access);
    note_code_or(s, word_at(w, 1), code, access);
}

/* "status s", "status s waiter": "waiter active" */
DOES(status) {
    note(s, "%s%s%s", word_at(w, 2), w->n > 2 ? " " : "", capture_word(s, P(1)));
}

static bool holds(const session *s, const words *w, size_t i) {
    const char *how = word_at(w, i + 1);
    return strcmp(how, "multiple") == 0 ? N(i) % N(i + 2) == 0 : words_compare(N(i), how, N(i + 2));
}

/* "is got a != 0 yes no": "got=yes" */
DOES(is) {
    note(s, "%s=%s", spaced(word_at(w, 1)), word_at(w, holds(s, w, 2) ? 5 : 6));
}

/* "where a != 0 then ..." */
DOES(where) {
    s->code = holds(s, w, 1) ? DVMM_SUCCESS : DVMM_UNKNOWN;
}

/* "put was_ m": "was 2" */
DOES(put) {
    note(s, "%s%d", spaced(word_at(w, 1)), (int)N(2));
}

/* "hex byte= bytes": "byte=5a" */
DOES(hex) {
    note(s, "%s%02x", word_at(w, 1), *(const uint8_t *)P(2));
}

/* "list bytes= bytes 2": "bytes=7,9" */
DOES(list) {
    const uint8_t *bytes = P(2);
    char text[SESSION_TEXT] = "";
    for (size_t i = 0, n = 0; i < N(3); i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%u", i > 0 ? "," : "", bytes[i]);
    }
    note(s, "%s%s", spaced(word_at(w, 1)), text);
}

DOES(text) {
    note(s, "%s", spaced(word_at(w, 1)));
}

/* ---- What has no code ---------------------------------------------------------------------- */

DOES(value) {
    *out = N(1);
}

/* "set bytes 7 9" */
DOES(set) {
    uint8_t *bytes = P(1);
    for (size_t i = 2; i < w->n; i++) {
        bytes[i - 2] = (uint8_t)N(i);
    }
}

/* The work that waits for the word goes on. */
DOES(open) {
    __atomic_store_n((uint64_t *)P(1), 1, __ATOMIC_SEQ_CST);
}

DOES(null_file) {
    *out = (uint64_t)open("/dev/null", O_RDONLY | O_CLOEXEC);
}

DOES(close) {
    (void)close((int)N(1));
}

DOES(release_all) {
    for (size_t i = s->made.n; i-- > 0;) {
        const resource it = s->made.all[i];
        if (it.kind == A_HANDLE) {
            need(s, "release", CALL(s, phys_release, it.it));
            forget(s, A_HANDLE, it.it);
        }
    }
}

/* ---- Making a call ------------------------------------------------------------------------- */

/* What every row prepares has a short word. */
__attribute__((constructor)) static void add_short_words(void) {
    session_add_word(
        (call_word){"range", call_address_reserve, PREPARES, A_RANGE, NO_RESOURCE, "reserve"});
    session_add_word(
        (call_word){"handle", call_phys_create, PREPARES, A_HANDLE, NO_RESOURCE, "create"});
    session_add_word((call_word){"stream", call_stream_create, PREPARES, A_STREAM, NO_RESOURCE,
                                 "stream_create"});
    session_add_word(
        (call_word){"event", call_event_create, PREPARES, AN_EVENT, NO_RESOURCE, "event_create"});
    session_add_word(
        (call_word){"word", call_host_alloc, PREPARES, HOST_MEMORY, NO_RESOURCE, "host_alloc"});
}

static const call_word *find_word(const char *word) {
    for (size_t i = 0; i < n_call_words; i++) {
        if (strcmp(call_words[i].word, word) == 0) {
            return &call_words[i];
        }
    }
    session_refuse("no operation has that name", word);
}

/* What one call may end: memory of a stream can be freed as any other, too. A handle, a stream or
 * an event is not touched again, whatever the call said. */
static void note_end(session *s, const call_word *c, const words *w, int code) {
    bool is_sure = c->ends == A_HANDLE || c->ends == A_STREAM || c->ends == AN_EVENT;
    if (c->ends != NO_RESOURCE && (is_sure || code == DVMM_SUCCESS)) {
        forget(s, c->ends, N(1));
        if (c->ends == CLASSIC_MEMORY) {
            forget(s, ORDERED_MEMORY, N(1));
        }
    }
}

void session_make_call(session *s, const words *w) {
    const char *word = w->at[0] + strspn(w->at[0], "+-");
    const call_word *c = find_word(word);
    tone how = w->at[0][0] == '+' ? PREPARES : w->at[0][0] == '-' ? SILENT : c->tone;
    uint64_t out = 0;
    int code = c->call(s, w, &out);
    note_end(s, c, w, code);
    if (code == DVMM_SUCCESS && c->makes != NO_RESOURCE) {
        remember(s, c->makes, out, c->makes == ORDERED_MEMORY ? N(2) : N(1));
    }
    name_value(s, w->target, out);
    if (how == PREPARES) {
        need(s, c->as, code);
    } else if (how == SAID && !s->is_quiet) {
        say(s, code);
    }
    s->code = how == SAID || c->tone == SILENT ? code : s->code;
}
