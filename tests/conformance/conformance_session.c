/* SPDX-License-Identifier: Apache-2.0 */
/* The workbench of a conformance row. */
#include "tests/conformance/conformance_session.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void name_values(session *s, const dvmm_caps *caps) {
    const struct {
        const char *name;
        uint64_t value;
    } known[] = {{"g", s->granule},
                 {"half", s->granule / 2},
                 {"total", caps->total_bytes},
                 {"all", caps->total_bytes / s->granule * s->granule},
                 {"has_pool", s->bench->has_async_pool(s->ctx)},
                 {"bytes", (uint64_t)(uintptr_t)s->bytes},
                 {"legacy", 0}, /* streams */
                 {"own", 2},    /* of this thread */
                 {"absent", 60},
                 {"none", DVMM_ACCESS_NONE},
                 {"read", DVMM_ACCESS_READ},
                 {"rw", DVMM_ACCESS_RW},
                 {"global", DVMM_CAPTURE_GLOBAL},
                 {"local", DVMM_CAPTURE_THREAD_LOCAL},
                 {"relaxed", DVMM_CAPTURE_RELAXED}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        (void)names_set(&s->names, known[i].name, known[i].value);
    }
}

void session_init(session *s, dvmm_driver *driver) {
    const dvmm_caps *caps = dvmm_get_caps(driver);
    memset(s, 0, sizeof(*s));
    s->ops = dvmm_raw_ops(driver, &s->ctx);
    s->bench = bench_raw_ops(driver, &s->ctx);
    s->granule = caps->granule_bytes;
    s->is_virtual = caps->is_virtual;
    s->ordinal = caps->ordinal;
    name_values(s, caps);
}

/* ---- What is undone ------------------------------------------------------------------------ */

void remember(session *s, resource_kind kind, uint64_t it, uint64_t beside) {
    resources_add(&s->made, kind, it, beside);
    if (kind == A_RANGE) { /* whatever is mapped there then */
        resources_add(&s->made, A_MAPPING, it, beside);
    }
}

void forget(session *s, resource_kind kind, uint64_t it) {
    for (size_t i = 0; i < s->made.n && kind == A_STREAM; i++) {
        resource *t = &s->made.all[i];
        bool is_of_stream = t->kind == ORDERED_MEMORY && t->beside == it;
        t->beside = is_of_stream ? 0 : t->beside; /* to be freed on the legacy stream */
    }
    resources_take_out(&s->made, kind, it);
    if (kind == A_RANGE) {
        resources_take_out(&s->made, A_MAPPING, it);
    }
}

/* Codes do not matter here: a row may have broken what it made, and has said so. No row makes too
 * many things; one that does is a mistake in the row. */
void session_clean(session *s) {
    resource ignored;
    if (s->made.has_overflowed) {
        abort();
    }
    session_leave_elsewhere(s);
    (void)resources_undo(&s->made, s->ops, s->bench, s->ctx, &ignored);
}

/* ---- What the row says --------------------------------------------------------------------- */

__attribute__((format(printf, 3, 0))) static void append(char *text, const char *separator,
                                                         const char *format, va_list args) {
    size_t used = strlen(text);
    if (used > 0 && used < SESSION_TEXT) {
        used += (size_t)snprintf(text + used, SESSION_TEXT - used, "%s", separator);
    }
    if (used < SESSION_TEXT) {
        (void)vsnprintf(text + used, SESSION_TEXT - used, format, args);
    }
}

__attribute__((format(printf, 2, 3))) static void append_code(session *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(s->codes, ",", format, args);
    va_end(args);
}

void say(session *s, int code) {
    append_code(s, "%d", code);
}

void note(session *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(s->state, " ", format, args);
    va_end(args);
}

void need(session *s, const char *call, int code) {
    if (code != DVMM_SUCCESS) {
        note(s, "setup %s=%d", call, code);
    }
}

const char *capture_word(session *s, ductile_stream stream) {
    static const char *const known[] = {"none", "active", "broken"};
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    int code = CALL(s, capture_status, stream, &status);
    return code != DVMM_SUCCESS                 ? dvmm_code_name(code)
           : (unsigned)status < COUNT_OF(known) ? known[status]
                                                : "unknown";
}

/* ---- Another thread ------------------------------------------------------------------------ */

typedef struct thread_work {
    void (*work)(void *argument);
    void *argument;
} thread_work;

static void *run_work(void *argument) {
    const thread_work *w = argument;
    w->work(w->argument);
    return NULL;
}

void on_other_thread(session *s, void (*work)(void *argument), void *argument) {
    thread_work w = {work, argument};
    pthread_t thread;
    int code = pthread_create(&thread, NULL, run_work, &w);
    need(s, "thread", code);
    if (code == 0) {
        (void)pthread_join(thread, NULL);
    }
}
