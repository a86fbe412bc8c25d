/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/oom_callbacks.h"

#include "pool/arena.h"

#include <stdlib.h>

enum { MOST_TIMES = 16 }; /* one request asks one callback; ductile_pressure.h says so too */

struct dpool_oom_callback {
    ductile_oom_fn callback;
    void *user;
    int priority;
    uint64_t id;
    unsigned n_inside; /* threads */
    bool is_removed;
    dpool_oom_callback *next; /* by priority, then number */
};

/* What this thread is inside of, on whatever allocator. */
static _Thread_local const dpool_oom_callback *inside;

void dpool_oom_callbacks_init(dpool_oom_callbacks *all) {
    (void)pthread_mutex_init(&all->lock, NULL);
    (void)pthread_cond_init(&all->left, NULL);
    all->first = NULL;
    all->n_given = 0;
    all->n_waiting = 0;
}

void dpool_oom_callbacks_fini(dpool_oom_callbacks *all) {
    while (all->first != NULL) {
        dpool_oom_callback *gone = all->first;
        all->first = gone->next;
        free(gone);
    }
    (void)pthread_cond_destroy(&all->left);
    (void)pthread_mutex_destroy(&all->lock);
}

bool dpool_oom_callbacks_at_rest(dpool_oom_callbacks *all) {
    if (pthread_mutex_trylock(&all->lock) != 0) {
        return false;
    }
    bool at_rest = all->n_waiting == 0;
    (void)pthread_mutex_unlock(&all->lock);
    return at_rest;
}

/* ---- The list, under its lock -------------------------------------------------------------- */

static bool comes_before(const dpool_oom_callback *c, int priority, uint64_t id) {
    return c->priority != priority ? c->priority < priority : c->id < id;
}

static void insert_locked(dpool_oom_callbacks *all, dpool_oom_callback *c) {
    c->id = ++all->n_given;
    dpool_oom_callback **link = &all->first;
    while (*link != NULL && comes_before(*link, c->priority, c->id)) {
        link = &(*link)->next;
    }
    c->next = *link;
    *link = c;
}

static void free_if_left_locked(dpool_oom_callbacks *all, dpool_oom_callback *c) {
    if (!c->is_removed || c->n_inside > 0) {
        return;
    }
    dpool_oom_callback **link = &all->first;
    while (*link != c) {
        link = &(*link)->next;
    }
    *link = c->next;
    free(c);
}

static dpool_oom_callback *find_locked(const dpool_oom_callbacks *all, uint64_t id) {
    dpool_oom_callback *c = all->first;
    while (c != NULL && (c->id != id || c->is_removed)) {
        c = c->next;
    }
    return c;
}

/* ---- Asking -------------------------------------------------------------------------------- */

static bool is_reached(const dpool_oom_callback *c, const dpool_oom_walk *walk) {
    if (!walk->has_begun) {
        return true;
    }
    bool is_same = c->id == walk->id;
    return is_same ? walk->n_asked < MOST_TIMES : !comes_before(c, walk->priority, walk->id);
}

/* The callback the walk has reached, held; NULL at the end. */
static dpool_oom_callback *enter_next(dpool_oom_callbacks *all, dpool_oom_walk *walk) {
    (void)pthread_mutex_lock(&all->lock);
    dpool_oom_callback *c = all->first;
    while (c != NULL && (c->is_removed || !is_reached(c, walk))) {
        c = c->next;
    }
    if (c != NULL) {
        c->n_inside++;
        walk->n_asked = walk->has_begun && walk->id == c->id ? walk->n_asked + 1 : 1;
        walk->has_begun = true;
        walk->priority = c->priority;
        walk->id = c->id;
    }
    (void)pthread_mutex_unlock(&all->lock);
    return c;
}

static void leave(dpool_oom_callbacks *all, dpool_oom_callback *c) {
    (void)pthread_mutex_lock(&all->lock);
    c->n_inside--;
    free_if_left_locked(all, c);
    (void)pthread_cond_broadcast(&all->left);
    (void)pthread_mutex_unlock(&all->lock);
}

bool dpool_oom_callbacks_ask(ductile_allocator *a, dpool_oom_walk *walk, uint64_t missing,
                             ductile_stream stream) {
    dpool_oom_callbacks *all = &a->oom_callbacks;
    dpool_oom_callback *c;
    bool has_given = false;
    while (inside == NULL && !has_given && (c = enter_next(all, walk)) != NULL) {
        inside = c;
        has_given = c->callback(c->user, a, missing, stream) > 0;
        inside = NULL;
        if (!has_given) {
            walk->n_asked = MOST_TIMES;
        }
        leave(all, c);
    }
    return has_given;
}

/* ---- Registering --------------------------------------------------------------------------- */

ductile_status ductile_add_oom_callback(ductile_allocator *a, ductile_oom_fn callback, void *user,
                                        int priority, uint64_t *id) {
    if (id == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *id = 0;
    if (a == NULL || callback == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (dvmm_usable(a->driver) == DUCTILE_ERR_FORKED) {
        return DUCTILE_ERR_FORKED;
    }
    dpool_oom_callback *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *c = (dpool_oom_callback){.callback = callback, .user = user, .priority = priority};
    (void)pthread_mutex_lock(&a->oom_callbacks.lock);
    insert_locked(&a->oom_callbacks, c);
    *id = c->id;
    (void)pthread_mutex_unlock(&a->oom_callbacks.lock);
    return DUCTILE_OK;
}

/* Threads inside but for this one. */
static unsigned others_inside(const dpool_oom_callback *c) {
    return c->n_inside - (inside == c ? 1 : 0);
}

ductile_status ductile_remove_oom_callback(ductile_allocator *a, uint64_t id) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (dvmm_usable(a->driver) == DUCTILE_ERR_FORKED) {
        return DUCTILE_ERR_FORKED;
    }
    dpool_oom_callbacks *all = &a->oom_callbacks;
    (void)pthread_mutex_lock(&all->lock);
    dpool_oom_callback *c = find_locked(all, id);
    if (c == NULL) {
        (void)pthread_mutex_unlock(&all->lock);
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    c->is_removed = true;
    c->n_inside++; /* keeps it until this thread has looked */
    all->n_waiting++;
    while (others_inside(c) > 1) {
        (void)pthread_cond_wait(&all->left, &all->lock);
    }
    all->n_waiting--;
    c->n_inside--;
    free_if_left_locked(all, c);
    (void)pthread_mutex_unlock(&all->lock);
    return DUCTILE_OK;
}
