/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that pin, share and open memory to peers while others allocate, free and trim: for the
 * thread sanitizer, and for whatever only happens between threads. One pair of threads passes
 * blocks from one allocator to another over a socket; each of the others does a bit of everything.
 *
 *     share_stress [--seconds N]
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/ending.h"
#include "tests/support/rng.h"
#include "tests/support/two_ends.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { N_WORKERS = 4, MOST_LIVE = 24 };

typedef struct shared {
    two_ends t;
    ending ending;
    atomic_ullong n_passed;
} shared;

typedef struct worker {
    shared *s;
    uint64_t seed;
    ductile_addr live[MOST_LIVE];
    size_t n_live;
} worker;

static void expect(shared *s, ductile_status status, ductile_status also, const char *what) {
    if (status != DUCTILE_OK && status != also) {
        ending_because(&s->ending, complain("%s: %s", what, ductile_status_name(status)));
    }
}

static void alloc_or_free(worker *w, rng *r) {
    ductile_allocator *a = w->s->t.f.allocator;
    if (w->n_live < MOST_LIVE && rng_percent(r, 55)) {
        ductile_addr addr = 0;
        uint64_t size = 4096 * (1 + rng_below(r, 1500));
        ductile_stream stream = w->s->t.f.streams[rng_below(r, w->s->t.f.n_streams)];
        ductile_status status = rng_percent(r, 10) ? ductile_alloc_dedicated(a, size, stream, &addr)
                                                   : ductile_alloc(a, size, stream, &addr);
        expect(w->s, status, DUCTILE_ERR_OUT_OF_MEMORY, "alloc");
        if (addr != 0) {
            w->live[w->n_live++] = addr;
        }
    } else if (w->n_live > 0) {
        size_t i = rng_below(r, w->n_live);
        expect(w->s, ductile_free(a, w->live[i]), DUCTILE_OK, "free");
        w->live[i] = w->live[--w->n_live];
    }
}

/* Pinned across the free, and back. */
static void pin_and_free(worker *w, rng *r) {
    ductile_allocator *a = w->s->t.f.allocator;
    if (w->n_live == 0) {
        return;
    }
    size_t i = rng_below(r, w->n_live);
    ductile_addr addr = w->live[i];
    w->live[i] = w->live[--w->n_live];
    expect(w->s, ductile_pin(a, addr), DUCTILE_OK, "pin");
    expect(w->s, ductile_free(a, addr), DUCTILE_OK, "free of a pinned block");
    expect(w->s, ductile_unpin(a, addr), DUCTILE_OK, "unpin");
}

static void look(worker *w) {
    char report[256];
    ductile_stats stats = fixture_stats(w->s->t.f.allocator);
    if (stats.pinned_bytes > stats.reserved_bytes) {
        ending_because(&w->s->ending, "more is pinned than held");
    }
    expect(w->s, ductile_check(w->s->t.f.allocator, report, sizeof report), DUCTILE_OK, "check");
}

static ductile_status change_peer(ductile_allocator *a, rng *r) {
    return rng_percent(r, 50) ? ductile_enable_peer(a, 1) : ductile_disable_peer(a, 1);
}

static void *work(void *argument) {
    worker *w = argument;
    rng r = rng_seeded(w->seed);
    while (!ending_is_over(&w->s->ending)) {
        uint64_t what = rng_below(&r, 100);
        if (what < 86) {
            alloc_or_free(w, &r);
        } else if (what < 94) {
            pin_and_free(w, &r);
        } else if (what < 96) {
            expect(w->s, change_peer(w->s->t.f.allocator, &r), DUCTILE_OK, "peer");
        } else if (what < 98) {
            look(w);
        } else {
            expect(w->s, ductile_trim(w->s->t.f.allocator, 16 * MIB, NULL), DUCTILE_OK, "trim");
        }
    }
    while (w->n_live > 0) {
        expect(w->s, ductile_free(w->s->t.f.allocator, w->live[--w->n_live]), DUCTILE_OK, "free");
    }
    return NULL;
}

static void pass_one(shared *s, rng *r) {
    ductile_addr addr = 0;
    ductile_allocator *a = s->t.f.allocator;
    ductile_status status =
        ductile_alloc(a, 4096 * (1 + rng_below(r, 2500)), s->t.f.streams[0], &addr);
    expect(s, status, DUCTILE_ERR_OUT_OF_MEMORY, "alloc to pass");
    if (addr == 0) {
        return;
    }
    passed p = two_ends_pass(&s->t, addr);
    expect(s, p.exported, DUCTILE_OK, "export");
    expect(s, p.imported, DUCTILE_OK, "import");
    if (p.imported == DUCTILE_OK && p.exported == DUCTILE_OK) {
        expect(s, ductile_free(a, addr), DUCTILE_OK, "free of an exported block");
        expect(s, ductile_import_close(s->t.importer, p.addr), DUCTILE_OK, "close");
        expect(s, ductile_unexport(a, addr), DUCTILE_OK, "unexport");
        atomic_fetch_add(&s->n_passed, 1);
    }
}

static void pass_until(shared *s, time_t end) {
    rng r = rng_seeded(77);
    while (!ending_is_over(&s->ending) && time(NULL) < end) {
        pass_one(s, &r);
    }
    ending_now(&s->ending);
}

static const char *work_and_pass(shared *s, uint64_t seconds) {
    pthread_t threads[N_WORKERS];
    static worker workers[N_WORKERS];
    size_t n = 0;
    for (; n < N_WORKERS; n++) {
        workers[n] = (worker){.s = s, .seed = 100 + n};
        if (pthread_create(&threads[n], NULL, work, &workers[n]) != 0) {
            ending_because(&s->ending, "no thread");
            break;
        }
    }
    pass_until(s, time(NULL) + (time_t)seconds);
    while (n > 0) {
        (void)pthread_join(threads[--n], NULL);
    }
    return ending_why(&s->ending);
}

static const char *run(shared *s, uint64_t seconds) {
    const fixture_setup setup = {.capacity_bytes = 96 * MIB, .n_streams = 3, .n_devices = 2};
    TRY(two_ends_open(&s->t, &setup, SOCK_STREAM));
    TRY(work_and_pass(s, seconds));
    return two_ends_close(&s->t);
}

int main(int argc, char **argv) {
    static shared s = {.ending = ENDING_INITIALIZER};
    uint64_t seconds = 3;
    const command_option options[] = {{"--seconds", .number = &seconds}};
    command_read("share_stress", options, 1, argc, argv);
    const char *why = run(&s, seconds);
    if (why == NULL) {
        (void)printf("%llu blocks passed\n", (unsigned long long)atomic_load(&s.n_passed));
    }
    return command_end(why);
}
