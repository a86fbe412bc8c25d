/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the user's, in order of priority, then of their numbers. Threads walk them without a
 * lock held while one runs, so a walk goes by position, not by pointer; an entry lives until it was
 * removed and the last thread has left it.
 */
#ifndef DUCTILE_POOL_BASE_CALLBACK_LIST_H
#define DUCTILE_POOL_BASE_CALLBACK_LIST_H

#include <ductile.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef enum dpool_callback_kind { DPOOL_CALLBACK_OOM, DPOOL_CALLBACK_MAP } dpool_callback_kind;

/* Any function. The owner of the list casts it back to its type. */
typedef void (*dpool_callback_fn)(void);

typedef struct dpool_callback {
    /* constant */
    dpool_callback_fn fn;
    void *user;
    int priority;
    uint64_t id;
    /* guarded by the list's lock */
    unsigned n_inside; /* threads, each as often as it is inside */
    bool is_removed;
    struct dpool_callback *next;
} dpool_callback;

typedef struct dpool_callbacks {
    pthread_mutex_t lock; /* guards the rest; no other lock is locked under it */
    pthread_cond_t left;  /* a thread has left a callback                    */
    dpool_callback *first;
    uint64_t n_given;   /* numbers given out */
    unsigned n_waiting; /* threads that wait for others to leave */
    dpool_callback_kind kind;
    _Atomic bool has_any; /* changed under the lock; read without, before a walk */
} dpool_callbacks;

/* How far a walk has come. Zero is the start. */
typedef struct dpool_callback_place {
    bool has_begun;
    int priority;
    uint64_t id;
} dpool_callback_place;

typedef enum dpool_callback_step {
    DPOOL_STEP_STAY, /* the same callback again, or the next when it is gone */
    DPOOL_STEP_NEXT,
    DPOOL_STEP_BACK /* from the last callback to the first */
} dpool_callback_step;

/* One thread inside one callback: on its stack, linked to the frame around it. */
typedef struct dpool_callback_frame {
    dpool_callback *callback;
    dpool_callback_kind kind;
    struct dpool_callback_frame *outer;
} dpool_callback_frame;

void dpool_callbacks_init(dpool_callbacks *all, dpool_callback_kind kind);
void dpool_callbacks_fini(dpool_callbacks *all);

/* For a forked child: no thread of the parent held the lock or waited at the fork. */
bool dpool_callbacks_at_rest(dpool_callbacks *all);

/* ERR_OUT_OF_HOST_MEMORY; then *id is 0. */
ductile_status dpool_callbacks_add(dpool_callbacks *all, dpool_callback_fn fn, void *user,
                                   int priority, uint64_t *id);

/* Waits until no other thread is inside. ERR_INVALID_ARGUMENT: no such id. */
ductile_status dpool_callbacks_remove(dpool_callbacks *all, uint64_t id);

/* Steps through the list and enters the callback reached there; the caller leaves it. False at the
 * end. */
bool dpool_callbacks_enter(dpool_callbacks *all, dpool_callback_place *at, dpool_callback_step step,
                           dpool_callback_frame *frame);
void dpool_callbacks_leave(dpool_callbacks *all, dpool_callback_frame *frame);

/* Is this thread inside a callback of the kind, on any allocator? */
bool dpool_is_inside_callback(dpool_callback_kind kind);

#endif
