/* SPDX-License-Identifier: Apache-2.0 */
/* The workbench of a conformance row. */
#include "tests/conformance/conformance_lab.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void name_values(lab *l, const dvmm_caps *caps) {
    const struct {
        const char *name;
        uint64_t value;
    } known[] = {{"g", l->granule},
                 {"half", l->granule / 2},
                 {"total", caps->total_bytes},
                 {"all", caps->total_bytes / l->granule * l->granule},
                 {"has_pool", caps->has_async_pool},
                 {"bytes", (uint64_t)(uintptr_t)l->bytes},
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
        (void)names_set(&l->names, known[i].name, known[i].value);
    }
}

void lab_init(lab *l, dvmm_driver *driver) {
    const dvmm_caps *caps = dvmm_get_caps(driver);
    memset(l, 0, sizeof(*l));
    l->ops = dvmm_raw_ops(driver, &l->ctx);
    l->granule = caps->granule_bytes;
    l->is_virtual = caps->is_virtual;
    l->ordinal = caps->ordinal;
    name_values(l, caps);
}

/* ---- What is undone ------------------------------------------------------------------------ */

void remember(lab *l, thing_kind kind, uint64_t it, uint64_t beside) {
    things_add(&l->made, kind, it, beside);
    if (kind == A_RANGE) { /* whatever is mapped there then */
        things_add(&l->made, A_MAPPING, it, beside);
    }
}

void forget(lab *l, thing_kind kind, uint64_t it) {
    for (size_t i = 0; i < l->made.n && kind == A_STREAM; i++) {
        thing *t = &l->made.all[i];
        bool is_of_stream = t->kind == ORDERED_MEMORY && t->beside == it;
        t->beside = is_of_stream ? 0 : t->beside; /* to be freed on the legacy stream */
    }
    things_take_out(&l->made, kind, it);
    if (kind == A_RANGE) {
        things_take_out(&l->made, A_MAPPING, it);
    }
}

/* Codes do not matter here: a row may have broken what it made, and has said so. No row makes too
 * many things; one that does is a mistake in the row. */
void lab_clean(lab *l) {
    thing ignored;
    if (l->made.has_overflowed) {
        abort();
    }
    lab_leave_elsewhere(l);
    (void)things_undo(&l->made, l->ops, l->ctx, &ignored);
}

/* ---- What the row says --------------------------------------------------------------------- */

__attribute__((format(printf, 3, 0))) static void append(char *text, const char *separator,
                                                         const char *format, va_list args) {
    size_t used = strlen(text);
    if (used > 0 && used < LAB_TEXT) {
        used += (size_t)snprintf(text + used, LAB_TEXT - used, "%s", separator);
    }
    if (used < LAB_TEXT) {
        (void)vsnprintf(text + used, LAB_TEXT - used, format, args);
    }
}

__attribute__((format(printf, 2, 3))) static void append_code(lab *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(l->codes, ",", format, args);
    va_end(args);
}

void say(lab *l, int code) {
    append_code(l, "%d", code);
}

void note(lab *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(l->state, " ", format, args);
    va_end(args);
}

void need(lab *l, const char *call, int code) {
    if (code != DVMM_SUCCESS) {
        note(l, "setup %s=%d", call, code);
    }
}

const char *capture_word(lab *l, ductile_stream stream) {
    static const char *const known[] = {"none", "active", "broken"};
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    int code = CALL(l, capture_status, stream, &status);
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

void on_other_thread(lab *l, void (*work)(void *argument), void *argument) {
    thread_work w = {work, argument};
    pthread_t thread;
    int code = pthread_create(&thread, NULL, run_work, &w);
    need(l, "thread", code);
    if (code == 0) {
        (void)pthread_join(thread, NULL);
    }
}
