/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one allocator, which run the tasks of tests/orders as they like: requests on
 * shared streams, blocks that change hands and are freed by others, streams that end under them,
 * threads that end and leave their blocks behind, trims, counts and views all the while. No two
 * owners may hold the same bytes, no block may lose its contents, every report must add up, all
 * threads come to an end, and in the end nothing is left. Made to run under the thread sanitizer.
 * Exit status 0, or 1 and one line that says what went wrong and with which seed.
 *
 *     many_threads [--pools] [--sleeps] [--starves] [--listens] [--shares] [--devices] ...
 *
 * With --pools a pool sleeps and wakes and graphs are captured meanwhile; with --sleeps the default
 * pool does so, too. With --starves the threads together want more than the device has: callbacks
 * free what others left, and the limits and the device's memory change. With --listens a map
 * callback keeps a table, which hears nothing out of order. With --shares memory is passed to a
 * second allocator, and opened to peers. With --devices streams of another GPU use blocks, too. A
 * round is a device with another seed, in --starves with another schedule and other options. It
 * lasts --seconds, or --turns, and goes on until each task has run.
 */
#include "tests/orders/shared_state.h"
#include "tests/support/command.h"
#include "tests/support/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TURNS_OF_A_THREAD = 100, MOST_TASKS = 64, PATIENCE = 20 };
enum { SMALL_ONES, LARGE_ONES, OF_POOL, OTHERS, PLACES = N_LEFT / 8 }; /* the last: all further */

static struct {
    bool pools, sleeps, starves, listens, shares, devices;
    uint64_t seconds, turns, rounds, threads, seed, capacity_mib;
    ductile_schedule schedule;
    const char *conf;
} plan = {.seconds = 5,
          .rounds = 1,
          .threads = 4,
          .seed = 1,
          .capacity_mib = 256,
          .schedule = DUCTILE_SCHEDULE_RANDOM};

/* Of a round. */
static shared_state s;
static shadow listener;
static const task *chosen[MOST_TASKS];
static size_t n_chosen;
static _Atomic uint64_t n_runs[MOST_TASKS], n_turns, n_ended;
static _Atomic bool is_over;
static time_t began;

/* ---- What is run --------------------------------------------------------------------------- */

static unsigned marks_of_plan(void) {
    return STARVES | IN_STRESS | (plan.pools ? PLAIN_SLEEPS | CAPTURES : 0) |
           (plan.sleeps ? DEFAULT_SLEEPS : 0) | (plan.shares ? SHARES | HAS_PEER : 0);
}

/* Where others want memory, any task may be refused some. */
static bool is_chosen(const task *a) {
    bool is_hungry = (a->marks & STARVES) != 0;
    return (a->marks & ~marks_of_plan()) == 0 && (plan.starves || !is_hungry);
}

static void choose_tasks(void) {
    n_chosen = 0;
    for (size_t i = 0; i < n_tasks; i++) {
        if (is_chosen(&tasks[i])) {
            n_runs[n_chosen] = 0;
            chosen[n_chosen++] = &tasks[i];
        }
    }
}

/* Was there anything to see? */
static const char *was_tested(void) {
    for (size_t i = 0; i < n_chosen; i++) {
        NEED(atomic_load(&n_runs[i]) > 0, "%s did not run", chosen[i]->name);
    }
    scheduler_mute();
    bool was_short = s.n_refused > 0 && s.n_asked > 0;
    bool has_slept = s.n_slept > 0;
    bool was_busy = s.n_refused_inside > 0;
    scheduler_unmute();
    NEED(!plan.starves || was_short, "memory was never short");
    NEED(!plan.pools || has_slept, "no pool has slept");
    NEED(!plan.listens || was_busy, "no callback was refused memory");
    return NULL;
}

/* A machine that is loaded runs for longer: until there was something to see. */
static bool is_time_up(void) {
    uint64_t seconds = (uint64_t)(time(NULL) - began);
    bool is_late = seconds >= plan.seconds;
    bool has_done = plan.turns != 0 && atomic_load(&n_turns) >= plan.turns;
    bool is_too_late = seconds >= PATIENCE * plan.seconds;
    if (((is_late || has_done) && was_tested() == NULL) || is_too_late) {
        atomic_store(&is_over, true);
    }
    return atomic_load(&is_over);
}

/* ---- A turn -------------------------------------------------------------------------------- */

/* The thread's goes to others, and one of theirs, or none, comes. */
static void trade(test_thread *self, held *h, unsigned kind) {
    uint64_t n = kind == OTHERS ? N_LEFT - OTHERS * PLACES : PLACES;
    exchange(&s, kind * PLACES + rng_below(&self->r, n), h);
}

/* Recorded on streams that end with the thread. */
static const char *make_large(test_thread *self) {
    ductile_stream stream = s.t.f.streams[rng_below(&self->r, N_COMMON)];
    TRY(make(self, FIXTURE_GRANULE, stream, &self->large));
    if (self->large.size == 0) {
        return NULL;
    }
    TRY(record_on(&s, &self->large, self->own));
    return self->far != NULL ? record_on(&s, &self->large, self->far) : NULL;
}

static const char *make_missing(test_thread *self) {
    if (self->own == NULL) {
        NEED_OK(ductile_virtual_stream_create(s.t.f.gpu, &self->own));
    }
    TRY(self->small.size == 0 ? make(self, SMALL, s.t.f.streams[0], &self->small) : NULL);
    TRY(self->large.size == 0 ? make_large(self) : NULL);
    return self->in_pool.size == 0 ? make_in_plain(self, SMALL, s.t.f.streams[0], &self->in_pool)
                                   : NULL;
}

static const char *get_blocks(test_thread *self) {
    TRY(make_missing(self));
    trade(self, &self->small, SMALL_ONES);
    trade(self, &self->large, LARGE_ONES);
    trade(self, &self->in_pool, OF_POOL);
    return make_missing(self);
}

/* What lay there is freed, and was used by another stream before, by turns. */
static const char *leave(test_thread *self, held *h, unsigned kind) {
    trade(self, h, kind);
    if (h->size != 0 && rng_percent(&self->r, 30)) {
        ductile_stream other = s.t.f.streams[rng_below(&self->r, N_COMMON)];
        TRY(record_on(&s, h, s.theirs != NULL ? s.theirs : other));
    }
    return give(self, h);
}

static const char *leave_blocks(test_thread *self) {
    TRY(leave(self, &self->small, SMALL_ONES));
    TRY(leave(self, &self->large, LARGE_ONES));
    return leave(self, &self->in_pool, OF_POOL);
}

static uint64_t any_size(rng *r) {
    const uint64_t capacity = plan.capacity_mib * MIB;
    if (plan.starves) {
        return rng_between(r, 1, rng_percent(r, 30) ? capacity : capacity / 12);
    }
    uint64_t draw = rng_below(r, 100);
    return rng_between(r, 1, draw < 60 ? 40000 : (draw < 90 ? 1 : 6) * FIXTURE_GRANULE);
}

static const char *make_any(test_thread *self) {
    ductile_stream stream = s.t.f.streams[rng_below(&self->r, N_COMMON)];
    uint64_t size = 2 * DUCTILE_ALIGNMENT + any_size(&self->r);
    held h;
    TRY(plan.pools && rng_percent(&self->r, 50) ? make_in_plain(self, size, stream, &h)
                                                : make(self, size, stream, &h));
    return leave(self, &h, OTHERS);
}

static const char *run_any(test_thread *self) {
    size_t i = (size_t)rng_below(&self->r, n_chosen);
    self->is_removed = false;
    self->n_turns++;
    TRY(get_blocks(self));
    if (self->small.size == 0 || self->large.size == 0) {
        return leave_blocks(self); /* memory is short */
    }
    TRY(chosen[i]->run(self));
    atomic_fetch_add(&n_runs[i], 1);
    while (self->n_kept > 0) {
        TRY(leave(self, &self->kept[--self->n_kept], OTHERS));
    }
    return NULL;
}

static const char *turn(test_thread *self) {
    uint64_t draw = rng_below(&self->r, 100);
    TRY(wake_what_was_refused(&s));
    if (draw < 5) {
        ductile_virtual_advance(s.t.f.gpu, rng_between(&self->r, 1, 5));
    }
    return draw < 92 ? make_any(self) : run_any(self);
}

/* ---- A thread ------------------------------------------------------------------------------ */

static const char *run_turns(test_thread *self) {
    if (s.theirs != NULL) {
        NEED_OK(ductile_virtual_stream_create_on(s.t.f.gpu, 1, &self->far));
    }
    for (size_t i = 0; i < TURNS_OF_A_THREAD && !is_time_up(); i++) {
        TRY(turn(self));
        atomic_fetch_add(&n_turns, 1);
    }
    TRY(leave_blocks(self));
    TRY(end_stream_of(&s, &self->far));
    return end_stream_of(&s, &self->own);
}

static void *run_thread(void *user) {
    const char *why = run_turns(user);
    if (why != NULL) {
        scheduler_found("wrong", why);
    }
    return NULL;
}

/* A thread ends, and leaves its blocks to others; another one takes its place. */
static void replace_thread(void *user, unsigned number) {
    test_thread *self = &((shared_state *)user)->threads[number];
    pthread_t thread;
    while (!atomic_load(&is_over)) {
        if (pthread_create(&thread, NULL, run_thread, self) != 0) {
            scheduler_found("crash", "a thread cannot be made");
        }
        (void)pthread_join(thread, NULL);
        atomic_fetch_add(&n_ended, 1);
    }
}

/* ---- A round ------------------------------------------------------------------------------- */

static const char *open_round(void) {
    const fixture_setup setup = {.capacity_bytes = plan.capacity_mib * MIB,
                                 .schedule = plan.schedule,
                                 .lag = 20,
                                 .seed = plan.seed,
                                 .conf = plan.conf != NULL ? plan.conf : ""};
    memset(&s, 0, sizeof s);
    s.is_stress = true;
    s.n_threads = (unsigned)plan.threads;
    s.marks = marks_of_plan() | (plan.devices ? HAS_PEER : 0);
    TRY(shared_prepare(&s, &setup));
    for (unsigned i = 0; i < s.n_threads; i++) {
        s.threads[i].r = rng_seeded(plan.seed * 1000003 + i);
    }
    if (plan.devices) {
        NEED_OK(ductile_enable_peer(s.t.f.allocator, 1));
        NEED_OK(ductile_virtual_stream_create_on(s.t.f.gpu, 1, &s.theirs));
    }
    if (plan.listens) {
        memset(&listener, 0, sizeof listener);
        s.listener = &listener;
        TRY(shadow_open(&listener, s.t.f.allocator, s.t.f.gpu));
    }
    return NULL;
}

/* What threads have left goes, and what they have set. */
static const char *tidy(void) {
    TRY(wake_what_was_refused(&s));
    NEED_OK(set_limit(s.t.f.allocator, 0));
    NEED_OK(set_soft_limit(s.t.f.allocator, 0));
    NEED_OK(ductile_virtual_set_external_bytes(s.t.f.gpu, 0));
    for (size_t i = 0; i < N_LEFT; i++) {
        TRY(give(&s.threads[0], &s.left[i]));
    }
    if (s.theirs != NULL) {
        NEED_OK(ductile_virtual_stream_sync(s.t.f.gpu, s.theirs));
    }
    return end_stream_of(&s, &s.theirs);
}

/* An importer may still hold some, until its end. */
static const char *all_can_be_allocated(void) {
    ductile_addr all = 0;
    if (s.t.importer != NULL) {
        return NULL;
    }
    TRY(fixture_sync_all(&s.t.f));
    NEED_OK(ductile_trim(s.t.f.allocator, NULL, 0, NULL));
    NEED(fixture_state(&s.t.f).used_bytes == 0, "memory is held for no block");
    NEED(fixture_state(&s.t.f).poisoned == 0, "the device is poisoned");
    NEED_OK(ductile_alloc(s.t.f.allocator, plan.capacity_mib * MIB, s.t.f.streams[0], &all));
    NEED_OK(ductile_free(s.t.f.allocator, all));
    return NULL;
}

static const char *close_round(void) {
    TRY(tidy());
    TRY(all_can_be_allocated());
    TRY(shared_close(&s));
    if (s.listener != NULL) {
        TRY(shadow_complaint(&listener));
        NEED(listener.n_left > 100, "hardly anything moved");
        NEED(listener.n == 0, "%zu mappings were never said to leave", listener.n);
    }
    return was_tested();
}

static const char *one_round(void) {
    choose_tasks();
    n_turns = n_ended = 0;
    is_over = false;
    began = time(NULL);
    TRY(open_round());
    scheduler_run(s.n_threads, replace_thread, &s, NULL, NULL);
    TRY(close_round());
    (void)printf("seed %llu: %llu turns of %zu tasks in %llu threads, %llu refusals, %llu sleeps\n",
                 (unsigned long long)plan.seed, (unsigned long long)n_turns, n_chosen,
                 (unsigned long long)n_ended, (unsigned long long)s.n_refused,
                 (unsigned long long)s.n_slept);
    return NULL;
}

static const char *run_rounds(void) {
    static const char *const confs[] = {"", "soft_limit_bytes:24M", "reuse:never", "reuse:stream"};
    bool has_conf = plan.conf != NULL;
    for (uint64_t end = plan.seed + plan.rounds; plan.seed < end; plan.seed++) {
        if (plan.starves) {
            plan.schedule = (ductile_schedule)(plan.seed / 4 % 4);
            plan.conf = has_conf ? plan.conf : confs[plan.seed % 4];
        }
        const char *why = one_round();
        if (why != NULL) {
            scheduler_found("wrong", why);
        }
    }
    return NULL;
}

static void report(const char *kind, const char *why) {
    (void)fprintf(stderr, "many_threads: seed %llu: %s: %s\n", (unsigned long long)plan.seed, kind,
                  why);
}

int main(int argc, char **argv) {
    const command_option options[] = {
        {"--pools", .flag = &plan.pools},
        {"--sleeps", .flag = &plan.sleeps},
        {"--starves", .flag = &plan.starves},
        {"--listens", .flag = &plan.listens},
        {"--shares", .flag = &plan.shares},
        {"--devices", .flag = &plan.devices},
        {"--seconds", .number = &plan.seconds},
        {"--turns", .number = &plan.turns},
        {"--rounds", .number = &plan.rounds},
        {"--threads", .number = &plan.threads},
        {"--seed", .number = &plan.seed},
        {"--capacity-mib", .number = &plan.capacity_mib},
        {"--schedule", .schedule = &plan.schedule},
        {"--conf", .text = &plan.conf, .placeholder = "OPTIONS"},
    };
    command_read("many_threads", options, sizeof options / sizeof *options, argc, argv);
    if (plan.threads == 0 || plan.threads > MOST_THREADS) {
        command_refuse("too few or too many threads");
    }
    scheduler_init(report);
    return command_end(run_rounds());
}
