/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/callbacks/map_callbacks.h"

#include "pool/base/allocator.h"
#include "pool/base/events.h"
#include "pool/base/guards.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct map_callbacks {
    dpool_service service;
    dpool_callbacks all;
} map_callbacks;

/* The tag may be changed meanwhile, also by the callback: it sees a copy. */
static void copy_tag(ductile_allocator *a, ductile_map_event *event, char *tag, size_t size) {
    dti_lock_acquire(&a->index_lock);
    (void)snprintf(tag, size, "%s", event->tag);
    dti_lock_release(&a->index_lock);
    event->tag = tag;
}

/* In the order of their priorities; in reverse when memory leaves. */
static void call_all(dpool_service *s, ductile_allocator *a, const ductile_map_event *event) {
    dpool_callbacks *all = &((map_callbacks *)s)->all;
    char tag[DUCTILE_TAG_BYTES];
    ductile_map_event seen = *event;
    copy_tag(a, &seen, tag, sizeof tag);
    bool is_leaving = event->change == DUCTILE_MAP_LEAVING;
    dpool_callback_place at = {.has_begun = false};
    dpool_callback_frame frame;
    while (
        dpool_callbacks_enter(all, &at, is_leaving ? DPOOL_STEP_BACK : DPOOL_STEP_NEXT, &frame)) {
        ((ductile_map_fn)frame.callback->fn)(frame.callback->user, a, &seen);
        dpool_callbacks_leave(all, &frame);
    }
}

static bool listens(const dpool_service *s) {
    return atomic_load_explicit(&((const map_callbacks *)s)->all.has_any, memory_order_relaxed);
}

static bool is_at_rest(dpool_service *s) {
    return dpool_callbacks_at_rest(&((map_callbacks *)s)->all);
}

static void end(dpool_service *s, ductile_allocator *a) {
    (void)a;
    dpool_callbacks_fini(&((map_callbacks *)s)->all);
    free(s);
}

static const dpool_events events = {
    .granules = call_all, .listens = listens, .is_at_rest = is_at_rest, .end = end};

ductile_status dpool_map_callbacks_begin(ductile_allocator *a) {
    map_callbacks *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    m->service.events = &events;
    dpool_callbacks_init(&m->all, DPOOL_CALLBACK_MAP);
    dpool_service_add(a, &m->service);
    return DUCTILE_OK;
}

/* ---- Registering --------------------------------------------------------------------------- */

static dpool_callbacks *callbacks_of(ductile_allocator *a) {
    dpool_service *s = a->services;
    while (s->events != &events) {
        s = s->next;
    }
    return &((map_callbacks *)s)->all;
}

ductile_status ductile_add_map_callback(ductile_allocator *a, ductile_map_fn callback, void *user,
                                        int priority, uint64_t *id) {
    if (id == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *id = 0;
    DTI_TRY(callback != NULL ? dpool_may_read(a) : DUCTILE_ERR_INVALID_ARGUMENT);
    return dpool_callbacks_add(callbacks_of(a), (dpool_callback_fn)callback, user, priority, id);
}

ductile_status ductile_remove_map_callback(ductile_allocator *a, uint64_t id) {
    DTI_TRY(dpool_may_read(a));
    return dpool_callbacks_remove(callbacks_of(a), id);
}
