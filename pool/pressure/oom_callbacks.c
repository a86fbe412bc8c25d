/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/pressure/oom_callbacks.h"

#include "pool/base/guards.h"

enum {
    MOST_TIMES = 16
}; /* how often one request calls one callback; ductile_pressure.h documents it */

/* Enters the same callback again while that may help, otherwise the next one. */
static bool enter(dpool_callbacks *all, dpool_oom_walk *walk, dpool_callback_frame *frame) {
    bool stays = walk->n_asked > 0 && walk->n_asked < MOST_TIMES;
    uint64_t before = walk->at.id;
    if (!dpool_callbacks_enter(all, &walk->at, stays ? DPOOL_STEP_STAY : DPOOL_STEP_NEXT, frame)) {
        return false;
    }
    walk->n_asked = walk->at.id == before ? walk->n_asked + 1 : 1;
    return true;
}

bool dpool_oom_callbacks_ask(ductile_allocator *a, dpool_oom_walk *walk, uint64_t missing,
                             ductile_stream stream) {
    dpool_callbacks *all = &a->oom_callbacks;
    dpool_callback_frame frame;
    bool has_given = false;
    if (dpool_is_inside_callback(DPOOL_CALLBACK_OOM)) {
        return false;
    }
    while (!has_given && enter(all, walk, &frame)) {
        ductile_oom_fn ask = (ductile_oom_fn)frame.callback->fn;
        has_given = ask(frame.callback->user, a, missing, stream) > 0;
        walk->n_asked = has_given ? walk->n_asked : 0;
        dpool_callbacks_leave(all, &frame);
    }
    return has_given;
}

ductile_status ductile_add_oom_callback(ductile_allocator *a, ductile_oom_fn callback, void *user,
                                        int priority, uint64_t *id) {
    if (id == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *id = 0;
    DTI_TRY(callback != NULL ? dpool_may_read(a) : DUCTILE_ERR_INVALID_ARGUMENT);
    return dpool_callbacks_add(&a->oom_callbacks, (dpool_callback_fn)callback, user, priority, id);
}

ductile_status ductile_remove_oom_callback(ductile_allocator *a, uint64_t id) {
    DTI_TRY(dpool_may_read(a));
    return dpool_callbacks_remove(&a->oom_callbacks, id);
}
