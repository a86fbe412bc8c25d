/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/map_callbacks.h"

#include "pool/base/allocator.h"
#include "pool/base/guards.h"

#include <stdio.h>

bool dpool_announces(const ductile_allocator *a) {
    return atomic_load_explicit(&a->map_callbacks.has_any, memory_order_relaxed);
}

ductile_map_event dpool_new_map_event(const ductile_allocator *a, ductile_map_change change) {
    return (ductile_map_event){
        .struct_size = sizeof(ductile_map_event),
        .change = change,
        .device = dvmm_get_caps(a->driver)->ordinal,
        .tag = "",
    };
}

/* The tag may be changed meanwhile, also by the callback: it sees a copy. */
static void copy_tag(ductile_allocator *a, ductile_map_event *event, char *tag, size_t size) {
    dti_lock_acquire(&a->index_lock);
    (void)snprintf(tag, size, "%s", event->tag);
    dti_lock_release(&a->index_lock);
    event->tag = tag;
}

void dpool_announce(ductile_allocator *a, const ductile_map_event *event) {
    dpool_callbacks *all = &a->map_callbacks;
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

/* ---- Registering --------------------------------------------------------------------------- */

ductile_status ductile_add_map_callback(ductile_allocator *a, ductile_map_fn callback, void *user,
                                        int priority, uint64_t *id) {
    if (id == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *id = 0;
    DTI_TRY(callback != NULL ? dpool_may_read(a) : DUCTILE_ERR_INVALID_ARGUMENT);
    return dpool_callbacks_add(&a->map_callbacks, (dpool_callback_fn)callback, user, priority, id);
}

ductile_status ductile_remove_map_callback(ductile_allocator *a, uint64_t id) {
    DTI_TRY(dpool_may_read(a));
    return dpool_callbacks_remove(&a->map_callbacks, id);
}
