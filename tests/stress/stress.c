/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one allocator: random requests on shared streams, blocks that change hands and
 * are freed by others, threads that die and leave their blocks behind, and one thread that trims,
 * counts, walks and checks all the while. No two owners may hold the same bytes, no block may lose
 * its contents, and in the end nothing is left. Made to run under the thread sanitizer, so it is a
 * plain program: exit status 0, or 1 and one line that says what went wrong and with which seed.
 *
 *     stress [--seconds N] [--ops N] [--threads N] [--streams N] [--seed N] [--capacity-mib N]
 *            [--schedule eager|lagging|lazy|random] [--conf OPTIONS]
 */
#include "tests/support/audit.h"
#include "tests/support/claims.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/ending.h"
#include "tests/support/json_check.h"
#include "tests/support/limits.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_THREADS_MAX 64
#define N_SLOTS 64   /* where blocks wait to change hands    */
#define N_OWN 24     /* blocks a thread holds at most        */
#define LIFE_OPS 400 /* operations until a thread dies       */
#define SAMPLE_BYTES 64

typedef struct arguments {
    uint64_t seconds, ops, threads, streams, seed, capacity_mib;
    ductile_schedule schedule;
    const char *conf;
} arguments;

/* A live block. Whoever holds the pointer is its only owner. */
typedef struct held {
    ductile_addr address;
    uint64_t size; /* rounded */
    size_t stream;
    uint8_t pattern;
} held;

/* Shared by all threads. */
typedef struct arena_of_play {
    fixture f;
    claims *claims;
    const arguments *arguments;
    _Atomic(held *) slots[N_SLOTS];
    ending ending;
    _Atomic uint64_t n_ops, n_allocs, n_refused, n_lives, n_checks;
} arena_of_play;

/* One life of one thread. */
typedef struct life {
    arena_of_play *play;
    rng r;
    held *own[N_OWN];
    size_t n_own;
} life;

/* ---- A block ------------------------------------------------------------------------------- */

static const char *fill(const arena_of_play *p, const held *h, size_t stream) {
    NEED_OK(ductile_virtual_fill(p->f.gpu, h->address, h->pattern, h->size, p->f.streams[stream]));
    return NULL;
}

static const char *verify_at(const arena_of_play *p, const held *h, uint64_t offset) {
    uint8_t bytes[SAMPLE_BYTES];
    NEED_OK(ductile_virtual_read_back(p->f.gpu, bytes, h->address + offset, sizeof bytes,
                                      p->f.streams[h->stream]));
    for (size_t i = 0; i < sizeof bytes; i++) {
        NEED(bytes[i] == h->pattern, "block %llx holds %02x at %llu, not %02x", h->address,
             bytes[i], (unsigned long long)(offset + i), h->pattern);
    }
    return NULL;
}

static const char *verify(const arena_of_play *p, const held *h) {
    TRY(verify_at(p, h, 0));
    TRY(verify_at(p, h, h->size / 2 / DUCTILE_ALIGNMENT * DUCTILE_ALIGNMENT));
    return verify_at(p, h, h->size - SAMPLE_BYTES);
}

static uint64_t any_size(rng *r) {
    uint64_t dice = rng_below(r, 100);
    if (dice < 60) {
        return rng_between(r, 1, 40000);
    }
    return rng_between(r, 1, (dice < 90 ? 1 : 6) * FIXTURE_GRANULE);
}

/* NULL in *out when there is no memory now. */
static const char *make(life *l, held **out) {
    arena_of_play *p = l->play;
    uint64_t size = any_size(&l->r);
    held h = {.stream = (size_t)rng_below(&l->r, p->f.n_streams),
              .size = model_rounded(size),
              .pattern = (uint8_t)rng_next(&l->r)};
    *out = NULL;
    ductile_status status = ductile_alloc(p->f.allocator, size, p->f.streams[h.stream], &h.address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        atomic_fetch_add(&p->n_refused, 1);
        return NULL;
    }
    NEED(status == DUCTILE_OK, "alloc: %s", ductile_status_name(status));
    TRY(claims_take(p->claims, h.address, h.size));
    ductile_virtual_block_begin(p->f.gpu, h.address, h.size);
    TRY(fill(p, &h, h.stream));
    *out = malloc(sizeof h);
    NEED(*out != NULL, "no host memory for the test");
    **out = h;
    atomic_fetch_add(&p->n_allocs, 1);
    return NULL;
}

/* Gives the claim back before the block: after the free the bytes may be anybody's. */
static const char *destroy(arena_of_play *p, held *h, rng *r) {
    held gone = *h;
    free(h);
    if (rng_percent(r, 25)) {
        TRY(verify(p, &gone));
    }
    size_t other = (size_t)rng_below(r, p->f.n_streams);
    bool is_used = rng_percent(r, 30);
    if (is_used) {
        NEED_OK(
            ductile_virtual_stream_wait(p->f.gpu, p->f.streams[other], p->f.streams[gone.stream]));
        TRY(fill(p, &gone, other));
    }
    TRY(claims_give(p->claims, gone.address, gone.size));
    ductile_virtual_block_end(p->f.gpu, gone.address);
    ductile_status status = is_used
                                ? ductile_free_on(p->f.allocator, gone.address, p->f.streams[other])
                                : ductile_free(p->f.allocator, gone.address);
    NEED(status == DUCTILE_OK, "free: %s", ductile_status_name(status));
    return NULL;
}

/* ---- A thread ------------------------------------------------------------------------------ */

static const char *grow(life *l) {
    if (l->n_own == N_OWN) {
        return NULL;
    }
    held *h = NULL;
    TRY(make(l, &h));
    if (h != NULL) {
        l->own[l->n_own++] = h;
    }
    return NULL;
}

static const char *shrink(life *l) {
    if (l->n_own == 0) {
        return NULL;
    }
    size_t i = (size_t)rng_below(&l->r, l->n_own);
    held *h = l->own[i];
    l->own[i] = l->own[--l->n_own];
    return destroy(l->play, h, &l->r);
}

/* Leaves a block for others, and frees or keeps what lay there. */
static const char *exchange(life *l) {
    _Atomic(held *) *slot = &l->play->slots[rng_below(&l->r, N_SLOTS)];
    held *mine = l->n_own > 0 ? l->own[--l->n_own] : NULL;
    held *theirs = atomic_exchange(slot, mine);
    if (theirs == NULL) {
        return NULL;
    }
    if (rng_percent(&l->r, 50)) {
        return destroy(l->play, theirs, &l->r);
    }
    l->own[l->n_own++] = theirs;
    return NULL;
}

static const char *use_elsewhere(life *l) {
    if (l->n_own == 0) {
        return NULL;
    }
    arena_of_play *p = l->play;
    const held *h = l->own[rng_below(&l->r, l->n_own)];
    size_t other = (size_t)rng_below(&l->r, p->f.n_streams);
    NEED_OK(ductile_virtual_stream_wait(p->f.gpu, p->f.streams[other], p->f.streams[h->stream]));
    TRY(fill(p, h, other));
    NEED_OK(ductile_record_stream(p->f.allocator, h->address, p->f.streams[other]));
    return NULL;
}

static const char *misuse(life *l) {
    ductile_addr address = 1;
    if (l->n_own > 0) {
        address = l->own[rng_below(&l->r, l->n_own)]->address + 64;
    }
    ductile_status expected =
        address == 1 ? DUCTILE_ERR_FOREIGN_POINTER : DUCTILE_ERR_INTERIOR_POINTER;
    ductile_status status = ductile_free(l->play->f.allocator, address);
    NEED(status == expected, "free of a wrong address: %s", ductile_status_name(status));
    return NULL;
}

static const char *one_operation(life *l) {
    uint64_t dice = rng_below(&l->r, 100);
    if (dice < 42) {
        return grow(l);
    }
    if (dice < 70) {
        return shrink(l);
    }
    if (dice < 85) {
        return exchange(l);
    }
    if (dice < 93) {
        return use_elsewhere(l);
    }
    if (dice < 95) {
        return misuse(l);
    }
    ductile_virtual_advance(l->play->f.gpu, rng_between(&l->r, 1, 5));
    return NULL;
}

/* A dying thread leaves its blocks to the others; what lay in a slot before, it frees. */
static const char *leave_blocks(life *l) {
    while (l->n_own > 0) {
        _Atomic(held *) *slot = &l->play->slots[rng_below(&l->r, N_SLOTS)];
        held *before = atomic_exchange(slot, l->own[--l->n_own]);
        if (before != NULL) {
            TRY(destroy(l->play, before, &l->r));
        }
    }
    return NULL;
}

static void *live(void *user) {
    life *l = user;
    const char *why = NULL;
    for (size_t i = 0; i < LIFE_OPS && why == NULL && !ending_is_over(&l->play->ending); i++) {
        why = one_operation(l);
        atomic_fetch_add(&l->play->n_ops, 1);
    }
    ending_because(&l->play->ending, why == NULL ? leave_blocks(l) : why);
    atomic_fetch_add(&l->play->n_lives, 1);
    return NULL;
}

/* ---- The auditor --------------------------------------------------------------------------- */

static const char *nothing_is_quarantined(const arena_of_play *p) {
    NEED(fixture_stats(p->f.allocator).quarantined_bytes == 0,
         "bytes are quarantined without a fault");
    return NULL;
}

static const char *snapshot_is_json(const arena_of_play *p) {
    text_sink sink = {.text = NULL};
    NEED_OK(ductile_snapshot_json(p->f.allocator, text_sink_write, &sink));
    const char *why = json_check(sink.text);
    free(sink.text);
    return why;
}

static const char *one_audit(arena_of_play *p, rng *r) {
    uint64_t capacity = p->f.capacity_bytes;
    switch (rng_below(r, 8)) {
    case 0:
        NEED_OK(ductile_trim(p->f.allocator, rng_below(r, capacity), NULL));
        return NULL;
    case 1:
        NEED_OK(ductile_empty_cache(p->f.allocator));
        return NULL;
    case 2:
        NEED_OK(set_limit(p->f.allocator,
                          rng_percent(r, 70) ? 0 : capacity / 2 + rng_below(r, capacity)));
        return NULL;
    case 3:
        return snapshot_is_json(p);
    case 4:
        ductile_reset_peaks(p->f.allocator);
        return NULL;
    default:
        TRY(audit_at_any_time(p->f.allocator));
        return nothing_is_quarantined(p);
    }
}

static void *audit(void *user) {
    arena_of_play *p = user;
    rng r = rng_seeded(p->arguments->seed ^ 0xA0D17);
    const struct timespec pause = {.tv_nsec = 500000};
    const char *why = NULL;
    while (why == NULL && !ending_is_over(&p->ending)) {
        why = one_audit(p, &r);
        atomic_fetch_add(&p->n_checks, 1);
        (void)nanosleep(&pause, NULL);
    }
    ending_because(&p->ending, why);
    return NULL;
}

/* ---- The play ------------------------------------------------------------------------------ */

static bool is_time_up(const arena_of_play *p, const struct timespec *start) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    bool is_late = (uint64_t)(now.tv_sec - start->tv_sec) >= p->arguments->seconds;
    bool has_done = p->arguments->ops != 0 && atomic_load(&p->n_ops) >= p->arguments->ops;
    return is_late || has_done || ending_is_over(&p->ending);
}

/* A generation: all threads are born, live and die. */
static const char *generation(arena_of_play *p, uint64_t number) {
    static life lives[N_THREADS_MAX];
    pthread_t threads[N_THREADS_MAX];
    size_t n = 0;
    for (; n < p->arguments->threads; n++) {
        uint64_t seed = p->arguments->seed * 1000003 + number * N_THREADS_MAX + n;
        lives[n] = (life){.play = p, .r = rng_seeded(seed)};
        if (pthread_create(&threads[n], NULL, live, &lives[n]) != 0) {
            break;
        }
    }
    bool has_all = n == p->arguments->threads;
    while (n > 0) {
        (void)pthread_join(threads[--n], NULL);
    }
    NEED(has_all, "a thread cannot be made");
    return NULL;
}

static const char *play(arena_of_play *p) {
    pthread_t auditor;
    struct timespec start;
    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    NEED(pthread_create(&auditor, NULL, audit, p) == 0, "a thread cannot be made");
    const char *why = NULL;
    for (uint64_t i = 0; why == NULL && !is_time_up(p, &start); i++) {
        why = generation(p, i);
    }
    ending_now(&p->ending);
    (void)pthread_join(auditor, NULL);
    return why != NULL ? why : ending_why(&p->ending);
}

/* All that was left in the slots is freed; then nothing may be left anywhere. */
static const char *clear_up(arena_of_play *p) {
    rng r = rng_seeded(p->arguments->seed);
    for (size_t i = 0; i < N_SLOTS; i++) {
        held *h = atomic_exchange(&p->slots[i], NULL);
        if (h != NULL) {
            TRY(destroy(p, h, &r));
        }
    }
    NEED(claims_count(p->claims) == 0, "bytes are claimed with no block alive");
    model none;
    model_init(&none);
    TRY(audit_fixture(&p->f, &none));
    TRY(fixture_sync_all(&p->f));
    NEED_OK(set_limit(p->f.allocator, 0));
    NEED_OK(ductile_empty_cache(p->f.allocator));
    NEED(fixture_state(&p->f).used_bytes == 0, "memory is held with no block alive");
    NEED(fixture_state(&p->f).poisoned == 0, "the device is poisoned");
    return NULL;
}

static const char *run(arena_of_play *p) {
    const arguments *a = p->arguments;
    fixture_setup setup = {.capacity_bytes = a->capacity_mib * MIB,
                           .schedule = a->schedule,
                           .lag = 20,
                           .seed = a->seed,
                           .n_streams = a->streams,
                           .conf = a->conf};
    p->claims = claims_new();
    NEED(p->claims != NULL, "no host memory for the test");
    TRY(fixture_open(&p->f, &setup));
    TRY(play(p));
    TRY(clear_up(p));
    TRY(fixture_close(&p->f));
    claims_delete(p->claims);
    return NULL;
}

static void read_arguments(arguments *a, int argc, char **argv) {
    const command_option options[] = {
        {"--seconds", .number = &a->seconds},
        {"--ops", .number = &a->ops},
        {"--threads", .number = &a->threads},
        {"--streams", .number = &a->streams},
        {"--seed", .number = &a->seed},
        {"--capacity-mib", .number = &a->capacity_mib},
        {"--schedule", .schedule = &a->schedule},
        {"--conf", .text = &a->conf, .placeholder = "OPTIONS"},
    };
    command_read("stress", options, sizeof options / sizeof *options, argc, argv);
    if (a->threads == 0 || a->threads > N_THREADS_MAX || a->streams == 0 ||
        a->streams > FIXTURE_MAX_STREAMS) {
        command_refuse("too few or too many threads or streams");
    }
}

int main(int argc, char **argv) {
    arguments a = {.seconds = 5,
                   .threads = 4,
                   .streams = 6,
                   .seed = 1,
                   .capacity_mib = 128,
                   .schedule = DUCTILE_SCHEDULE_RANDOM};
    read_arguments(&a, argc, argv);
    static arena_of_play p = {.ending = ENDING_INITIALIZER};
    p.arguments = &a;
    const char *why = run(&p);
    if (why != NULL) {
        return command_end(complain("seed %llu: %s", (unsigned long long)a.seed, why));
    }
    (void)printf("stress: %llu operations in %llu lives, %llu blocks, %llu refusals, %llu audits\n",
                 (unsigned long long)p.n_ops, (unsigned long long)p.n_lives,
                 (unsigned long long)p.n_allocs, (unsigned long long)p.n_refused,
                 (unsigned long long)p.n_checks);
    return p.n_allocs > 0 ? COMMAND_PASSED : COMMAND_BROKEN;
}
