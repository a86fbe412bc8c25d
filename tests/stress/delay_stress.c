/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread grows and trims, and each of its driver calls is slow: it ends only after another
 * thread has allocated and freed some times on another stream, beside memory that is in use. So the
 * play ends only if a hit waits for no driver call. What hits took meanwhile is printed: the
 * machine's own delays are part of it, so nothing is claimed of it.
 *
 *     delay_stress [--rounds N]
 */
#include "pool/base/allocator.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { HITS_A_CALL = 20, MOST_HITS = 1 << 20 };

typedef struct play {
    fixture f;
    _Atomic uint64_t n_hits;
    _Atomic bool is_over;
    uint64_t n_calls, rounds;
    const char *why; /* of the thread that hits */
    uint32_t ns[MOST_HITS];
} play;

static _Thread_local bool is_slow;

static uint64_t now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Called in the thread, and under the locks, of the driver call. */
static void take_long(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    play *p = user;
    (void)call, (void)code, (void)address, (void)size;
    if (!is_slow) {
        return;
    }
    p->n_calls++;
    uint64_t enough = atomic_load(&p->n_hits) + HITS_A_CALL;
    while (atomic_load(&p->n_hits) < enough && !atomic_load(&p->is_over)) {
        (void)sched_yield();
    }
}

static const char *hit(play *p) {
    ductile_addr address = 0;
    NEED_OK(ductile_alloc(p->f.allocator, 4096, p->f.streams[1], &address));
    NEED_OK(ductile_free(p->f.allocator, address));
    return NULL;
}

static void *keep_hitting(void *user) {
    play *p = user;
    while (p->why == NULL && !atomic_load(&p->is_over)) {
        uint64_t start = now_ns();
        p->why = hit(p);
        uint64_t took = now_ns() - start;
        uint64_t n = atomic_fetch_add(&p->n_hits, 1);
        p->ns[n % MOST_HITS] = (uint32_t)(took < UINT32_MAX ? took : UINT32_MAX);
    }
    atomic_store(&p->is_over, true);
    return NULL;
}

static const char *grow_and_trim(play *p) {
    is_slow = true;
    for (uint64_t i = 0; i < p->rounds && !atomic_load(&p->is_over); i++) {
        ductile_addr address = 0;
        NEED_OK(ductile_alloc(p->f.allocator, (4 + i % 5) * FIXTURE_GRANULE, p->f.streams[0],
                              &address));
        NEED_OK(ductile_free(p->f.allocator, address));
        NEED_OK(ductile_trim(p->f.allocator, NULL, 0, NULL));
    }
    is_slow = false;
    return NULL;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void print_figures(play *p) {
    uint64_t all = atomic_load(&p->n_hits);
    uint64_t n = all < MOST_HITS ? all : MOST_HITS;
    qsort(p->ns, n, sizeof p->ns[0], by_size);
    command_figure("slow driver calls", p->n_calls);
    command_figure("allocations and frees meanwhile", all);
    command_figure("of them the median, ns", p->ns[n / 2]);
    command_figure("99 of 100 at most, ns", p->ns[n - 1 - n / 100]);
    command_figure("the longest, ns", p->ns[n - 1]);
}

static const char *run(play *p) {
    ductile_addr beside = 0;
    pthread_t thread;
    TRY(fixture_open(&p->f, &(fixture_setup){.n_streams = 2}));
    NEED_OK(ductile_alloc(p->f.allocator, 4096, p->f.streams[1], &beside));
    dvmm_set_trace(p->f.allocator->driver, take_long, p, true);
    NEED(pthread_create(&thread, NULL, keep_hitting, p) == 0, "no thread");
    const char *why = grow_and_trim(p);
    atomic_store(&p->is_over, true);
    (void)pthread_join(thread, NULL);
    dvmm_set_trace(p->f.allocator->driver, NULL, NULL, false);
    TRY(why);
    TRY(p->why);
    NEED(p->n_calls > 4 * p->rounds, "only %llu driver calls were slow",
         (unsigned long long)p->n_calls);
    print_figures(p);
    NEED_OK(ductile_free(p->f.allocator, beside));
    return fixture_close(&p->f);
}

int main(int argc, char **argv) {
    static play p = {.rounds = IS_SANITIZED ? 3 : 10};
    const command_option options[] = {{"--rounds", .number = &p.rounds}};
    command_read("delay_stress", options, 1, argc, argv);
    return command_end(run(&p));
}
