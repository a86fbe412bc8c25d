/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One lock, many threads: bursts of takes by one while the others sleep, so that the lock becomes
 * biased, and all at once, so that biases end; threads die with a bias, and stay inside for long
 * now and then. What the lock guards is plain memory: the thread sanitizer sees what it does not
 * order, and the counts see what it does not exclude. Exit status 0, or 1 and one line.
 *
 *     lock_stress [--seconds N] [--threads N] [--seed N]
 */
#include "tests/support/command.h"
#include "tests/support/rng.h"

#include "vmm/base/lock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 64, MOST_BURST = 8000, BURSTS_PER_LIFE = 100, FOR_BIAS = 16 };

typedef struct ground {
    dti_lock lock;
    uint64_t n_takes; /* guarded, and nothing but that */
    uint64_t owner;
    uint64_t n_intruders;
    uint64_t n_biased_takes;
    _Atomic uint64_t n_bursts_done; /* takes of all bursts */
    _Atomic bool is_over;
} ground;

typedef struct life {
    ground *on;
    uint64_t number, seed;
    rng r;
} life;

static void work_inside(life *l) {
    ground *g = l->on;
    g->n_intruders += g->owner != 0;
    g->owner = l->number;
    g->n_takes++;
    if (rng_below(&l->r, 5000) == 0) {
        (void)usleep(50); /* as if preempted */
    }
    g->lock.n_for_bias = FOR_BIAS; /* else biases that last for moments only become rare */
    g->n_intruders += g->owner != l->number;
    g->n_biased_takes += g->lock.held_by != NULL;
    g->owner = 0;
}

static bool enter(life *l) {
    if (rng_below(&l->r, 8) != 0) {
        dti_lock_acquire(&l->on->lock);
        return true;
    }
    return dti_lock_try_acquire(&l->on->lock);
}

static void burst(life *l) {
    uint64_t n = 1 + rng_below(&l->r, rng_below(&l->r, 4) == 0 ? MOST_BURST : 40);
    uint64_t done = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (enter(l)) {
            work_inside(l);
            dti_lock_release(&l->on->lock);
            done++;
        }
    }
    (void)atomic_fetch_add(&l->on->n_bursts_done, done);
    (void)usleep((useconds_t)rng_below(&l->r, 3000));
}

static void *live(void *arg) {
    life *l = arg;
    l->r = rng_seeded(l->seed + l->number);
    for (int i = 0; i < BURSTS_PER_LIFE && !atomic_load(&l->on->is_over); i++) {
        burst(l);
    }
    return NULL;
}

static void run_lives(ground *g, uint64_t n_threads, uint64_t seed, uint64_t seconds) {
    pthread_t threads[MOST_THREADS];
    life lives[MOST_THREADS];
    uint64_t number = 1;
    for (time_t end = time(NULL) + (time_t)seconds; time(NULL) < end; number += n_threads) {
        for (uint64_t i = 0; i < n_threads; i++) {
            lives[i] = (life){.on = g, .number = number + i, .seed = seed};
            if (pthread_create(&threads[i], NULL, live, &lives[i]) != 0) {
                abort();
            }
        }
        for (uint64_t i = 0; i < n_threads; i++) {
            (void)pthread_join(threads[i], NULL);
        }
    }
}

static int judge(const ground *g, uint64_t seed) {
    uint64_t expected = atomic_load(&g->n_bursts_done);
    bool may_bias = !atomic_load(&dti_lock_needs_fence);
    bool holds =
        g->n_intruders == 0 && g->n_takes == expected && (g->n_biased_takes > 0 || !may_bias);
    (void)fprintf(
        holds ? stdout : stderr,
        "lock_stress: %s: %llu takes of %llu, %llu by a bias, %llu intruders, seed %llu\n",
        holds ? "passed" : "failed", (unsigned long long)g->n_takes, (unsigned long long)expected,
        (unsigned long long)g->n_biased_takes, (unsigned long long)g->n_intruders,
        (unsigned long long)seed);
    return holds ? COMMAND_PASSED : COMMAND_BROKEN;
}

int main(int argc, char **argv) {
    uint64_t seconds = 5;
    uint64_t threads = 4;
    uint64_t seed = 1;
    const command_option options[] = {
        {"--seconds", .number = &seconds},
        {"--threads", .number = &threads},
        {"--seed", .number = &seed},
    };
    command_read("lock_stress", options, sizeof options / sizeof *options, argc, argv);
    if (threads < 1 || threads > MOST_THREADS) {
        command_refuse("too few or too many threads");
    }
    static ground g;
    dti_lock_init(&g.lock, DTI_RANK_INDEX);
    run_lives(&g, threads, seed, seconds);
    return judge(&g, seed);
}
