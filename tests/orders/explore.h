/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which orders are tried. Systematically: all those in which a thread that could go on is stopped
 * for another one `bound` times at most, depth first. At random: each thread has a priority, and at
 * a few random steps the one that runs falls behind all others; so mistakes that need few stops are
 * found with a probability that is known (Burckhardt et al., "A randomized scheduler with
 * probabilistic guarantees of finding bugs"). Or one order, as it was written down.
 */
#ifndef TESTS_ORDERS_EXPLORE_H
#define TESTS_ORDERS_EXPLORE_H

#include "tests/orders/scheduler.h"
#include "tests/support/rng.h"

enum { MOST_CHANGES = 4 };

/* One step of the path under way, and the next option to try there. */
typedef struct branch {
    uint8_t before, enabled, taken;
    uint8_t n_stops; /* before it */
} branch;

typedef struct explorer {
    branch path[MOST_STEPS];
    size_t n_fixed; /* steps of the path that this run repeats */
    unsigned bound;
} explorer;

typedef struct pct {
    int priority[MOST_THREADS];   /* the highest goes on      */
    size_t changes[MOST_CHANGES]; /* steps                    */
    unsigned n_changes;
    int lowest; /* of all priorities so far */
} pct;

/* "1x12,2x5": thread 1 for 12 steps, then thread 2 for 5, and so on; then whichever comes first. */
typedef struct script {
    const char *at;
    unsigned thread;
    size_t left;
} script;

void explorer_begin(explorer *e, unsigned bound);
unsigned explorer_choose(void *explorer, const step *now, size_t n);
/* After a run: false when no order is left. */
bool explorer_next(explorer *e);

/* A run of about n_steps steps. */
void pct_begin(pct *p, rng *r, unsigned n_threads, size_t n_steps);
unsigned pct_choose(void *pct, const step *now, size_t n);

void script_begin(script *s, const char *order);
unsigned script_choose(void *script, const step *now, size_t n);

/* The order of the steps, as a script has it. */
void print_order(const step *steps, size_t n);

#endif
