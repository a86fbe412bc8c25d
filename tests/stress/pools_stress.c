/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools, pauses, captures and streams that end, beside threads that allocate, free and
 * trim. Blocks change hands through slots, so that most are freed by others, also while their pool
 * is paused or a stream that they were recorded on is being named done. No block may lose its
 * contents, no capture may be broken, the check finds nothing at any time, and in the end nothing
 * is left. Made to run under the thread sanitizer: exit status 0, or 1 and one line.
 *
 *     pools_stress [--seconds N] [--seed N] [--schedule eager|lagging|lazy|random] [--conf OPTIONS]
 *                  [--devices N]
 *
 * With two devices the second one's streams use blocks as well.
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/ending.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/rng.h"

#include <ductile_share.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_WORKERS = 3, N_SLOTS = 48, N_COMMON = 3, N_CAPTURED = 6, N_HANDED_ON = 4 };

#define CAPTURED_STREAM N_COMMON /* of the fixture: nobody else's */
#define PAUSED_POOL ((ductile_pool_id){0, 7})

/* A live block. Whoever holds the pointer is its only owner. */
typedef struct held {
    ductile_addr address;
    uint64_t size;
    size_t stream;
    uint64_t life; /* of the pool's contents when it was written; 0: in no pool */
    uint8_t pattern;
} held;

typedef struct stage {
    fixture f;
    ductile_stream theirs; /* of the second device; NULL: there is none */
    uint64_t seed;
    _Atomic(held *) slots[N_SLOTS];
    _Atomic(held *) ending[N_HANDED_ON]; /* recorded on a stream that ends just now */
    ending the_end;
    _Atomic uint64_t n_blocks, n_pauses, n_refused_pauses, n_graphs, n_streams, n_audits;
    pthread_rwlock_t use; /* of the pool's memory: nobody uses it while it is paused */
    uint64_t life;        /* contents that were not kept end it; under `use` */
    bool is_left_paused;  /* the play ended first: `use` is not given back */
} stage;

typedef struct actor {
    stage *s;
    const char *(*act)(struct actor *self);
    rng r;
    pthread_t thread;
} actor;

static void rest(void) {
    const struct timespec moment = {.tv_nsec = 300000};
    (void)nanosleep(&moment, NULL);
}

/* ---- Blocks -------------------------------------------------------------------------------- */

static const char *fill(const stage *s, const held *h, ductile_stream stream) {
    NEED_OK(ductile_virtual_fill(s->f.gpu, h->address, h->pattern, h->size, stream));
    return NULL;
}

static const char *fill_locked(stage *s, held *h) {
    if (h->life != 0) {
        h->life = s->life;
    }
    return fill(s, h, s->f.streams[h->stream]);
}

static const char *verify_locked(const stage *s, const held *h) {
    uint8_t last = 0;
    if (h->life != 0 && h->life != s->life) {
        return NULL;
    }
    NEED_OK(ductile_virtual_read_back(s->f.gpu, &last, h->address + h->size - 1, 1,
                                      s->f.streams[h->stream]));
    NEED(last == h->pattern, "block %llx of %s holds %02x, not %02x", h->address,
         h->life != 0 ? "the pool" : "no pool", last, h->pattern);
    return NULL;
}

/* A user of the pool's memory keeps it from being paused. *used: false while it is. */
static const char *with_memory(stage *s, held *h, const char *(*use)(stage *s, held *h),
                               bool *used) {
    bool in_pool = h->life != 0;
    *used = !in_pool || pthread_rwlock_tryrdlock(&s->use) == 0;
    const char *why = *used ? use(s, h) : NULL;
    if (in_pool && *used) {
        (void)pthread_rwlock_unlock(&s->use);
    }
    return why;
}

static const char *verify_and_fill(stage *s, held *h) {
    TRY(verify_locked(s, h));
    return fill_locked(s, h);
}

static uint64_t any_size(rng *r) {
    return rng_percent(r, 60) ? rng_between(r, 1, 40000) : rng_between(r, 1, 2 * FIXTURE_GRANULE);
}

static const char *give(stage *s, held *h) {
    ductile_addr address = h->address;
    free(h);
    NEED_OK(ductile_free(s->f.allocator, address));
    return NULL;
}

/* NULL in *out when there is no memory, or the pool is paused. */
static const char *make(actor *self, bool in_pool, held **out) {
    stage *s = self->s;
    held h = {.size = any_size(&self->r),
              .stream = (size_t)rng_below(&self->r, N_COMMON),
              .life = in_pool,
              .pattern = (uint8_t)rng_next(&self->r)};
    *out = NULL;
    if (in_pool) {
        NEED_OK(ductile_pool_begin(s->f.allocator, PAUSED_POOL, NULL, NULL));
    }
    ductile_status status =
        ductile_alloc(s->f.allocator, h.size, s->f.streams[h.stream], &h.address);
    if (in_pool) {
        NEED_OK(ductile_pool_end(s->f.allocator, PAUSED_POOL));
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY || (in_pool && status == DUCTILE_ERR_ASLEEP)) {
        return NULL;
    }
    NEED(status == DUCTILE_OK, "alloc: %s", ductile_status_name(status));
    *out = malloc(sizeof h);
    NEED(*out != NULL, "no host memory for the test");
    **out = h;
    atomic_fetch_add(&s->n_blocks, 1);
    bool used = false;
    TRY(with_memory(s, *out, fill_locked, &used));
    if (!used) { /* the pool was paused meanwhile */
        held *paused = *out;
        *out = NULL;
        return give(s, paused);
    }
    return NULL;
}

/* Leaves the block for others and frees what lay there. */
static const char *hand_on(actor *self, held *h) {
    held *before = atomic_exchange(&self->s->slots[rng_below(&self->r, N_SLOTS)], h);
    return before != NULL ? give(self->s, before) : NULL;
}

static held *take_any(actor *self) {
    held *h = NULL;
    for (size_t i = 0; i < N_HANDED_ON && h == NULL; i++) {
        h = atomic_exchange(&self->s->ending[i], NULL);
    }
    return h != NULL ? h : atomic_exchange(&self->s->slots[rng_below(&self->r, N_SLOTS)], NULL);
}

/* ---- Threads that allocate ----------------------------------------------------------------- */

static const char *make_one(actor *self) {
    held *h = NULL;
    TRY(make(self, rng_percent(&self->r, 50), &h));
    return h != NULL ? hand_on(self, h) : NULL;
}

static const char *use_one(actor *self) {
    held *h = take_any(self);
    if (h == NULL) {
        return NULL;
    }
    bool used = false;
    TRY(with_memory(self->s, h, verify_and_fill, &used));
    return used || rng_percent(&self->r, 80) ? hand_on(self, h) : give(self->s, h);
}

static const char *record_on_next(stage *s, held *h) {
    bool is_theirs = s->theirs != NULL && h->pattern % 2 != 0;
    ductile_stream other = is_theirs ? s->theirs : s->f.streams[(h->stream + 1) % N_COMMON];
    TRY(fill_locked(s, h));
    NEED_OK(ductile_virtual_stream_wait(s->f.gpu, other, s->f.streams[h->stream]));
    TRY(fill(s, h, other));
    NEED_OK(ductile_record_stream(s->f.allocator, h->address, other));
    return NULL;
}

static const char *free_one(actor *self) {
    held *h = take_any(self);
    if (h == NULL) {
        return NULL;
    }
    bool used = false;
    if (rng_percent(&self->r, 40)) {
        TRY(with_memory(self->s, h, record_on_next, &used));
    }
    return give(self->s, h);
}

static const char *work(actor *self) {
    uint64_t dice = rng_below(&self->r, 100);
    if (dice < 45) {
        return make_one(self);
    }
    if (dice < 65) {
        return use_one(self);
    }
    if (dice < 95) {
        return free_one(self);
    }
    ductile_virtual_advance(self->s->f.gpu, rng_between(&self->r, 1, 5));
    return NULL;
}

/* ---- Pausing ------------------------------------------------------------------------------- */

/* Others free blocks of the pool meanwhile, and ask it for some in vain. */
static const char *resume(stage *s) {
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    while (status == DUCTILE_ERR_OUT_OF_MEMORY && !ending_is_over(&s->the_end)) {
        rest();
        status = ductile_resume(s->f.allocator, PAUSED_POOL);
    }
    s->is_left_paused = status == DUCTILE_ERR_OUT_OF_MEMORY;
    NEED(status == DUCTILE_OK || s->is_left_paused, "resume: %s", ductile_status_name(status));
    return NULL;
}

static const char *pause_once(actor *self) {
    stage *s = self->s;
    bool keeps = rng_percent(&self->r, 60);
    ductile_status status =
        ductile_pause(s->f.allocator, PAUSED_POOL, keeps ? DUCTILE_CONTENTS_KEEP : 0);
    if (status == DUCTILE_ERR_BUSY || status == DUCTILE_ERR_ASLEEP ||
        status == DUCTILE_ERR_CAPTURING) {
        atomic_fetch_add(&s->n_refused_pauses, 1);
        return NULL;
    }
    NEED(status == DUCTILE_OK, "pause: %s", ductile_status_name(status));
    s->life += !keeps;
    atomic_fetch_add(&s->n_pauses, 1);
    return resume(s);
}

static const char *pause_and_resume(actor *self) {
    rest();
    (void)pthread_rwlock_wrlock(&self->s->use);
    const char *why = pause_once(self);
    if (!self->s->is_left_paused) {
        (void)pthread_rwlock_unlock(&self->s->use);
    }
    return why;
}

/* ---- Capturing ----------------------------------------------------------------------------- */

static const char *record_graph(actor *self, ductile_virtual_graph **out) {
    stage *s = self->s;
    ductile_stream stream = s->f.streams[CAPTURED_STREAM];
    NEED_OK(ductile_virtual_capture_begin(s->f.gpu, stream, DUCTILE_CAPTURE_RELAXED));
    for (int i = 0; i < N_CAPTURED; i++) {
        held h = {.size = any_size(&self->r), .pattern = (uint8_t)i};
        ductile_status status = ductile_alloc(s->f.allocator, h.size, stream, &h.address);
        if (status == DUCTILE_OK) {
            TRY(fill(s, &h, stream));
            NEED_OK(ductile_free(s->f.allocator, h.address));
        }
        NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc in capture: %s",
             ductile_status_name(status));
    }
    NEED_OK(ductile_virtual_capture_end(s->f.gpu, stream, out));
    return NULL;
}

static const char *capture(actor *self) {
    stage *s = self->s;
    const ductile_pool_id pool = {1 + rng_below(&self->r, 1000000), 1};
    ductile_virtual_graph *graph = NULL;
    NEED_OK(ductile_pool_begin(s->f.allocator, pool, NULL, NULL));
    const char *why = record_graph(self, &graph);
    NEED_OK(ductile_pool_end(s->f.allocator, pool));
    for (int i = 0; i < 3 && why == NULL; i++) {
        ductile_stream stream = s->f.streams[rng_below(&self->r, N_COMMON)];
        NEED_OK(ductile_virtual_graph_launch(graph, stream));
        rest();
    }
    ductile_virtual_graph_destroy(graph);
    NEED_OK(ductile_pool_release(s->f.allocator, pool));
    atomic_fetch_add(&s->n_graphs, 1);
    return why;
}

/* ---- Streams that end ---------------------------------------------------------------------- */

static const char *use_on(stage *s, held *h, ductile_stream stream) {
    NEED_OK(ductile_virtual_stream_wait(s->f.gpu, stream, s->f.streams[h->stream]));
    TRY(fill(s, h, stream));
    NEED_OK(ductile_record_stream(s->f.allocator, h->address, stream));
    NEED_OK(ductile_virtual_stream_wait(s->f.gpu, s->f.streams[h->stream], stream));
    return NULL;
}

/* Others free the blocks, and trim, while the stream is named done. */
static const char *begin_and_end_stream(actor *self) {
    stage *s = self->s;
    ductile_stream stream = NULL;
    bool is_theirs = s->theirs != NULL && rng_percent(&self->r, 50);
    NEED_OK(ductile_virtual_stream_create_on(s->f.gpu, is_theirs, &stream));
    ductile_addr own = 0;
    if (!is_theirs &&
        ductile_alloc(s->f.allocator, any_size(&self->r), stream, &own) == DUCTILE_OK) {
        NEED_OK(ductile_free(s->f.allocator, own));
    }
    for (int i = 0; i < N_HANDED_ON; i++) {
        held *h = NULL;
        TRY(make(self, false, &h));
        if (h != NULL) {
            TRY(use_on(s, h, stream));
            h = atomic_exchange(&s->ending[i], h);
        }
        TRY(h != NULL ? hand_on(self, h) : NULL);
    }
    NEED_OK(ductile_stream_done(s->f.allocator, stream));
    NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, stream));
    atomic_fetch_add(&s->n_streams, 1);
    return NULL;
}

/* ---- The auditor --------------------------------------------------------------------------- */

static const char *look(stage *s) {
    char report[512] = "";
    ductile_status status = ductile_check(s->f.allocator, report, sizeof report);
    NEED(status == DUCTILE_OK, "check: %s", report);
    return NULL;
}

static const char *look_at_pool(stage *s) {
    ductile_pool_info info = {.struct_size = sizeof info};
    NEED_OK(ductile_pool_query(s->f.allocator, PAUSED_POOL, &info));
    return NULL;
}

static const char *audit(actor *self) {
    stage *s = self->s;
    rest();
    atomic_fetch_add(&s->n_audits, 1);
    switch (rng_below(&self->r, 6)) {
    case 0:
        NEED_OK(ductile_trim(s->f.allocator, 0, NULL));
        return NULL;
    case 1: {
        ductile_status status = ductile_pool_trim(s->f.allocator, PAUSED_POOL, NULL);
        NEED(status == DUCTILE_OK || status == DUCTILE_ERR_BUSY, "pool trim: %s",
             ductile_status_name(status));
        return NULL;
    }
    case 2:
        return look_at_pool(s);
    default:
        return look(s);
    }
}

/* ---- The play ------------------------------------------------------------------------------ */

static void *act(void *user) {
    actor *self = user;
    stage *s = self->s;
    const char *why = NULL;
    while (why == NULL && !ending_is_over(&s->the_end)) {
        why = self->act(self);
    }
    ending_because(&s->the_end, why);
    return NULL;
}

static const char *play(stage *s, uint64_t seconds) {
    const char *(*const parts[])(actor *) = {pause_and_resume, capture, begin_and_end_stream,
                                             audit};
    enum { N_PARTS = sizeof parts / sizeof *parts, N_ACTORS = N_WORKERS + N_PARTS };
    static actor actors[N_ACTORS];
    for (size_t i = 0; i < N_ACTORS; i++) {
        actors[i] = (actor){
            .s = s, .act = i < N_PARTS ? parts[i] : work, .r = rng_seeded(s->seed * 100 + i)};
        NEED(pthread_create(&actors[i].thread, NULL, act, &actors[i]) == 0, "no thread");
    }
    for (uint64_t i = 0; i < seconds * 20 && !ending_is_over(&s->the_end); i++) {
        const struct timespec moment = {.tv_nsec = 50000000};
        (void)nanosleep(&moment, NULL);
    }
    ending_now(&s->the_end);
    for (size_t i = 0; i < N_ACTORS; i++) {
        (void)pthread_join(actors[i].thread, NULL);
    }
    return ending_why(&s->the_end);
}

static const char *clear_up(stage *s) {
    for (size_t i = 0; i < N_SLOTS + N_HANDED_ON; i++) {
        held *h = atomic_exchange(i < N_SLOTS ? &s->slots[i] : &s->ending[i - N_SLOTS], NULL);
        if (h != NULL) {
            TRY(give(s, h));
        }
    }
    NEED_OK(ductile_pool_release(s->f.allocator, PAUSED_POOL));
    TRY(look(s));
    TRY(fixture_sync_all(&s->f));
    if (s->theirs != NULL) {
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->theirs));
        NEED_OK(ductile_stream_done(s->f.allocator, s->theirs));
        NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, s->theirs));
    }
    NEED_OK(ductile_empty_cache(s->f.allocator));
    NEED(fixture_stats(s->f.allocator).live_blocks == 0, "a block is live that nobody holds");
    return fixture_close(&s->f);
}

static const char *run(stage *s, const fixture_setup *setup, uint64_t seconds) {
    TRY(fixture_open(&s->f, setup));
    s->life = 1;
    if (setup->n_devices > 1) {
        NEED_OK(ductile_enable_peer(s->f.allocator, 1));
        NEED_OK(ductile_virtual_stream_create_on(s->f.gpu, 1, &s->theirs));
    }
    NEED_OK(ductile_pool_retain(s->f.allocator, PAUSED_POOL));
    NEED_OK(ductile_pool_set_kind(s->f.allocator, PAUSED_POOL, DUCTILE_POOL_PLAIN));
    TRY(play(s, seconds));
    return clear_up(s);
}

int main(int argc, char **argv) {
    static stage s = {.use = PTHREAD_RWLOCK_INITIALIZER, .the_end = ENDING_INITIALIZER};
    fixture_setup setup = {.capacity_bytes = 256 * MIB,
                           .schedule = DUCTILE_SCHEDULE_RANDOM,
                           .lag = 20,
                           .seed = 1,
                           .n_streams = N_COMMON + 1};
    uint64_t seconds = 5;
    uint64_t n_devices = 1;
    const command_option options[] = {
        {"--seconds", .number = &seconds},
        {"--seed", .number = &setup.seed},
        {"--schedule", .schedule = &setup.schedule},
        {"--conf", .text = &setup.conf, .placeholder = "OPTIONS"},
        {"--devices", .number = &n_devices},
    };
    command_read("pools_stress", options, sizeof options / sizeof *options, argc, argv);
    setup.n_devices = (uint32_t)n_devices;
    s.seed = setup.seed;
    const char *why = run(&s, &setup, seconds);
    if (why != NULL) {
        return command_end(complain("seed %llu: %s", (unsigned long long)setup.seed, why));
    }
    (void)printf("pools_stress: %llu blocks, %llu pauses and %llu refused, %llu graphs, %llu "
                 "streams, %llu audits\n",
                 (unsigned long long)s.n_blocks, (unsigned long long)s.n_pauses,
                 (unsigned long long)s.n_refused_pauses, (unsigned long long)s.n_graphs,
                 (unsigned long long)s.n_streams, (unsigned long long)s.n_audits);
    return s.n_blocks > 0 && s.n_pauses > 0 && s.n_graphs > 0 && s.n_streams > 0 ? COMMAND_PASSED
                                                                                 : COMMAND_BROKEN;
}
