/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that play together end together: the first complaint of any of them is kept, and ends
 * the play for all.
 */
#ifndef TESTS_SUPPORT_ENDING_H
#define TESTS_SUPPORT_ENDING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct ending {
    _Atomic bool is_over;
    pthread_mutex_t lock;
    char why[4096]; /* under `lock`; the first complaint */
} ending;

#define ENDING_INITIALIZER                                                                         \
    { .lock = PTHREAD_MUTEX_INITIALIZER }

/* Ends the play with a complaint; NULL is none and ends nothing. Any thread. */
void ending_because(ending *e, const char *why);

/* Ends the play without one. */
void ending_now(ending *e);

bool ending_is_over(const ending *e);

/* NULL, or the complaint, valid as long as `e`. Once it is there it does not change. */
const char *ending_why(ending *e);

#endif
