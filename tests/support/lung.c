/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/lung.h"

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
struct lung {
    /* between the two */
    _Atomic bool is_over;
    _Atomic bool is_broken;
    _Atomic uint64_t wish; /* odd: hold your breath */
    _Atomic uint64_t held; /* the last wish that it has obeyed so */
    _Atomic uint64_t breaths;
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
    struct timespec pause = {.tv_nsec = ns};
    (void)nanosleep(&pause, NULL);
}

/* ---- The one that breathes ----------------------------------------------------------------- */

static void obey(lung *l) {
    uint64_t wish = atomic_load(&l->wish);
    while (wish % 2 == 1 && !atomic_load(&l->is_over)) {
        atomic_store(&l->held, wish);
        nap(100000);
        wish = atomic_load(&l->wish);
    }
}

/* False: the device has no more. */
static bool inhale(lung *l) {
    const dvmm_phys_props props = {0};
    ductile_status status =
        dvmm_phys_create(l->driver, l->piece_bytes, &props, &l->pieces[l->n_pieces]);
    l->n_pieces += status == DUCTILE_OK;
    if (status != DUCTILE_OK && status != DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_store(&l->is_broken, true);
    }
    return status == DUCTILE_OK;
}

static void exhale(lung *l) {
    size_t i = (size_t)rng_below(&l->rng, l->n_pieces);
    if (dvmm_phys_release(l->driver, l->pieces[i]) != DUCTILE_OK) {
        atomic_store(&l->is_broken, true);
    }
    l->pieces[i] = l->pieces[--l->n_pieces];
}

static void breathe_to(lung *l, uint64_t wanted) {
    while (!atomic_load(&l->is_over)) {
        uint64_t held = l->n_pieces * l->piece_bytes;
        obey(l);
        if (held + l->piece_bytes <= wanted) {
            if (!inhale(l)) {
                return;
            }
        } else if (held > wanted) {
            exhale(l);
        } else {
            return;
        }
        nap((long)rng_below(&l->rng, 200000));
    }
}

static void live(lung *l) {
    const dvmm_caps *caps = dvmm_get_caps(l->driver);
    l->total_bytes = caps->total_bytes;
    l->piece_bytes = dti_round_up(l->total_bytes / (MOST_PIECES - 8), caps->granule_bytes);
    while (!atomic_load(&l->is_over)) {
        uint64_t percent = rng_between(&l->rng, LEAST_PERCENT, MOST_PERCENT);
        breathe_to(l, l->total_bytes / 100 * percent);
        atomic_fetch_add(&l->breaths, 1);
        nap((long)rng_below(&l->rng, 3000000));
    }
    while (l->n_pieces > 0) {
        exhale(l);
    }
}

static int live_alone(lung *l, int device) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dvmm_open_cuda(device, &l->driver, NULL, 0) != DUCTILE_OK) {
        atomic_store(&l->is_broken, true);
        return COMMAND_SKIPPED;
    }
    live(l);
    dvmm_close(l->driver);
    return atomic_load(&l->is_broken) ? COMMAND_BROKEN : 0;
}

static void *live_beside(void *self) {
    live(self);
    return NULL;
}

/* ---- The other one ------------------------------------------------------------------------- */

static const char *make(lung **out, uint64_t seed) {
    lung *l = mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(l != MAP_FAILED, "the host has no memory left");
    l->rng = rng_seeded(seed);
    atomic_store(&l->wish, 1);
    *out = l;
    return NULL;
}

const char *lung_fork(lung **out, int device, uint64_t seed) {
    TRY(make(out, seed));
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(live_alone(*out, device));
    }
    (*out)->child = child;
    NEED(child > 0, "no second process");
    return NULL;
}

const char *lung_start(lung **out, ductile_virtual_gpu *gpu, uint64_t seed) {
    TRY(make(out, seed));
    NEED_OK(dvmm_open_virtual(gpu, &(*out)->driver, NULL, 0));
    NEED(pthread_create(&(*out)->thread, NULL, live_beside, *out) == 0, "no thread");
    return NULL;
}

const char *lung_hold(lung *l) {
    uint64_t wish = atomic_load(&l->wish) | 1;
    atomic_store(&l->wish, wish);
    while (atomic_load(&l->held) != wish) {
        NEED(!atomic_load(&l->is_broken), "the other program has failed");
        nap(50000);
    }
    return NULL;
}

void lung_breathe(lung *l) {
    atomic_fetch_add(&l->wish, 1);
}

bool lung_is_broken(const lung *l) {
    return atomic_load(&l->is_broken);
}

uint64_t lung_breaths(const lung *l) {
    return atomic_load(&l->breaths);
}

static const char *wait_for_child(const lung *l) {
    NEED(exit_status_of(l->child) == 0, "the other program has failed");
    return NULL;
}

static const char *join_thread(const lung *l) {
    (void)pthread_join(l->thread, NULL);
    dvmm_close(l->driver);
    NEED(!atomic_load(&l->is_broken), "the other program has failed");
    return NULL;
}

const char *lung_end(lung *l) {
    if (l == NULL) {
        return NULL;
    }
    atomic_store(&l->is_over, true);
    const char *why = l->child != 0 ? wait_for_child(l) : join_thread(l);
    (void)munmap(l, sizeof *l);
    return why;
}
