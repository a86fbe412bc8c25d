/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads that run one at a time. At each point (points.h) the thread that runs asks
 * which one goes on; so an order of their steps can be chosen, written down and repeated. Locks,
 * condition variables, short sleeps and polls of the library are the scheduler's: a thread that
 * waits is not asked for. Only orders that one processor could produce are made: what processors
 * do to the order of single loads and stores is not seen here.
 */
#ifndef TESTS_ORDERS_SCHEDULER_H
#define TESTS_ORDERS_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_THREADS = 8, MOST_STEPS = 20000, NOBODY = MOST_THREADS };

/* A moment at which some thread was chosen. */
typedef struct step {
    uint8_t before;   /* the thread that came here; NOBODY: the start     */
    uint8_t enabled;  /* bit i: thread i could go on                      */
    uint8_t chosen;   /* that goes on                                     */
    bool rests;       /* `before` asks again when others have gone on */
    const char *what; /* `before` is about to do, and in which function: */
    const char *where;
} step;

/* Which of the threads of `now->enabled` goes on; n: steps before this one. */
typedef unsigned (*choose_fn)(void *user, const step *now, size_t n);

/* What is printed before the program ends because of something found: "deadlock", "livelock",
 * "check" or "crash", and what is known of it. */
typedef void (*finding_fn)(const char *kind, const char *why);

void scheduler_init(finding_fn report);

/* Runs work(user, i) in n threads, to the end of all. */
void scheduler_run(unsigned n, void (*work)(void *user, unsigned number), void *user,
                   choose_fn choose, void *chooser);

/* The steps of the run under way, or of the latest one. */
const step *scheduler_steps(size_t *n);

/* Between the two the calling thread has no points, unless it has to wait, and no other thread is
 * between them: what it does is the test's own. May be nested. */
void scheduler_mute(void);
void scheduler_unmute(void);

/* To be called in a child first: no other thread is there. What would wait ends the child with
 * FORKED_CHILD_WAITS. */
enum { FORKED_CHILD_WAITS = 99 };
void scheduler_forked(void);

/* False: the threads run as they like (free_threads.c), no order is chosen, and no process may be
 * forked. */
extern const bool scheduler_chooses;

_Noreturn void scheduler_found(const char *kind, const char *why);

#endif
