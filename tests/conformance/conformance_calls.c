/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the words of a conformance row mean. Calls have the names and the order of arguments of the
 * raw table, without what they give; a map's offset and an address_reserve's alignment and hint may
 * be left out.
 */
#include "tests/conformance/lab_outside.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Operands ------------------------------------------------------------------------------ */

/* 0 where there are fewer words. */
static uint64_t value(const lab *l, const words *w, size_t i) {
    uint64_t out = 0;
    const char *why = i < w->n ? names_value(&l->names, w->at[i], &out) : NULL;
    if (why != NULL) {
        lab_refuse(why, w->at[0]);
    }
    return out;
}

static void *pointer(const lab *l, const words *w, size_t i) {
    return (void *)(uintptr_t)value(l, w, i);
}

#define N(i) value(l, w, i)
#define P(i) pointer(l, w, i)

static void name_value(lab *l, const char *name, uint64_t it) {
    const char *why = name != NULL ? names_set(&l->names, name, it) : NULL;
    if (why != NULL) {
        lab_refuse(why, name);
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

typedef int (*call_fn)(lab *l, const words *w, uint64_t *out);

#define CALL_VERB(name)                                                                            \
    static int call_##name(lab *l __attribute__((unused)), const words *w __attribute__((unused)), \
                           uint64_t *out __attribute__((unused)))

/* One that is made as it stands, and one that gives something. */
#define PLAIN(name, ...)                                                                           \
    CALL_VERB(name) {                                                                              \
        return CALL(l, name, __VA_ARGS__);                                                         \
    }
#define GIVES(name, type, ...)                                                                     \
    CALL_VERB(name) {                                                                              \
        type made = 0;                                                                             \
        int code = CALL(l, name, __VA_ARGS__);                                                     \
        *out = (uint64_t)(uintptr_t)made;                                                          \
        return code;                                                                               \
    }

CALL_VERB(mem_info) {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    return CALL(l, mem_info, &free_bytes, &total_bytes);
}

GIVES(address_reserve, ductile_addr, N(1), N(2), N(3), &made)
PLAIN(address_free, N(1), N(2))

CALL_VERB(phys_create) {
    const dvmm_phys_props props = {.handle_types = has_word(w, "fd")       ? DVMM_SHARE_FD
                                                   : has_word(w, "fabric") ? DVMM_SHARE_FABRIC
                                                                           : DVMM_SHARE_NONE,
                                   .rdma = has_word(w, "rdma")};
    dvmm_phys phys = 0;
    int code = CALL(l, phys_create, N(1), &props, &phys);
    *out = phys;
    return code;
}

PLAIN(phys_release, N(1))
PLAIN(map, N(1), N(2), N(4), N(3))
PLAIN(unmap, N(1), N(2))
PLAIN(set_access, N(1), N(2), (dvmm_access)N(3))
GIVES(get_access, dvmm_access, N(1), &made)
GIVES(can_access_peer, int, (int)N(1), &made)

/* For the devices behind the access, if any. */
CALL_VERB(set_access_for) {
    int devices[MOST_WORDS] = {0};
    size_t n = 0;
    for (size_t i = 4; i < w->n; i++) {
        devices[n++] = (int)N(i);
    }
    return CALL(l, set_access_for, N(1), N(2), (dvmm_access)N(3), devices, n);
}

static dvmm_share_type type_of(const words *w) {
    return has_word(w, "fd") ? DVMM_SHARE_FD : DVMM_SHARE_NONE;
}

CALL_VERB(phys_export) {
    dvmm_shared shared = {.type = type_of(w), .fd = -1};
    int code = CALL(l, phys_export, N(1), shared.type, &shared);
    *out = (uint64_t)shared.fd;
    return code;
}

CALL_VERB(phys_import) {
    const dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = (int)N(1)};
    dvmm_phys phys = 0;
    int code = CALL(l, phys_import, &shared, &phys);
    *out = phys;
    return code;
}

GIVES(mem_alloc, ductile_addr, N(1), &made)
PLAIN(mem_free, N(1))
GIVES(mem_alloc_async, ductile_addr, N(1), P(2), &made)
PLAIN(mem_free_async, N(1), P(2))

/* What it kept is "now" and "peak". */
CALL_VERB(async_pool_info) {
    uint64_t now = 0;
    uint64_t peak = 0;
    int code = CALL(l, async_pool_info, &now, &peak);
    name_value(l, "now", now);
    name_value(l, "peak", peak);
    return code;
}

PLAIN(async_pool_trim, N(1))
GIVES(stream_create, ductile_stream, &made)
PLAIN(stream_destroy, P(1))
PLAIN(stream_sync, P(1))
PLAIN(stream_query, P(1))
PLAIN(stream_wait_event, P(1), P(2))
PLAIN(stream_wait_value, P(1), P(2), N(3))
GIVES(capture_status, dvmm_capture_status, P(1), &made)
PLAIN(capture_begin, P(1), (dvmm_capture_mode)N(2))
PLAIN(capture_end, P(1))

CALL_VERB(capture_exchange_mode) {
    dvmm_capture_mode mode = (dvmm_capture_mode)N(1);
    int code = CALL(l, capture_exchange_mode, &mode);
    *out = mode;
    return code;
}

CALL_VERB(context_sync) {
    return l->ops->context_sync(l->ctx);
}

PLAIN(context_record, P(1))
GIVES(event_create, dvmm_event, &made)
PLAIN(event_destroy, P(1))
PLAIN(event_record, P(1), P(2))
PLAIN(event_query, P(1))
PLAIN(event_sync, P(1))

/* Of zeros. */
CALL_VERB(host_alloc) {
    const uint64_t size = w->n > 1 ? N(1) : sizeof(uint64_t);
    void *memory = NULL;
    int code = CALL(l, host_alloc, size, &memory);
    if (memory != NULL) {
        memset(memory, 0, size);
    }
    *out = (uint64_t)(uintptr_t)memory;
    return code;
}

PLAIN(host_free, P(1))
PLAIN(fill, N(1), (uint8_t)N(2), N(3), P(4))
PLAIN(copy, N(1), N(2), N(3), P(4))
PLAIN(upload, N(1), P(2), N(3), P(4))

CALL_VERB(read_back) {
    if (P(1) == l->bytes) {
        memset(l->bytes, 0, sizeof(l->bytes));
    }
    return CALL(l, read_back, P(1), N(2), N(3), P(4));
}

/* "copy_batch in STREAM", or out, then the device's place, the host's and the size of each. */
CALL_VERB(copy_batch) {
    dvmm_batch batch = {.is_out = has_word(w, "out")};
    for (size_t i = 3; i + 2 < w->n; i += 3) {
        batch.device[batch.n] = N(i);
        batch.host[batch.n] = N(i + 1);
        batch.sizes[batch.n] = N(i + 2);
        batch.bytes += batch.sizes[batch.n++];
    }
    return CALL(l, copy_batch, &batch, P(2));
}

/* ---- Whether an event is done -------------------------------------------------------------- */

enum { TRIES = 50 };

/* An event that covers less than expected gets done a moment after its record, not at once: so an
 * answer counts once the device has had time for it. */
CALL_VERB(done) {
    const struct timespec moment = {.tv_nsec = 1000000};
    int code = DVMM_NOT_READY;
    for (int i = 0; i < TRIES && code == DVMM_NOT_READY; i++) {
        code = CALL(l, event_query, P(1));
        (void)nanosleep(&moment, NULL);
    }
    return code;
}

CALL_VERB(ours) {
    int is_ours = -1;
    int code = CALL(l, stream_is_ours, P(1), &is_ours);
    note(l, "%s", is_ours == 1 ? "ours" : is_ours == 0 ? "not-ours" : "no-answer");
    return code;
}

CALL_VERB(end_elsewhere) {
    return end_capture_elsewhere(l, &l->elsewhere);
}

/* Handles until the driver refuses; that is the code. It gives the first. */
CALL_VERB(create_all) {
    const dvmm_phys_props plain = {0};
    dvmm_phys phys = 0;
    int code = DVMM_SUCCESS;
    while (l->n_things < LAB_MOST - 1 &&
           (code = CALL(l, phys_create, N(1), &plain, &phys)) == DVMM_SUCCESS) {
        remember(l, A_HANDLE, phys, 0);
        *out = *out != 0 ? *out : phys;
    }
    return code;
}

/* ---- What is noted ------------------------------------------------------------------------- */

static void note_code_or(lab *l, const char *name, int code, dvmm_access access) {
    note(l, code == DVMM_SUCCESS ? "%s=%d" : "%s=!%d", name,
         code == DVMM_SUCCESS ? (int)access : code);
}

/* "see first a": the access there, "first=0", "=1", "=3", or "=!CODE" when asking fails. */
CALL_VERB(see) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = CALL(l, get_access, N(2), &access);
    note_code_or(l, word_at(w, 1), code, access);
    return code;
}

/* "see_for next a 1": another device's. */
CALL_VERB(see_for) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = CALL(l, get_access_for, N(2), (int)N(3), &access);
    note_code_or(l, word_at(w, 1), code, access);
    return code;
}

/* "status s", "status s waiter": "waiter active" */
CALL_VERB(status) {
    note(l, "%s%s%s", word_at(w, 2), w->n > 2 ? " " : "", capture_word(l, P(1)));
    return DVMM_SUCCESS;
}

static bool holds(const lab *l, const words *w, size_t i) {
    const char *how = word_at(w, i + 1);
    return strcmp(how, "multiple") == 0 ? N(i) % N(i + 2) == 0 : words_compare(N(i), how, N(i + 2));
}

/* "is got a != 0 yes no": "got=yes" */
CALL_VERB(is) {
    note(l, "%s=%s", spaced(word_at(w, 1)), word_at(w, holds(l, w, 2) ? 5 : 6));
    return DVMM_SUCCESS;
}

/* "where a != 0 then ..." */
CALL_VERB(where) {
    return holds(l, w, 1) ? DVMM_SUCCESS : DVMM_UNKNOWN;
}

/* "put was_ m": "was 2" */
CALL_VERB(put) {
    note(l, "%s%d", spaced(word_at(w, 1)), (int)N(2));
    return DVMM_SUCCESS;
}

/* "hex byte= bytes": "byte=5a" */
CALL_VERB(hex) {
    note(l, "%s%02x", word_at(w, 1), *(const uint8_t *)P(2));
    return DVMM_SUCCESS;
}

/* "list bytes= bytes 2": "bytes=7,9" */
CALL_VERB(list) {
    const uint8_t *bytes = P(2);
    char text[LAB_TEXT] = "";
    for (size_t i = 0, n = 0; i < N(3); i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%u", i > 0 ? "," : "", bytes[i]);
    }
    note(l, "%s%s", spaced(word_at(w, 1)), text);
    return DVMM_SUCCESS;
}

CALL_VERB(text) {
    note(l, "%s", spaced(word_at(w, 1)));
    return DVMM_SUCCESS;
}

CALL_VERB(name_context) {
    note(l, "context=%s", context_word(l, &l->elsewhere));
    return DVMM_SUCCESS;
}

/* ---- What has no code ---------------------------------------------------------------------- */

CALL_VERB(value) {
    *out = N(1);
    return DVMM_SUCCESS;
}

/* "set bytes 7 9" */
CALL_VERB(set) {
    uint8_t *bytes = P(1);
    for (size_t i = 2; i < w->n; i++) {
        bytes[i - 2] = (uint8_t)N(i);
    }
    return DVMM_SUCCESS;
}

/* The work that waits for the word goes on. */
CALL_VERB(open) {
    __atomic_store_n((uint64_t *)P(1), 1, __ATOMIC_SEQ_CST);
    return DVMM_SUCCESS;
}

CALL_VERB(null_file) {
    *out = (uint64_t)open("/dev/null", O_RDONLY | O_CLOEXEC);
    return DVMM_SUCCESS;
}

CALL_VERB(close) {
    return close((int)N(1));
}

CALL_VERB(release_all) {
    for (size_t i = 0; i < l->n_things; i++) {
        if (l->things[i].kind == A_HANDLE) {
            need(l, "release", CALL(l, phys_release, l->things[i].it));
            l->things[i].kind = NOTHING;
        }
    }
    return DVMM_SUCCESS;
}

CALL_VERB(blocking) {
    *out = (uint64_t)(uintptr_t)new_blocking_stream(l);
    return DVMM_SUCCESS;
}

CALL_VERB(host_function) {
    hold_by_host_function(l, P(1), P(2));
    return DVMM_SUCCESS;
}

CALL_VERB(graph) {
    *out = (uint64_t)(uintptr_t)end_capture_as_graph(l, P(1));
    return DVMM_SUCCESS;
}

CALL_VERB(launch) {
    launch_graph(l, P(1), P(2));
    return DVMM_SUCCESS;
}

CALL_VERB(drop_graph) {
    destroy_graph(l, P(1));
    return DVMM_SUCCESS;
}

/* "x = open_elsewhere green": its stream. */
CALL_VERB(open_elsewhere) {
    l->elsewhere = open_elsewhere(l, has_word(w, "green"));
    *out = (uint64_t)(uintptr_t)l->elsewhere.stream;
    return DVMM_SUCCESS;
}

CALL_VERB(hold_elsewhere) {
    hold_elsewhere(l, &l->elsewhere, P(1));
    return DVMM_SUCCESS;
}

CALL_VERB(begin_elsewhere) {
    begin_capture_elsewhere(l, &l->elsewhere);
    return DVMM_SUCCESS;
}

CALL_VERB(close_elsewhere) {
    close_elsewhere(l, &l->elsewhere);
    return DVMM_SUCCESS;
}

/* ---- Words --------------------------------------------------------------------------------- */

typedef enum tone { SAID, PREPARES, SILENT } tone;

typedef struct call_word {
    const char *word;
    call_fn call;
    tone tone;
    lab_kind makes; /* what it gives, to be undone               */
    lab_kind ends;  /* what its first operand is not any more    */
    const char *as; /* what a failed preparation is; NULL: word  */
} call_word;

#define IS(name)                                                                                   \
    { #name, call_##name, SAID, NOTHING, NOTHING, NULL }
#define NO_CODE(name)                                                                              \
    { #name, call_##name, SILENT, NOTHING, NOTHING, NULL }
#define MAKES(name, kind)                                                                          \
    { #name, call_##name, SAID, kind, NOTHING, NULL }
#define ENDS(name, kind)                                                                           \
    { #name, call_##name, SAID, NOTHING, kind, NULL }

static const call_word call_words[] = {
    {"range", call_address_reserve, PREPARES, A_RANGE, NOTHING, "reserve"},
    {"handle", call_phys_create, PREPARES, A_HANDLE, NOTHING, "create"},
    {"stream", call_stream_create, PREPARES, A_STREAM, NOTHING, "stream_create"},
    {"event", call_event_create, PREPARES, AN_EVENT, NOTHING, "event_create"},
    {"word", call_host_alloc, PREPARES, HOST_MEMORY, NOTHING, "host_alloc"},
    MAKES(address_reserve, A_RANGE),
    MAKES(phys_create, A_HANDLE),
    MAKES(phys_import, A_HANDLE),
    MAKES(mem_alloc, CLASSIC_MEMORY),
    {"mem_alloc_async", call_mem_alloc_async, SAID, ORDERED_MEMORY, NOTHING, "alloc"},
    MAKES(stream_create, A_STREAM),
    MAKES(event_create, AN_EVENT),
    MAKES(host_alloc, HOST_MEMORY),
    ENDS(address_free, A_RANGE),
    ENDS(phys_release, A_HANDLE),
    ENDS(mem_free, CLASSIC_MEMORY),
    {"mem_free_async", call_mem_free_async, SAID, NOTHING, ORDERED_MEMORY, "free"},
    ENDS(stream_destroy, A_STREAM),
    ENDS(event_destroy, AN_EVENT),
    ENDS(host_free, HOST_MEMORY),
    IS(mem_info),
    IS(map),
    IS(unmap),
    IS(set_access),
    IS(get_access),
    IS(can_access_peer),
    IS(set_access_for),
    IS(phys_export),
    IS(async_pool_info),
    IS(async_pool_trim),
    IS(stream_sync),
    IS(stream_query),
    IS(stream_wait_event),
    IS(stream_wait_value),
    IS(capture_status),
    IS(capture_begin),
    IS(capture_end),
    IS(capture_exchange_mode),
    IS(context_sync),
    IS(context_record),
    IS(event_record),
    IS(event_query),
    IS(event_sync),
    IS(fill),
    IS(copy),
    IS(upload),
    IS(read_back),
    IS(copy_batch),
    IS(done),
    IS(ours),
    IS(end_elsewhere),
    IS(create_all),
    NO_CODE(see),
    NO_CODE(see_for),
    NO_CODE(status),
    NO_CODE(is),
    NO_CODE(where),
    NO_CODE(put),
    NO_CODE(hex),
    NO_CODE(list),
    NO_CODE(text),
    NO_CODE(name_context),
    NO_CODE(value),
    NO_CODE(set),
    NO_CODE(open),
    NO_CODE(null_file),
    NO_CODE(close),
    NO_CODE(release_all),
    NO_CODE(blocking),
    NO_CODE(host_function),
    NO_CODE(graph),
    NO_CODE(launch),
    NO_CODE(drop_graph),
    NO_CODE(open_elsewhere),
    NO_CODE(hold_elsewhere),
    NO_CODE(begin_elsewhere),
    NO_CODE(close_elsewhere),
};

static const call_word *find_word(const char *word) {
    for (size_t i = 0; i < COUNT_OF(call_words); i++) {
        if (strcmp(call_words[i].word, word) == 0) {
            return &call_words[i];
        }
    }
    lab_refuse("no operation has that name", word);
}

/* What one call may end: memory of a stream can be freed as any other, too. A handle, a stream or
 * an event is not touched again, whatever the call said. */
static void note_end(lab *l, const call_word *c, const words *w, int code) {
    bool is_sure = c->ends == A_HANDLE || c->ends == A_STREAM || c->ends == AN_EVENT;
    if (c->ends != NOTHING && (is_sure || code == DVMM_SUCCESS)) {
        forget(l, c->ends, N(1));
        if (c->ends == CLASSIC_MEMORY) {
            forget(l, ORDERED_MEMORY, N(1));
        }
    }
}

void lab_make_call(lab *l, const words *w) {
    const char *word = w->at[0] + strspn(w->at[0], "+-");
    const call_word *c = find_word(word);
    tone how = w->at[0][0] == '+' ? PREPARES : w->at[0][0] == '-' ? SILENT : c->tone;
    uint64_t out = 0;
    int code = c->call(l, w, &out);
    note_end(l, c, w, code);
    if (code == DVMM_SUCCESS && c->makes != NOTHING) {
        remember(l, c->makes, out, c->makes == ORDERED_MEMORY ? N(2) : N(1));
    }
    name_value(l, w->target, out);
    if (how == PREPARES) {
        need(l, c->as != NULL ? c->as : word, code);
    } else if (how == SAID && !l->is_quiet) {
        say(l, code);
    }
    l->code = how == SAID || c->tone == SILENT ? code : l->code;
}
