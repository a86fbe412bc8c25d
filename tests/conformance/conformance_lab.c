/* SPDX-License-Identifier: Apache-2.0 */
/* The workbench of a conformance row. */
#include "tests/conformance/conformance_lab.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void lab_init(lab *l, dvmm_driver *driver) {
    memset(l, 0, sizeof(*l));
    l->ops = dvmm_raw_ops(driver, &l->ctx);
    l->granule = dvmm_get_caps(driver)->granule_bytes;
    l->total = dvmm_get_caps(driver)->total_bytes;
    l->has_async_pool = dvmm_get_caps(driver)->has_async_pool;
    l->is_virtual = dvmm_get_caps(driver)->is_virtual;
    l->ordinal = dvmm_get_caps(driver)->ordinal;
}

/* Codes do not matter here: a row may have broken what it made, and has said so. Streams go first,
 * so that nothing runs on memory that is being unmapped. */
void lab_clean(lab *l) {
    for (size_t i = 0; i < l->n_streams; i++) {
        (void)l->ops->stream_sync(l->ctx, l->streams[i]);
        (void)l->ops->stream_destroy(l->ctx, l->streams[i]);
    }
    for (size_t i = 0; i < l->n_events; i++) {
        (void)l->ops->event_destroy(l->ctx, l->events[i]);
    }
    for (size_t i = 0; i < l->n_ranges; i++) {
        (void)l->ops->unmap(l->ctx, l->ranges[i].addr, l->ranges[i].size);
        (void)l->ops->address_free(l->ctx, l->ranges[i].addr, l->ranges[i].size);
    }
    for (size_t i = 0; i < l->n_handles; i++) {
        (void)l->ops->phys_release(l->ctx, l->handles[i]);
    }
    for (size_t i = 0; i < l->n_host; i++) {
        (void)l->ops->host_free(l->ctx, l->host[i]);
    }
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

int say(lab *l, int code) {
    append_code(l, "%d", code);
    return code;
}

void note(lab *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append(l->state, " ", format, args);
    va_end(args);
}

void note_access(lab *l, const char *name, ductile_addr addr) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = l->ops->get_access(l->ctx, addr, &access);
    if (code == DVMM_SUCCESS) {
        note(l, "%s=%d", name, (int)access);
    } else {
        note(l, "%s=!%d", name, code);
    }
}

void need(lab *l, const char *call, int code) {
    if (code != DVMM_SUCCESS) {
        note(l, "setup %s=%d", call, code);
    }
}

const char *capture_word(dvmm_capture_status status) {
    static const char *const words[] = {"none", "active", "broken"};
    return (unsigned)status < COUNT_OF(words) ? words[status] : "unknown";
}

/* ---- Preparing ----------------------------------------------------------------------------- */

/* No row makes so many things; one that does is a mistake in the row. */
#define REMEMBER(list, count, value)                                                               \
    do {                                                                                           \
        if ((count) == LAB_MOST) {                                                                 \
            abort();                                                                               \
        }                                                                                          \
        (list)[(count)++] = (value);                                                               \
    } while (0)

#define FORGET(list, count, value)                                                                 \
    do {                                                                                           \
        for (size_t forget_i = 0; forget_i < (count); forget_i++) {                                \
            if ((list)[forget_i] == (value)) {                                                     \
                (list)[forget_i] = (list)[--(count)];                                              \
                break;                                                                             \
            }                                                                                      \
        }                                                                                          \
    } while (0)

ductile_addr reserve(lab *l, uint64_t n_granules) {
    lab_range range = {.size = n_granules * l->granule};
    int code = l->ops->address_reserve(l->ctx, range.size, 0, 0, &range.addr);
    need(l, "reserve", code);
    if (code == DVMM_SUCCESS) {
        REMEMBER(l->ranges, l->n_ranges, range);
    }
    return range.addr;
}

dvmm_phys create(lab *l, uint64_t n_granules) {
    const dvmm_phys_props plain = {0};
    dvmm_phys phys = 0;
    int code = l->ops->phys_create(l->ctx, n_granules * l->granule, &plain, &phys);
    need(l, "create", code);
    if (code == DVMM_SUCCESS) {
        REMEMBER(l->handles, l->n_handles, phys);
    }
    return phys;
}

void map(lab *l, ductile_addr addr, uint64_t n_granules, dvmm_phys phys) {
    need(l, "map", l->ops->map(l->ctx, addr, n_granules * l->granule, 0, phys));
}

void open_access(lab *l, ductile_addr addr, uint64_t n_granules) {
    need(l, "set_access",
         l->ops->set_access(l->ctx, addr, n_granules * l->granule, DVMM_ACCESS_RW));
}

ductile_addr mapped(lab *l, uint64_t n_granules, dvmm_phys *phys) {
    ductile_addr addr = reserve(l, n_granules);
    dvmm_phys made = create(l, n_granules);
    map(l, addr, n_granules, made);
    open_access(l, addr, n_granules);
    if (phys != NULL) {
        *phys = made;
    }
    return addr;
}

ductile_addr mapped_row(lab *l, uint64_t n_handles, uint64_t extra) {
    ductile_addr addr = reserve(l, n_handles + extra);
    for (uint64_t i = 0; i < n_handles; i++) {
        map(l, addr + i * l->granule, 1, create(l, 1));
    }
    open_access(l, addr, n_handles);
    return addr;
}

void keep_stream(lab *l, ductile_stream stream) {
    REMEMBER(l->streams, l->n_streams, stream);
}

ductile_stream new_stream(lab *l) {
    ductile_stream stream = NULL;
    int code = l->ops->stream_create(l->ctx, &stream);
    need(l, "stream_create", code);
    if (code == DVMM_SUCCESS) {
        keep_stream(l, stream);
    }
    return stream;
}

dvmm_event new_event(lab *l) {
    dvmm_event event = NULL;
    int code = l->ops->event_create(l->ctx, &event);
    need(l, "event_create", code);
    if (code == DVMM_SUCCESS) {
        REMEMBER(l->events, l->n_events, event);
    }
    return event;
}

uint64_t *new_host_word(lab *l) {
    void *memory = NULL;
    int code = l->ops->host_alloc(l->ctx, sizeof(uint64_t), &memory);
    need(l, "host_alloc", code);
    if (code != DVMM_SUCCESS) {
        static uint64_t nowhere;
        return &nowhere;
    }
    REMEMBER(l->host, l->n_host, memory);
    uint64_t *word = memory;
    *word = 0;
    return word;
}

void forget_handle(lab *l, dvmm_phys phys) {
    FORGET(l->handles, l->n_handles, phys);
}

void forget_range(lab *l, ductile_addr addr) {
    for (size_t i = 0; i < l->n_ranges; i++) {
        if (l->ranges[i].addr == addr) {
            l->ranges[i] = l->ranges[--l->n_ranges];
            return;
        }
    }
}

void forget_stream(lab *l, ductile_stream stream) {
    FORGET(l->streams, l->n_streams, stream);
}

void forget_event(lab *l, dvmm_event event) {
    FORGET(l->events, l->n_events, event);
}

void forget_host(lab *l, void *memory) {
    FORGET(l->host, l->n_host, memory);
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
