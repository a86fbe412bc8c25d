/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/callback_list.h"

#include "vmm/base/array.h"

#include <stdlib.h>

/* The callbacks that this thread is inside, of any allocator. */
static _Thread_local dpool_callback_frame *innermost;

void dpool_callbacks_init(dpool_callbacks *all, dpool_callback_kind kind) {
    (void)pthread_mutex_init(&all->lock, NULL);
    (void)pthread_cond_init(&all->left, NULL);
    all->first = NULL;
    all->n_given = 0;
    all->n_waiting = 0;
    all->kind = kind;
    atomic_init(&all->has_any, false);
}

void dpool_callbacks_fini(dpool_callbacks *all) {
    while (all->first != NULL) {
        dpool_callback *gone = all->first;
        all->first = gone->next;
        free(gone);
    }
    (void)pthread_cond_destroy(&all->left);
    (void)pthread_mutex_destroy(&all->lock);
}

bool dpool_callbacks_at_rest(dpool_callbacks *all) {
    if (pthread_mutex_trylock(&all->lock) != 0) {
        return false;
    }
    bool at_rest = all->n_waiting == 0;
    (void)pthread_mutex_unlock(&all->lock);
    return at_rest;
}

/* ---- The list, under its lock -------------------------------------------------------------- */

static bool comes_before(const dpool_callback *c, int priority, uint64_t id) {
    return c->priority != priority ? c->priority < priority : c->id < id;
}

static void insert_locked(dpool_callbacks *all, dpool_callback *c) {
    c->id = ++all->n_given;
    dpool_callback **link = &all->first;
    while (*link != NULL && comes_before(*link, c->priority, c->id)) {
        link = &(*link)->next;
    }
    c->next = *link;
    *link = c;
}

static void free_if_left_locked(dpool_callbacks *all, dpool_callback *c) {
    if (!c->is_removed || c->n_inside > 0) {
        return;
    }
    DTI_UNLINK(all->first, c, next);
    free(c);
}

static dpool_callback *find_locked(const dpool_callbacks *all, uint64_t id) {
    dpool_callback *c = all->first;
    while (c != NULL && (c->id != id || c->is_removed)) {
        c = c->next;
    }
    return c;
}

static void record_whether_any_locked(dpool_callbacks *all) {
    const dpool_callback *c = all->first;
    while (c != NULL && c->is_removed) {
        c = c->next;
    }
    atomic_store_explicit(&all->has_any, c != NULL, memory_order_relaxed);
}

/* ---- Walking ------------------------------------------------------------------------------- */

static bool lies_ahead(const dpool_callback *c, const dpool_callback_place *at,
                       dpool_callback_step step) {
    if (c->is_removed) {
        return false;
    }
    if (!at->has_begun) {
        return true;
    }
    if (c->id == at->id) {
        return step == DPOOL_STEP_STAY;
    }
    return comes_before(c, at->priority, at->id) == (step == DPOOL_STEP_BACK);
}

/* Walking back: the last callback ahead; otherwise the first. */
static dpool_callback *find_ahead_locked(const dpool_callbacks *all, const dpool_callback_place *at,
                                         dpool_callback_step step) {
    dpool_callback *found = NULL;
    for (dpool_callback *c = all->first; c != NULL; c = c->next) {
        if (lies_ahead(c, at, step)) {
            found = c;
            if (step != DPOOL_STEP_BACK) {
                break;
            }
        }
    }
    return found;
}

bool dpool_callbacks_enter(dpool_callbacks *all, dpool_callback_place *at, dpool_callback_step step,
                           dpool_callback_frame *frame) {
    (void)pthread_mutex_lock(&all->lock);
    dpool_callback *c = find_ahead_locked(all, at, step);
    if (c != NULL) {
        c->n_inside++;
        *at = (dpool_callback_place){true, c->priority, c->id};
        *frame = (dpool_callback_frame){c, all->kind, innermost};
        innermost = frame;
    }
    (void)pthread_mutex_unlock(&all->lock);
    return c != NULL;
}

void dpool_callbacks_leave(dpool_callbacks *all, dpool_callback_frame *frame) {
    innermost = frame->outer;
    (void)pthread_mutex_lock(&all->lock);
    frame->callback->n_inside--;
    free_if_left_locked(all, frame->callback);
    (void)pthread_cond_broadcast(&all->left);
    (void)pthread_mutex_unlock(&all->lock);
}

bool dpool_is_inside_callback(dpool_callback_kind kind) {
    const dpool_callback_frame *frame = innermost;
    while (frame != NULL && frame->kind != kind) {
        frame = frame->outer;
    }
    return frame != NULL;
}

/* ---- Registering --------------------------------------------------------------------------- */

ductile_status dpool_callbacks_add(dpool_callbacks *all, dpool_callback_fn fn, void *user,
                                   int priority, uint64_t *id) {
    dpool_callback *c = calloc(1, sizeof *c);
    *id = 0;
    if (c == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *c = (dpool_callback){.fn = fn, .user = user, .priority = priority};
    (void)pthread_mutex_lock(&all->lock);
    insert_locked(all, c);
    record_whether_any_locked(all);
    *id = c->id;
    (void)pthread_mutex_unlock(&all->lock);
    return DUCTILE_OK;
}

static unsigned times_inside(const dpool_callback *c) {
    unsigned n = 0;
    for (const dpool_callback_frame *frame = innermost; frame != NULL; frame = frame->outer) {
        n += frame->callback == c;
    }
    return n;
}

ductile_status dpool_callbacks_remove(dpool_callbacks *all, uint64_t id) {
    (void)pthread_mutex_lock(&all->lock);
    dpool_callback *c = find_locked(all, id);
    if (c == NULL) {
        (void)pthread_mutex_unlock(&all->lock);
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    c->is_removed = true;
    record_whether_any_locked(all);
    c->n_inside++; /* keeps the callback until this thread has read it */
    all->n_waiting++;
    while (c->n_inside - 1 > times_inside(c)) {
        (void)pthread_cond_wait(&all->left, &all->lock);
    }
    all->n_waiting--;
    c->n_inside--;
    free_if_left_locked(all, c);
    (void)pthread_mutex_unlock(&all->lock);
    return DUCTILE_OK;
}
