/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that want more than the device has, all at once: every request climbs the ladder, while
 * callbacks free what other threads left, one thread adds and removes callbacks, moves the limits
 * and takes the device's memory from outside. No two owners may hold the same bytes, every report
 * must add up, everybody has to come to an end, and in the end nothing is left. Made to run under
 * the thread sanitizer: exit status 0, or 1 and one line that says what went wrong.
 *
 *     crunch [--rounds N] [--seed N]
 *
 * A round is a device with another schedule and other options.
 */
#include "tests/support/audit.h"
#include "tests/support/claims.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/ending.h"
#include "tests/support/limits.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_THREADS 5
#define N_SLOTS 24
#define N_OPS 300 /* of a thread in a round */
#define CAPACITY (96 * MIB)

/* A live block; whoever takes it out of its slot is its only owner. */
typedef struct held {
    ductile_addr address;
    uint64_t size;
    size_t stream;
} held;

/* Shared by all threads of a round. */
typedef struct round_of_play {
    fixture f;
    claims *claims;
    _Atomic(held *) slots[N_SLOTS];
    ending ending;
    _Atomic uint64_t n_served, n_refused, n_asked;
} play;

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *drop(play *p, held *h, rng *r) {
    held gone = *h;
    free(h);
    size_t other = (size_t)rng_below(r, p->f.n_streams);
    bool is_used = rng_percent(r, 40);
    if (is_used) {
        NEED_OK(
            ductile_virtual_stream_wait(p->f.gpu, p->f.streams[other], p->f.streams[gone.stream]));
        NEED_OK(ductile_virtual_fill(p->f.gpu, gone.address, 1, 512, p->f.streams[other]));
    }
    TRY(claims_give(p->claims, gone.address, gone.size));
    ductile_virtual_block_end(p->f.gpu, gone.address);
    ductile_status status = is_used
                                ? ductile_free_on(p->f.allocator, gone.address, p->f.streams[other])
                                : ductile_free(p->f.allocator, gone.address);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    return NULL;
}

static const char *drop_one(play *p, rng *r, uint64_t *bytes) {
    size_t first = (size_t)rng_below(r, N_SLOTS);
    for (size_t i = 0; i < N_SLOTS; i++) {
        held *h = atomic_exchange(&p->slots[(first + i) % N_SLOTS], NULL);
        if (h != NULL) {
            *bytes = h->size;
            return drop(p, h, r);
        }
    }
    *bytes = 0;
    return NULL;
}

static const char *keep(play *p, const held *h, rng *r) {
    held *mine = malloc(sizeof *mine);
    NEED(mine != NULL, "no host memory for the test");
    *mine = *h;
    held *before = atomic_exchange(&p->slots[rng_below(r, N_SLOTS)], mine);
    return before != NULL ? drop(p, before, r) : NULL;
}

/* ---- Reports and callbacks ----------------------------------------------------------------- */

static const char *report_adds_up(const play *p, uint64_t size) {
    ductile_oom_report o = {.struct_size = sizeof o};
    NEED_OK(ductile_get_oom_report(p->f.allocator, &o));
    NEED(o.number > 0 && o.requested_bytes == size, "the report is about %llu bytes, not %llu",
         (unsigned long long)o.requested_bytes, (unsigned long long)size);
    NEED(o.held_bytes ==
             o.live_bytes + o.free_bytes + o.pending_bytes + o.cached_bytes + o.quarantined_bytes,
         "held is not the sum of its parts");
    NEED(ductile_oom_report_text(&o, NULL, 0) > 200, "the report says little");
    return NULL;
}

/* Frees what some thread left, and sometimes allocates. Called by any thread. */
static uint64_t free_what_lies_about(void *user, ductile_allocator *a, uint64_t missing,
                                     ductile_stream stream) {
    play *p = user;
    rng r = rng_seeded(missing + atomic_fetch_add(&p->n_asked, 1));
    uint64_t bytes = 0;
    const char *why = drop_one(p, &r, &bytes);
    ductile_addr address = 0;
    if (why == NULL && rng_percent(&r, 20) &&
        ductile_alloc(a, rng_between(&r, 1, 4 * MIB), stream, &address) == DUCTILE_OK &&
        ductile_free(a, address) != DUCTILE_OK) {
        why = "a callback could not free its own block";
    }
    ending_because(&p->ending, why);
    return bytes;
}

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)a;
    (void)missing;
    (void)stream;
    *(_Atomic bool *)user = true; /* freed memory, if anybody is still inside after the removal */
    return 0;
}

/* ---- Threads ------------------------------------------------------------------------------- */

typedef struct player {
    play *p;
    rng r;
} player;

static const char *want(player *me) {
    play *p = me->p;
    uint64_t size = rng_between(&me->r, 1, rng_percent(&me->r, 30) ? CAPACITY : 8 * MIB);
    held h = {.stream = (size_t)rng_below(&me->r, p->f.n_streams), .size = model_rounded(size)};
    ductile_status status = ductile_alloc(p->f.allocator, size, p->f.streams[h.stream], &h.address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_fetch_add(&p->n_refused, 1);
        return report_adds_up(p, size);
    }
    NEED(status == DUCTILE_OK, "alloc: %s", ductile_status_name(status));
    atomic_fetch_add(&p->n_served, 1);
    TRY(claims_take(p->claims, h.address, h.size));
    ductile_virtual_block_begin(p->f.gpu, h.address, h.size);
    NEED_OK(ductile_virtual_fill(p->f.gpu, h.address, 2, 512, p->f.streams[h.stream]));
    return keep(p, &h, &me->r);
}

static void *play_on(void *user) {
    player *me = user;
    const char *why = NULL;
    uint64_t bytes = 0;
    for (size_t i = 0; i < N_OPS && why == NULL && !ending_is_over(&me->p->ending); i++) {
        why = rng_percent(&me->r, 70) ? want(me) : drop_one(me->p, &me->r, &bytes);
    }
    ending_because(&me->p->ending, why);
    return NULL;
}

static const char *come_and_go(const play *p, rng *r) {
    _Atomic bool *was_asked = malloc(sizeof *was_asked);
    uint64_t id = 0;
    NEED(was_asked != NULL, "no host memory for the test");
    NEED_OK(ductile_add_oom_callback(p->f.allocator, give_nothing, (void *)was_asked,
                                     (int)rng_below(r, 5) - 2, &id));
    const struct timespec pause = {.tv_nsec = 200000};
    (void)nanosleep(&pause, NULL);
    NEED_OK(ductile_remove_oom_callback(p->f.allocator, id));
    free((void *)was_asked);
    return NULL;
}

/* While the device has less left, nothing changes. */
static const char *breathe(const play *p, uint64_t bytes) {
    ductile_status status = ductile_virtual_set_external_bytes(p->f.gpu, bytes);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "the other process: %s",
         ductile_status_name(status));
    return NULL;
}

static const char *disturb(const play *p, rng *r) {
    switch (rng_below(r, 6)) {
    case 0:
        NEED_OK(set_soft_limit(p->f.allocator, rng_below(r, CAPACITY)));
        return NULL;
    case 1:
        NEED_OK(set_limit(p->f.allocator, DUCTILE_SHARE((double)rng_between(r, 5, 10) / 10)));
        return NULL;
    case 2:
        return breathe(p, rng_below(r, CAPACITY / 2));
    case 3:
        NEED_OK(ductile_trim(p->f.allocator, rng_below(r, CAPACITY), NULL));
        return NULL;
    default:
        return come_and_go(p, r);
    }
}

static void *disturb_on(void *user) {
    player *me = user;
    const char *why = NULL;
    while (why == NULL && !ending_is_over(&me->p->ending)) {
        why = disturb(me->p, &me->r);
    }
    ending_because(&me->p->ending, why);
    return NULL;
}

/* ---- A round ------------------------------------------------------------------------------- */

static const char *run_threads(play *p, uint64_t seed) {
    static player players[N_THREADS + 1];
    pthread_t threads[N_THREADS + 1];
    for (size_t i = 0; i <= N_THREADS; i++) {
        players[i] = (player){p, rng_seeded(seed * 100 + i)};
        NEED(pthread_create(&threads[i], NULL, i == 0 ? disturb_on : play_on, &players[i]) == 0,
             "a thread cannot be made");
    }
    for (size_t i = N_THREADS; i > 0; i--) {
        (void)pthread_join(threads[i], NULL);
    }
    ending_now(&p->ending);
    (void)pthread_join(threads[0], NULL);
    return ending_why(&p->ending);
}

static const char *clear_up(play *p, uint64_t seed) {
    rng r = rng_seeded(seed);
    uint64_t bytes = 1;
    while (bytes > 0) {
        TRY(drop_one(p, &r, &bytes));
    }
    NEED(claims_count(p->claims) == 0, "bytes are claimed with no block alive");
    NEED_OK(set_soft_limit(p->f.allocator, 0));
    NEED_OK(set_limit(p->f.allocator, 0));
    NEED_OK(ductile_virtual_set_external_bytes(p->f.gpu, 0));
    TRY(audit_fixture(&p->f, NULL));
    TRY(fixture_sync_all(&p->f));
    ductile_addr all = 0;
    NEED_OK(ductile_alloc(p->f.allocator, CAPACITY, p->f.streams[0], &all));
    NEED_OK(ductile_free(p->f.allocator, all));
    return NULL;
}

static const char *one_round(uint64_t seed, play *p) {
    static const char *const confs[] = {NULL, "soft_limit_bytes:24M", "reuse:never",
                                        "reuse:stream"};
    fixture_setup setup = {.capacity_bytes = CAPACITY,
                           .schedule = (ductile_schedule)(seed / 4 % 4),
                           .lag = 15,
                           .seed = seed,
                           .n_streams = 4,
                           .conf = confs[seed % 4]};
    uint64_t id = 0;
    TRY(fixture_open(&p->f, &setup));
    NEED_OK(ductile_add_oom_callback(p->f.allocator, free_what_lies_about, p, 0, &id));
    TRY(run_threads(p, seed));
    TRY(clear_up(p, seed));
    return fixture_close(&p->f);
}

typedef struct tally {
    uint64_t served, refused, asked;
} tally;

static const char *play_rounds(uint64_t rounds, uint64_t first_seed, tally *sum) {
    static play p;
    for (uint64_t seed = first_seed; seed < first_seed + rounds; seed++) {
        memset(&p, 0, sizeof p);
        (void)pthread_mutex_init(&p.ending.lock, NULL);
        p.claims = claims_new();
        const char *why = p.claims != NULL ? one_round(seed, &p) : "no host memory";
        NEED(why == NULL, "seed %llu: %s", (unsigned long long)seed, why);
        claims_delete(p.claims);
        sum->served += p.n_served;
        sum->refused += p.n_refused;
        sum->asked += p.n_asked;
    }
    return NULL;
}

int main(int argc, char **argv) {
    uint64_t rounds = 8;
    uint64_t seed = 1;
    tally sum = {.served = 0};
    const command_option options[] = {{"--rounds", .number = &rounds}, {"--seed", .number = &seed}};
    command_read("crunch", options, 2, argc, argv);
    const char *why = play_rounds(rounds, seed, &sum);
    if (why != NULL) {
        return command_end(why);
    }
    (void)printf("crunch: %llu served, %llu refused, callbacks asked %llu times\n",
                 (unsigned long long)sum.served, (unsigned long long)sum.refused,
                 (unsigned long long)sum.asked);
    return sum.served > 0 && sum.refused > 0 && sum.asked > 0 ? COMMAND_PASSED : COMMAND_BROKEN;
}
