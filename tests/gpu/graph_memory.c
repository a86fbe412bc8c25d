/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does memory of captured graphs stay theirs, and do captures stay whole, while other threads
 * allocate, recycle, compact and trim?
 *
 *   launches   a graph that writes memory which was allocated and freed while it was captured, and
 *              leaves what it read from there in a block that stays, is launched again and again:
 *              every launch must leave the same bits as the first, and damage no pattern
 *   captures   in each of the three modes graphs are captured and destroyed, one after the other:
 *              no capture may be invalidated
 *
 * Every second of the other threads is in the capture mode that threads have by default, on CUDA:
 * beside the allocator's calls it makes none but launches, which no capture minds.
 *
 *     graph_memory [--virtual | --device N] [--launches N] [--captures N] [--threads N]
 *                  [--limit BYTES] [--seed N]
 *
 * Prints one figure a line. Ends with 1 when anything is wrong, also when the other threads moved
 * no memory, because then nothing was tested; 77 without a device; 3 when it ran out of time.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/program_blocks.h"
#include "tests/support/program_graphs.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_THREADS = 16,
    MOST_BLOCKS = 96, /* of one thread */
    SECONDS_IN_ALL = 540
};

typedef struct request {
    uint64_t launches;
    uint64_t captures; /* in each mode */
    uint64_t n_threads;
    uint64_t limit; /* 0: 4 GiB; 256 MiB on the virtual GPU */
    uint64_t seed;
} request;

typedef struct program {
    request request;
    program_device on; /* its patterns are of the thread with the graphs */
    ductile_allocator *allocator;
    uint64_t unit; /* size of the graphs' blocks */
    uint64_t limit;
    ductile_stream stream;    /* captured */
    ductile_stream other;     /* launched on, too */
    _Atomic bool is_over;     /* for all threads; the first that fails ends it */
    _Atomic uint64_t n_open;  /* other threads that have opened all they need */
    _Atomic uint64_t n_steps; /* of the other threads */
} program;

/* ---- The other threads --------------------------------------------------------------------- */

typedef struct worker {
    program *p;
    program_device on; /* the program's, with patterns and two streams of its own */
    rng rng;
    live_blocks live;
    uint64_t next_id;
    bool is_relaxed; /* in capture mode */
    char why[512];   /* it has failed */
} worker;

static const char *take_one(worker *w) {
    program *p = w->p;
    uint64_t most = p->limit / 64;
    live_block b = {.block = {.size = rng_between(&w->rng, 256, most) / 4 * 4, .id = w->next_id++}};
    if (rng_percent(&w->rng, 50)) {
        b.block.size = rng_between(&w->rng, 128, 65536) * 4;
    }
    b.stream = (uint32_t)rng_below(&w->rng, 2);
    TRY(program_take(&w->on, p->allocator, &b.block, w->on.streams[b.stream]));
    if (b.block.address != 0) {
        live_blocks_add(&w->live, b);
    }
    return NULL;
}

/* A reader on the virtual GPU waits for its stream, which a capture survives beside a relaxed
 * thread only. */
static const char *give_one(worker *w) {
    live_block b = live_blocks_remove(&w->live, (size_t)rng_below(&w->rng, w->live.n));
    ductile_stream stream = w->on.streams[b.stream];
    TRY(pattern_check(&w->on.tester, &b.block, stream));
    TRY(pattern_overwrite(&w->on.tester, &b.block, stream));
    return program_give(&w->on, w->p->allocator, &b.block);
}

/* Live memory rises to a third of the limit for all threads together, and dips. */
static const char *churn(worker *w) {
    uint64_t share = w->p->limit / 2 / w->p->request.n_threads;
    while (w->live.live_bytes < share && w->live.n < MOST_BLOCKS && !atomic_load(&w->p->is_over)) {
        TRY(take_one(w));
        if (w->live.n > 4 && rng_percent(&w->rng, 30)) {
            TRY(give_one(w));
        }
    }
    while (w->live.live_bytes > share / 5 && w->live.n > 2) {
        TRY(give_one(w));
    }
    atomic_fetch_add(&w->p->n_steps, 1);
    return NULL;
}

static const char *trim_or_check(worker *w) {
    switch (rng_below(&w->rng, 6)) {
    case 0:
        NEED_OK(ductile_trim(w->p->allocator, NULL, rng_below(&w->rng, w->p->limit), NULL));
        return NULL;
    case 1:
        return program_is_sound(w->p->allocator);
    default:
        return NULL;
    }
}

/* Every kernel is launched once: the driver may load it only then,
 * which a capture may not survive. */
static const char *open_worker(worker *w) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (w->is_relaxed) {
        NEED_OK(dvmm_capture_exchange_mode(w->p->on.driver, &mode));
    }
    TRY(program_attach(&w->on, 2));
    TRY(take_one(w));
    return w->live.n > 0 ? give_one(w) : NULL;
}

static const char *churn_until_over(worker *w) {
    TRY(open_worker(w));
    atomic_fetch_add(&w->p->n_open, 1);
    while (!atomic_load(&w->p->is_over)) {
        TRY(churn(w));
        TRY(trim_or_check(w));
    }
    while (w->live.n > 0) {
        TRY(give_one(w));
    }
    return NULL;
}

/* Not with a wait for the whole device, which captures would not survive. */
static const char *judge_worker(worker *w) {
    const pattern_tester *p = &w->on.tester;
    uint64_t mismatches = p->mismatches;
    for (size_t i = 0; i < w->on.n_streams; i++) {
        NEED_OK(dvmm_stream_sync(w->on.driver, w->on.streams[i]));
    }
    if (p->gpu != NULL) {
        NEED_OK(bench_read_back(w->on.driver, &mismatches, p->counter, sizeof(mismatches),
                                w->on.streams[0]));
    }
    NEED(mismatches == 0, "%llu words or windows of another thread's blocks differ",
         (unsigned long long)mismatches);
    return NULL;
}

static void *run_worker(void *user) {
    worker *w = user;
    const char *why = churn_until_over(w);
    why = why == NULL ? judge_worker(w) : why;
    if (why != NULL) {
        (void)snprintf(w->why, sizeof w->why, "%s", why);
        atomic_store(&w->p->is_over, true);
    }
    return NULL;
}

/* ---- A graph ------------------------------------------------------------------------------- */

static int is_captured(void *user, ductile_stream stream) {
    const program *p = user;
    return stream == p->stream;
}

/* What a launch leaves: a block for each half of the work. */
typedef struct result {
    pattern_block halves[2];
} result;

/* Writes to memory, keeps some of it, gives the memory back: what comes next gets the same. */
static const char *capture_half(program *p, pattern_block *out, uint64_t id) {
    pattern_block passing = {.size = 4 * p->unit - 4096 * (id % 7), .id = id};
    NEED_OK(ductile_alloc(p->allocator, passing.size, p->stream, &passing.address));
    NEED_OK(ductile_alloc(p->allocator, p->unit, p->stream, &out->address));
    out->size = p->unit;
    TRY(pattern_write(&p->on.tester, &passing, p->stream));
    NEED_OK(
        bench_copy(p->on.driver, out->address, passing.address + 2 * p->unit, p->unit, p->stream));
    if (p->on.tester.gpu != NULL) { /* elsewhere it waits, which a capture does not survive */
        TRY(pattern_check(&p->on.tester, &passing, p->stream));
    }
    NEED_OK(ductile_free(p->allocator, passing.address));
    return NULL;
}

static const char *capture(program *p, ductile_pool_id pool, dvmm_capture_mode mode, uint64_t id,
                           void **out, result *r) {
    NEED_OK(ductile_pool_begin(p->allocator, pool, is_captured, p));
    NEED_OK(bench_capture_begin(p->on.driver, p->stream, mode));
    TRY(capture_half(p, &r->halves[0], id));
    TRY(capture_half(p, &r->halves[1], id + 1));
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    NEED_OK(dvmm_capture_status_of(p->on.driver, p->stream, &status));
    NEED(status == DVMM_CAPTURE_ACTIVE, "the capture was invalidated in mode %d", (int)mode);
    TRY(program_graph(&p->on, p->stream, out));
    NEED_OK(ductile_pool_end(p->allocator, pool));
    return NULL;
}

static const char *end_graph(program *p, ductile_pool_id pool, void *g, const result *r) {
    TRY(program_drop_graph(&p->on, g));
    NEED_OK(ductile_free(p->allocator, r->halves[0].address));
    NEED_OK(ductile_free(p->allocator, r->halves[1].address));
    NEED_OK(ductile_pool_release(p->allocator, pool));
    return NULL;
}

/* The bits that a launch left, both halves one behind the other. */
static const char *read_result(program *p, const result *r, uint8_t *bits, ductile_stream stream) {
    for (int i = 0; i < 2; i++) {
        NEED_OK(bench_read_back(p->on.driver, bits + (uint64_t)i * p->unit, r->halves[i].address,
                                p->unit, stream));
    }
    return NULL;
}

/* Nothing of the launch before is left to be read. */
static const char *wipe(program *p, const result *r, ductile_stream stream) {
    for (int i = 0; i < 2; i++) {
        NEED_OK(dvmm_fill(p->on.driver, r->halves[i].address, 0x5A, p->unit, stream));
    }
    return NULL;
}

static const char *launch_and_read(program *p, void *g, const result *r, uint8_t *bits,
                                   ductile_stream stream) {
    TRY(wipe(p, r, stream));
    TRY(program_launch(&p->on, g, stream));
    return read_result(p, r, bits, stream);
}

/* Which one, is said once all have ended. */
static const char *all_go_on(const program *p) {
    NEED(!atomic_load(&p->is_over), "another thread has failed");
    return NULL;
}

/* ---- Launches ------------------------------------------------------------------------------ */

static const char *launch_often(program *p, void *g, const result *r, uint8_t *first,
                                uint8_t *bits) {
    TRY(launch_and_read(p, g, r, first, p->stream));
    NEED(memcmp(first, first + p->unit, p->unit) != 0, "both halves left the same bits");
    for (uint64_t i = 1; i < p->request.launches; i++) {
        TRY(launch_and_read(p, g, r, bits, i % 3 == 2 ? p->other : p->stream));
        NEED(memcmp(first, bits, 2 * p->unit) == 0, "launch %llu left other bits than the first",
             (unsigned long long)i + 1);
        TRY(all_go_on(p));
    }
    return NULL;
}

static const char *test_launches(program *p) {
    const ductile_pool_id pool = {1, 0};
    void *g = NULL;
    result r;
    uint8_t *bits = malloc(4 * p->unit);
    NEED(bits != NULL, "no host memory");
    TRY(capture(p, pool, DVMM_CAPTURE_GLOBAL, 1000, &g, &r));
    const char *why = launch_often(p, g, &r, bits, bits + 2 * p->unit);
    free(bits);
    TRY(why);
    TRY(end_graph(p, pool, g, &r));
    command_figure("launches_alike", p->request.launches);
    return NULL;
}

/* ---- Captures ------------------------------------------------------------------------------ */

static const char *test_captures(program *p, dvmm_capture_mode mode, const char *name) {
    uint8_t *bits = malloc(2 * p->unit);
    NEED(bits != NULL, "no host memory");
    const char *why = NULL;
    for (uint64_t i = 0; i < p->request.captures && why == NULL; i++) {
        ductile_pool_id pool = {100 + i, 0};
        void *g = NULL;
        result r;
        why = capture(p, pool, mode, i * 2, &g, &r);
        if (why == NULL && i % 16 == 0) {
            why = launch_and_read(p, g, &r, bits, p->stream);
        }
        why = why == NULL ? end_graph(p, pool, g, &r) : why;
        why = why == NULL ? all_go_on(p) : why;
    }
    free(bits);
    TRY(why);
    command_figure(name, p->request.captures);
    return NULL;
}

static const char *test_all(program *p) {
    TRY(test_launches(p));
    TRY(test_captures(p, DVMM_CAPTURE_GLOBAL, "captures_whole_global"));
    TRY(test_captures(p, DVMM_CAPTURE_THREAD_LOCAL, "captures_whole_thread_local"));
    return test_captures(p, DVMM_CAPTURE_RELAXED, "captures_whole_relaxed");
}

/* ---- All together -------------------------------------------------------------------------- */

static void pass_time(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    (void)nanosleep(&moment, NULL);
}

static const char *test_beside_workers(program *p) {
    static worker workers[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    uint64_t n = 0;
    for (; n < p->request.n_threads; n++) {
        workers[n].p = p;
        workers[n].on =
            (program_device){.device = p->on.device, .gpu = p->on.gpu, .driver = p->on.driver};
        workers[n].rng = rng_seeded(p->request.seed + n);
        workers[n].next_id = (n + 1) << 20;
        workers[n].is_relaxed = p->on.gpu != NULL || n % 2 == 1;
        if (pthread_create(&threads[n], NULL, run_worker, &workers[n]) != 0) {
            break;
        }
    }
    while (atomic_load(&p->n_open) < n && !atomic_load(&p->is_over)) {
        pass_time(); /* who opens a device loads kernels, which captures do not survive */
    }
    const char *why = n < p->request.n_threads ? "a thread cannot be made" : test_all(p);
    atomic_store(&p->is_over, true);
    for (uint64_t i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (uint64_t i = 0; i < n; i++) {
        NEED(workers[i].why[0] == '\0', "%s", workers[i].why);
    }
    TRY(why);
    for (uint64_t i = 0; i < n; i++) {
        TRY(program_detach(&workers[i].on));
    }
    return NULL;
}

static const char *judge(program *p) {
    TRY(pattern_all_hold(&p->on.tester));
    ductile_stats stats = fixture_stats(p->allocator);
    command_figure("churn_rounds", atomic_load(&p->n_steps));
    command_figure("recycled_handles", stats.recycled_handles);
    command_figure("compacted_handles", stats.compacted_handles);
    command_figure("releases", stats.releases);
    command_figure("reserved_peak_bytes", stats.reserved_peak_bytes);
    NEED(stats.live_blocks == 0, "blocks are live after all were freed");
    NEED(stats.quarantined_bytes == 0, "memory was lost");
    NEED(stats.recycled_handles > 0 && stats.compacted_handles > 0 && stats.releases > 0,
         "no handle was recycled, compacted or given back: nothing was tested");
    return program_is_sound(p->allocator);
}

static const char *open_all(program *p) {
    ductile_virtual_options options =
        program_options((uint64_t)1 << 30, DUCTILE_SCHEDULE_LAGGING, 12, p->request.seed);
    TRY(program_open(&p->on, &options, 2));
    p->stream = p->on.streams[0];
    p->other = p->on.streams[1];
    p->unit = p->on.is_virtual ? (uint64_t)1 << 20 : (uint64_t)4 << 20;
    uint64_t usual = p->on.is_virtual ? (uint64_t)256 << 20 : (uint64_t)4 << 30;
    p->limit = p->request.limit != 0 ? p->request.limit : usual;
    program_print_head(&p->on, ", seed %llu, %llu threads, limit %llu",
                       (unsigned long long)p->request.seed,
                       (unsigned long long)p->request.n_threads, (unsigned long long)p->limit);
    return program_allocator(&p->on, p->limit, &p->allocator);
}

static const char *run(program *p) {
    TRY(open_all(p));
    TRY(test_beside_workers(p));
    TRY(judge(p));
    NEED_OK(ductile_destroy(p->allocator));
    return program_close(&p->on);
}

/* ---- The program --------------------------------------------------------------------------- */

static void read_request(program *p, int argc, char **argv) {
    request *r = &p->request;
    const command_option options[] = {
        PROGRAM_OPTIONS(&p->on),
        {"--launches", .number = &r->launches},
        {"--captures", .number = &r->captures},
        {"--threads", .number = &r->n_threads},
        {"--limit", .number = &r->limit},
        {"--seed", .number = &r->seed},
    };
    command_read("graph_memory", options, sizeof options / sizeof *options, argc, argv);
    if (r->n_threads < 1 || r->n_threads > MOST_THREADS || r->launches == 0) {
        command_refuse("there are 1 to 16 threads, and launches");
    }
}

int main(int argc, char **argv) {
    static program p;
    p.request = (request){.launches = 1000, .captures = 1000, .n_threads = 3, .seed = 30};
    read_request(&p, argc, argv);
    command_end_after(SECONDS_IN_ALL);
    return program_end(run(&p));
}
