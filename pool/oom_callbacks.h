/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks that are asked for memory. Threads walk them in order of priority without a lock held
 * while one runs, so the walk goes by position (priority, then number), not by pointer; an entry
 * lives until it was removed and the last thread has left it.
 */
#ifndef DUCTILE_POOL_OOM_CALLBACKS_H
#define DUCTILE_POOL_OOM_CALLBACKS_H

#include <ductile.h>

#include <pthread.h>
#include <stdbool.h>

typedef struct dpool_oom_callback dpool_oom_callback;

typedef struct dpool_oom_callbacks {
    pthread_mutex_t lock; /* guards the rest; nothing else is taken under it */
    pthread_cond_t left;  /* a thread has left a callback                    */
    dpool_oom_callback *first;
    uint64_t n_given;   /* numbers given out */
    unsigned n_waiting; /* threads that wait for others to leave */
} dpool_oom_callbacks;

/* How far one request has come. Zero is the start. */
typedef struct dpool_oom_walk {
    bool has_begun;
    int priority; /* of the callback asked last */
    uint64_t id;
    unsigned n_asked; /* times that one was asked */
} dpool_oom_walk;

void dpool_oom_callbacks_init(dpool_oom_callbacks *all);
void dpool_oom_callbacks_fini(dpool_oom_callbacks *all);

/* For a forked child: no thread of the parent held the lock or waited at the fork. */
bool dpool_oom_callbacks_at_rest(dpool_oom_callbacks *all);

/* Asks the callback of the walk once more, or the next ones, until one has given something back.
 * False when there is none left, or this thread is inside a callback already. No lock held. */
bool dpool_oom_callbacks_ask(ductile_allocator *a, dpool_oom_walk *walk, uint64_t missing,
                             ductile_stream stream);

#endif
