/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_balloon.h"

#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/in_child.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PIECES = 512, LEAST_PERCENT = 10, MOST_PERCENT = 95 };

/* Shared by two processes. */
struct memory_balloon {
    /* between the two */
    _Atomic bool is_over;
    _Atomic bool is_broken;
    _Atomic uint64_t wish; /* odd: change nothing */
    _Atomic uint64_t held; /* the last wish for which it does that */
    _Atomic uint64_t swings;
    /* its own */
    dvmm_driver *driver;
    rng rng;
    dvmm_phys pieces[MOST_PIECES];
    size_t n_pieces;
    uint64_t piece_bytes;
    uint64_t total_bytes;
    /* the other one's */
    pid_t child; /* 0: a thread */
    pthread_t thread;
};

static void nap(long ns) {
    struct timespec span = {.tv_nsec = ns};
    (void)nanosleep(&span, NULL);
}

/* ---- The balloon --------------------------------------------------------------------------- */

static void rest_while_held(memory_balloon *balloon) {
    uint64_t wish = atomic_load(&balloon->wish);
    while (wish % 2 == 1 && !atomic_load(&balloon->is_over)) {
        atomic_store(&balloon->held, wish);
        nap(100000);
        wish = atomic_load(&balloon->wish);
    }
}

/* False: the device has no more. */
static bool inflate(memory_balloon *balloon) {
    const dvmm_phys_props props = {0};
    ductile_status status = dvmm_phys_create(balloon->driver, balloon->piece_bytes, &props,
                                             &balloon->pieces[balloon->n_pieces]);
    balloon->n_pieces += status == DUCTILE_OK;
    if (status != DUCTILE_OK && status != DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_store(&balloon->is_broken, true);
    }
    return status == DUCTILE_OK;
}

static void deflate(memory_balloon *balloon) {
    size_t i = (size_t)rng_below(&balloon->rng, balloon->n_pieces);
    if (dvmm_phys_release(balloon->driver, balloon->pieces[i]) != DUCTILE_OK) {
        atomic_store(&balloon->is_broken, true);
    }
    balloon->pieces[i] = balloon->pieces[--balloon->n_pieces];
}

static void resize_to(memory_balloon *balloon, uint64_t wanted) {
    while (!atomic_load(&balloon->is_over)) {
        uint64_t held = balloon->n_pieces * balloon->piece_bytes;
        rest_while_held(balloon);
        if (held + balloon->piece_bytes <= wanted) {
            if (!inflate(balloon)) {
                return;
            }
        } else if (held > wanted) {
            deflate(balloon);
        } else {
            return;
        }
        nap((long)rng_below(&balloon->rng, 200000));
    }
}

static void run(memory_balloon *balloon) {
    const dvmm_caps *caps = dvmm_get_caps(balloon->driver);
    balloon->total_bytes = caps->total_bytes;
    balloon->piece_bytes =
        dti_round_up(balloon->total_bytes / (MOST_PIECES - 8), caps->granule_bytes);
    while (!atomic_load(&balloon->is_over)) {
        uint64_t percent = rng_between(&balloon->rng, LEAST_PERCENT, MOST_PERCENT);
        resize_to(balloon, balloon->total_bytes / 100 * percent);
        atomic_fetch_add(&balloon->swings, 1);
        nap((long)rng_below(&balloon->rng, 3000000));
    }
    while (balloon->n_pieces > 0) {
        deflate(balloon);
    }
}

static int run_in_child(memory_balloon *balloon, int device) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dvmm_open_cuda(device, &balloon->driver, NULL, 0) != DUCTILE_OK) {
        atomic_store(&balloon->is_broken, true);
        return COMMAND_SKIPPED;
    }
    run(balloon);
    dvmm_close(balloon->driver);
    return atomic_load(&balloon->is_broken) ? COMMAND_BROKEN : 0;
}

static void *run_in_thread(void *self) {
    run(self);
    return NULL;
}

/* ---- The program under test ---------------------------------------------------------------- */

static const char *make(memory_balloon **out, uint64_t seed) {
    memory_balloon *balloon =
        mmap(NULL, sizeof *balloon, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(balloon != MAP_FAILED, "the host has no memory left");
    balloon->rng = rng_seeded(seed);
    atomic_store(&balloon->wish, 1);
    *out = balloon;
    return NULL;
}

const char *memory_balloon_fork(memory_balloon **out, int device, uint64_t seed) {
    TRY(make(out, seed));
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(run_in_child(*out, device));
    }
    (*out)->child = child;
    NEED(child > 0, "no second process");
    return NULL;
}

const char *memory_balloon_start(memory_balloon **out, ductile_virtual_gpu *gpu, uint64_t seed) {
    TRY(make(out, seed));
    NEED_OK(dvmm_open_virtual(gpu, &(*out)->driver, NULL, 0));
    NEED(pthread_create(&(*out)->thread, NULL, run_in_thread, *out) == 0, "no thread");
    return NULL;
}

const char *memory_balloon_hold(memory_balloon *balloon) {
    uint64_t wish = atomic_load(&balloon->wish) | 1;
    atomic_store(&balloon->wish, wish);
    while (atomic_load(&balloon->held) != wish) {
        NEED(!atomic_load(&balloon->is_broken), "the other program has failed");
        nap(50000);
    }
    return NULL;
}

void memory_balloon_go_on(memory_balloon *balloon) {
    atomic_fetch_add(&balloon->wish, 1);
}

bool memory_balloon_is_broken(const memory_balloon *balloon) {
    return atomic_load(&balloon->is_broken);
}

uint64_t memory_balloon_swings(const memory_balloon *balloon) {
    return atomic_load(&balloon->swings);
}

static const char *wait_for_child(const memory_balloon *balloon) {
    NEED(exit_status_of(balloon->child) == 0, "the other program has failed");
    return NULL;
}

static const char *join_thread(const memory_balloon *balloon) {
    (void)pthread_join(balloon->thread, NULL);
    dvmm_close(balloon->driver);
    NEED(!atomic_load(&balloon->is_broken), "the other program has failed");
    return NULL;
}

const char *memory_balloon_end(memory_balloon *balloon) {
    if (balloon == NULL) {
        return NULL;
    }
    atomic_store(&balloon->is_over, true);
    const char *why = balloon->child != 0 ? wait_for_child(balloon) : join_thread(balloon);
    (void)munmap(balloon, sizeof *balloon);
    return why;
}
