/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map callbacks from many threads: some allocate and free on streams of their own, one trims, one
 * pauses and resumes a pool whose free memory the others take, all on a device that is too small. A
 * table kept by a callback, which itself frees and allocates, never hears anything out of order,
 * knows every block that is returned, and is what is mapped when all is quiet.
 *
 *     announce_stress [--seconds N] [--seed N]
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/ending.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/rng.h"
#include "tests/support/shadow.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_WORKERS = 3, MOST_LIVE = 12 };

static const ductile_pool_id POOL = {1, 2};

typedef struct worker {
    pthread_t thread;
    rng r;
    ductile_stream stream;
    const char *(*act)(struct worker *self);
} worker;

static fixture f;
static shadow s;
static time_t end;
static ending first = ENDING_INITIALIZER; /* complaint of a thread */
static _Atomic uint64_t n_refused;

static bool goes_on(void) {
    return time(NULL) < end && !ending_is_over(&first);
}

/* Inside a callback only what a free block serves is given. */
static void ask_inside(void *user, ductile_allocator *a, const ductile_map_event *e) {
    ductile_addr addr = 0;
    (void)user;
    ductile_status status = ductile_alloc(a, 512, f.streams[e->address / e->size % 3], &addr);
    if (status == DUCTILE_OK) {
        (void)ductile_free(a, addr);
    } else if (status == DUCTILE_ERR_BUSY) {
        atomic_fetch_add(&n_refused, 1);
    } else {
        abort();
    }
}

static const char *take(worker *w, ductile_addr *out) {
    uint64_t size = 512 * (1 + rng_below(&w->r, 16384));
    ductile_status status = ductile_alloc(f.allocator, size, w->stream, out);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc: %s",
         ductile_status_name(status));
    return status == DUCTILE_OK ? shadow_covers(&s, *out, size) : NULL;
}

static const char *churn(worker *w) {
    ductile_addr live[MOST_LIVE] = {0};
    while (goes_on()) {
        ductile_addr *slot = &live[rng_below(&w->r, MOST_LIVE)];
        if (*slot == 0) {
            TRY(take(w, slot));
        } else {
            NEED_OK(ductile_free(f.allocator, *slot));
            *slot = 0;
        }
        if (rng_percent(&w->r, 5)) {
            NEED_OK(ductile_virtual_stream_sync(f.gpu, w->stream));
        }
        TRY(shadow_complaint(&s));
    }
    for (int i = 0; i < MOST_LIVE; i++) {
        NEED(live[i] == 0 || ductile_free(f.allocator, live[i]) == DUCTILE_OK, "free");
    }
    return NULL;
}

static const char *trim_again_and_again(worker *w) {
    while (goes_on()) {
        NEED_OK(ductile_trim(f.allocator, rng_below(&w->r, 24) * MIB, NULL));
        NEED_OK(ductile_check(f.allocator, NULL, 0));
        struct timespec nap = {.tv_nsec = (long)rng_below(&w->r, 2000000)};
        (void)nanosleep(&nap, NULL);
    }
    return NULL;
}

static const char *sleep_and_wake(worker *w, ductile_addr block) {
    ductile_status status = ductile_pause(f.allocator, POOL, DUCTILE_CONTENTS_DROP);
    if (status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP) {
        return NULL; /* others kept freeing */
    }
    NEED_OK(status);
    do {
        status = ductile_resume(f.allocator, POOL);
    } while (status == DUCTILE_ERR_OUT_OF_MEMORY && goes_on());
    NEED(status == DUCTILE_OK || !goes_on(), "resume: %s", ductile_status_name(status));
    (void)w;
    return status == DUCTILE_OK ? shadow_covers(&s, block, 512) : NULL;
}

static const char *pause_again_and_again(worker *w) {
    while (goes_on()) {
        ductile_addr blocks[4] = {0};
        NEED_OK(ductile_pool_begin(f.allocator, POOL, NULL, NULL));
        for (int i = 0; i < 4; i++) {
            TRY(take(w, &blocks[i]));
        }
        NEED_OK(ductile_pool_end(f.allocator, POOL));
        NEED_OK(ductile_pool_release(f.allocator, POOL));
        NEED(blocks[1] == 0 || ductile_free(f.allocator, blocks[1]) == DUCTILE_OK, "free");
        blocks[1] = 0;
        if (blocks[0] != 0) {
            TRY(sleep_and_wake(w, blocks[0]));
        }
        for (int i = 0; i < 4; i++) {
            NEED(blocks[i] == 0 || ductile_free(f.allocator, blocks[i]) == DUCTILE_OK, "free");
        }
    }
    return NULL;
}

static void *run_worker(void *self) {
    worker *w = self;
    ending_because(&first, w->act(w));
    return NULL;
}

static const char *run_threads(uint64_t seed) {
    static worker workers[N_WORKERS + 2];
    for (int i = 0; i < N_WORKERS + 2; i++) {
        workers[i].r = rng_seeded(seed + (uint64_t)i);
        workers[i].stream = f.streams[i];
        workers[i].act = i < N_WORKERS    ? churn
                         : i == N_WORKERS ? trim_again_and_again
                                          : pause_again_and_again;
        NEED(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < N_WORKERS + 2; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    return ending_why(&first);
}

static const char *run(uint64_t seed) {
    const fixture_setup setup = {.capacity_bytes = 48 * MIB,
                                 .n_streams = N_WORKERS + 2,
                                 .schedule = DUCTILE_SCHEDULE_RANDOM,
                                 .seed = seed};
    TRY(fixture_open(&f, &setup));
    s.beside = ask_inside;
    TRY(shadow_open(&s, f.allocator, f.gpu));
    NEED_OK(ductile_pool_retain(f.allocator, POOL));
    NEED_OK(ductile_pool_set_kind(f.allocator, POOL, DUCTILE_POOL_PLAIN));
    TRY(run_threads(seed));
    TRY(shadow_complaint(&s));
    (void)printf("mapped %llu\nleft %llu\nrefused inside %llu\n", (unsigned long long)s.n_mapped,
                 (unsigned long long)s.n_left, (unsigned long long)n_refused);
    NEED(s.n_left > 100 && n_refused > 0, "hardly anything moved: nothing was tested");
    TRY(fixture_close(&f));
    TRY(shadow_complaint(&s));
    NEED(s.n == 0, "%zu mappings were never said to leave", s.n);
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t seconds = 3;
    uint64_t seed = 1;
    const command_option options[] = {{"--seconds", .number = &seconds},
                                      {"--seed", .number = &seed}};
    command_read("announce_stress", options, 2, argc, argv);
    end = time(NULL) + (time_t)seconds;
    return command_end(run(seed));
}
