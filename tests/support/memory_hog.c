/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/memory_hog.h"

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
struct memory_hog {
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

static void obey(memory_hog *hog) {
    uint64_t wish = atomic_load(&hog->wish);
    while (wish % 2 == 1 && !atomic_load(&hog->is_over)) {
        atomic_store(&hog->held, wish);
        nap(100000);
        wish = atomic_load(&hog->wish);
    }
}

/* False: the device has no more. */
static bool inhale(memory_hog *hog) {
    const dvmm_phys_props props = {0};
    ductile_status status =
        dvmm_phys_create(hog->driver, hog->piece_bytes, &props, &hog->pieces[hog->n_pieces]);
    hog->n_pieces += status == DUCTILE_OK;
    if (status != DUCTILE_OK && status != DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_store(&hog->is_broken, true);
    }
    return status == DUCTILE_OK;
}

static void exhale(memory_hog *hog) {
    size_t i = (size_t)rng_below(&hog->rng, hog->n_pieces);
    if (dvmm_phys_release(hog->driver, hog->pieces[i]) != DUCTILE_OK) {
        atomic_store(&hog->is_broken, true);
    }
    hog->pieces[i] = hog->pieces[--hog->n_pieces];
}

static void breathe_to(memory_hog *hog, uint64_t wanted) {
    while (!atomic_load(&hog->is_over)) {
        uint64_t held = hog->n_pieces * hog->piece_bytes;
        obey(hog);
        if (held + hog->piece_bytes <= wanted) {
            if (!inhale(hog)) {
                return;
            }
        } else if (held > wanted) {
            exhale(hog);
        } else {
            return;
        }
        nap((long)rng_below(&hog->rng, 200000));
    }
}

static void live(memory_hog *hog) {
    const dvmm_caps *caps = dvmm_get_caps(hog->driver);
    hog->total_bytes = caps->total_bytes;
    hog->piece_bytes = dti_round_up(hog->total_bytes / (MOST_PIECES - 8), caps->granule_bytes);
    while (!atomic_load(&hog->is_over)) {
        uint64_t percent = rng_between(&hog->rng, LEAST_PERCENT, MOST_PERCENT);
        breathe_to(hog, hog->total_bytes / 100 * percent);
        atomic_fetch_add(&hog->breaths, 1);
        nap((long)rng_below(&hog->rng, 3000000));
    }
    while (hog->n_pieces > 0) {
        exhale(hog);
    }
}

static int live_alone(memory_hog *hog, int device) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dvmm_open_cuda(device, &hog->driver, NULL, 0) != DUCTILE_OK) {
        atomic_store(&hog->is_broken, true);
        return COMMAND_SKIPPED;
    }
    live(hog);
    dvmm_close(hog->driver);
    return atomic_load(&hog->is_broken) ? COMMAND_BROKEN : 0;
}

static void *live_beside(void *self) {
    live(self);
    return NULL;
}

/* ---- The other one ------------------------------------------------------------------------- */

static const char *make(memory_hog **out, uint64_t seed) {
    memory_hog *hog =
        mmap(NULL, sizeof *hog, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(hog != MAP_FAILED, "the host has no memory left");
    hog->rng = rng_seeded(seed);
    atomic_store(&hog->wish, 1);
    *out = hog;
    return NULL;
}

const char *memory_hog_fork(memory_hog **out, int device, uint64_t seed) {
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

const char *memory_hog_start(memory_hog **out, ductile_virtual_gpu *gpu, uint64_t seed) {
    TRY(make(out, seed));
    NEED_OK(dvmm_open_virtual(gpu, &(*out)->driver, NULL, 0));
    NEED(pthread_create(&(*out)->thread, NULL, live_beside, *out) == 0, "no thread");
    return NULL;
}

const char *memory_hog_hold(memory_hog *hog) {
    uint64_t wish = atomic_load(&hog->wish) | 1;
    atomic_store(&hog->wish, wish);
    while (atomic_load(&hog->held) != wish) {
        NEED(!atomic_load(&hog->is_broken), "the other program has failed");
        nap(50000);
    }
    return NULL;
}

void memory_hog_go_on(memory_hog *hog) {
    atomic_fetch_add(&hog->wish, 1);
}

bool memory_hog_is_broken(const memory_hog *hog) {
    return atomic_load(&hog->is_broken);
}

uint64_t memory_hog_breaths(const memory_hog *hog) {
    return atomic_load(&hog->breaths);
}

static const char *wait_for_child(const memory_hog *hog) {
    NEED(exit_status_of(hog->child) == 0, "the other program has failed");
    return NULL;
}

static const char *join_thread(const memory_hog *hog) {
    (void)pthread_join(hog->thread, NULL);
    dvmm_close(hog->driver);
    NEED(!atomic_load(&hog->is_broken), "the other program has failed");
    return NULL;
}

const char *memory_hog_end(memory_hog *hog) {
    if (hog == NULL) {
        return NULL;
    }
    atomic_store(&hog->is_over, true);
    const char *why = hog->child != 0 ? wait_for_child(hog) : join_thread(hog);
    (void)munmap(hog, sizeof *hog);
    return why;
}
