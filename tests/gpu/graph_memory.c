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
#include "tests/support/fixture_virtual.h"
#include "tests/support/program_device.h"
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

typedef struct stage {
    request request;
    program_device on; /* its painter is of the thread with the graphs */
    ductile_allocator *allocator;
    uint64_t unit; /* size of the graphs' blocks */
    uint64_t limit;
    ductile_stream stream;    /* captured */
    ductile_stream other;     /* launched on, too */
    _Atomic bool is_over;     /* for all threads; the first that fails ends it */
    _Atomic uint64_t n_open;  /* other threads that have opened all they need */
    _Atomic uint64_t n_steps; /* of the other threads */
} stage;

/* ---- The other threads --------------------------------------------------------------------- */

typedef struct neighbour {
    stage *s;
    program_device on; /* the stage's, with a painter and two streams of its own */
    rng rng;
    gallery live;
    uint64_t next_id;
    bool is_relaxed; /* in capture mode */
    char why[512];   /* it has failed */
} neighbour;

static const char *take_one(neighbour *n) {
    stage *s = n->s;
    uint64_t most = s->limit / 64;
    painted b = {.canvas = {.size = rng_between(&n->rng, 256, most) / 4 * 4, .id = n->next_id++}};
    if (rng_percent(&n->rng, 50)) {
        b.canvas.size = rng_between(&n->rng, 128, 65536) * 4;
    }
    b.stream = (uint32_t)rng_below(&n->rng, 2);
    TRY(program_take(&n->on, s->allocator, &b.canvas, n->on.streams[b.stream]));
    if (b.canvas.address != 0) {
        gallery_add(&n->live, b);
    }
    return NULL;
}

/* A reader on the virtual GPU waits for its stream, which a capture survives beside a relaxed
 * thread only. */
static const char *give_one(neighbour *n) {
    painted b = gallery_remove(&n->live, (size_t)rng_below(&n->rng, n->live.n));
    ductile_stream stream = n->on.streams[b.stream];
    TRY(look(&n->on.painter, &b.canvas, stream));
    TRY(scribble(&n->on.painter, &b.canvas, stream));
    return program_give(&n->on, n->s->allocator, &b.canvas);
}

/* Live memory rises to a third of the limit for all threads together, and dips. */
static const char *breathe(neighbour *n) {
    uint64_t share = n->s->limit / 2 / n->s->request.n_threads;
    while (n->live.live_bytes < share && n->live.n < MOST_BLOCKS && !atomic_load(&n->s->is_over)) {
        TRY(take_one(n));
        if (n->live.n > 4 && rng_percent(&n->rng, 30)) {
            TRY(give_one(n));
        }
    }
    while (n->live.live_bytes > share / 5 && n->live.n > 2) {
        TRY(give_one(n));
    }
    atomic_fetch_add(&n->s->n_steps, 1);
    return NULL;
}

static const char *trim_or_check(neighbour *n) {
    switch (rng_below(&n->rng, 6)) {
    case 0:
        NEED_OK(ductile_trim(n->s->allocator, NULL, rng_below(&n->rng, n->s->limit), NULL));
        return NULL;
    case 1:
        return program_is_sound(n->s->allocator);
    default:
        return NULL;
    }
}

/* Every kernel is launched once: the driver may load it only then,
 * which a capture may not survive. */
static const char *open_neighbour(neighbour *n) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (n->is_relaxed) {
        NEED_OK(dvmm_capture_exchange_mode(n->s->on.driver, &mode));
    }
    TRY(program_furnish(&n->on, 2));
    TRY(take_one(n));
    return n->live.n > 0 ? give_one(n) : NULL;
}

static const char *be_neighbour(neighbour *n) {
    TRY(open_neighbour(n));
    atomic_fetch_add(&n->s->n_open, 1);
    while (!atomic_load(&n->s->is_over)) {
        TRY(breathe(n));
        TRY(trim_or_check(n));
    }
    while (n->live.n > 0) {
        TRY(give_one(n));
    }
    return NULL;
}

/* Not with a wait for the whole device, which captures would not survive. */
static const char *judge_neighbour(neighbour *n) {
    const painter *p = &n->on.painter;
    uint64_t mismatches = p->mismatches;
    for (size_t i = 0; i < n->on.n_streams; i++) {
        NEED_OK(dvmm_stream_sync(n->on.driver, n->on.streams[i]));
    }
    if (p->gpu != NULL) {
        NEED_OK(dvmm_read_back(n->on.driver, &mismatches, p->counter, sizeof(mismatches),
                               n->on.streams[0]));
    }
    NEED(mismatches == 0, "%llu words or windows of another thread's blocks differ",
         (unsigned long long)mismatches);
    return NULL;
}

static void *live_beside(void *user) {
    neighbour *n = user;
    const char *why = be_neighbour(n);
    why = why == NULL ? judge_neighbour(n) : why;
    if (why != NULL) {
        (void)snprintf(n->why, sizeof n->why, "%s", why);
        atomic_store(&n->s->is_over, true);
    }
    return NULL;
}

/* ---- A graph ------------------------------------------------------------------------------- */

static int is_captured(void *user, ductile_stream stream) {
    const stage *s = user;
    return stream == s->stream;
}

/* What a launch leaves: a block for each half of the work. */
typedef struct result {
    canvas halves[2];
} result;

/* Paints memory, keeps some of it, gives the memory back: what comes next gets the same. */
static const char *capture_half(stage *s, canvas *out, uint64_t id) {
    canvas passing = {.size = 4 * s->unit - 4096 * (id % 7), .id = id};
    NEED_OK(ductile_alloc(s->allocator, passing.size, s->stream, &passing.address));
    NEED_OK(ductile_alloc(s->allocator, s->unit, s->stream, &out->address));
    out->size = s->unit;
    TRY(paint(&s->on.painter, &passing, s->stream));
    NEED_OK(
        dvmm_copy(s->on.driver, out->address, passing.address + 2 * s->unit, s->unit, s->stream));
    if (s->on.painter.gpu != NULL) { /* elsewhere it waits, which a capture does not survive */
        TRY(look(&s->on.painter, &passing, s->stream));
    }
    NEED_OK(ductile_free(s->allocator, passing.address));
    return NULL;
}

static const char *capture(stage *s, ductile_pool_id pool, dvmm_capture_mode mode, uint64_t id,
                           void **out, result *r) {
    NEED_OK(ductile_pool_begin(s->allocator, pool, is_captured, s));
    NEED_OK(dvmm_capture_begin(s->on.driver, s->stream, mode));
    TRY(capture_half(s, &r->halves[0], id));
    TRY(capture_half(s, &r->halves[1], id + 1));
    dvmm_capture_status status = DVMM_CAPTURE_BROKEN;
    NEED_OK(dvmm_capture_status_of(s->on.driver, s->stream, &status));
    NEED(status == DVMM_CAPTURE_ACTIVE, "the capture was invalidated in mode %d", (int)mode);
    TRY(program_graph(&s->on, s->stream, out));
    NEED_OK(ductile_pool_end(s->allocator, pool));
    return NULL;
}

static const char *end_graph(stage *s, ductile_pool_id pool, void *g, const result *r) {
    TRY(program_drop_graph(&s->on, g));
    NEED_OK(ductile_free(s->allocator, r->halves[0].address));
    NEED_OK(ductile_free(s->allocator, r->halves[1].address));
    NEED_OK(ductile_pool_release(s->allocator, pool));
    return NULL;
}

/* The bits that a launch left, both halves one behind the other. */
static const char *read_result(stage *s, const result *r, uint8_t *bits, ductile_stream stream) {
    for (int i = 0; i < 2; i++) {
        NEED_OK(dvmm_read_back(s->on.driver, bits + (uint64_t)i * s->unit, r->halves[i].address,
                               s->unit, stream));
    }
    return NULL;
}

/* Nothing of the launch before is left to be read. */
static const char *wipe(stage *s, const result *r, ductile_stream stream) {
    for (int i = 0; i < 2; i++) {
        NEED_OK(dvmm_fill(s->on.driver, r->halves[i].address, 0x5A, s->unit, stream));
    }
    return NULL;
}

static const char *launch_and_read(stage *s, void *g, const result *r, uint8_t *bits,
                                   ductile_stream stream) {
    TRY(wipe(s, r, stream));
    TRY(program_launch(&s->on, g, stream));
    return read_result(s, r, bits, stream);
}

/* Which one, is said once all have ended. */
static const char *all_go_on(const stage *s) {
    NEED(!atomic_load(&s->is_over), "another thread has failed");
    return NULL;
}

/* ---- Launches ------------------------------------------------------------------------------ */

static const char *launch_often(stage *s, void *g, const result *r, uint8_t *first, uint8_t *bits) {
    TRY(launch_and_read(s, g, r, first, s->stream));
    NEED(memcmp(first, first + s->unit, s->unit) != 0, "both halves left the same bits");
    for (uint64_t i = 1; i < s->request.launches; i++) {
        TRY(launch_and_read(s, g, r, bits, i % 3 == 2 ? s->other : s->stream));
        NEED(memcmp(first, bits, 2 * s->unit) == 0, "launch %llu left other bits than the first",
             (unsigned long long)i + 1);
        TRY(all_go_on(s));
    }
    return NULL;
}

static const char *test_launches(stage *s) {
    const ductile_pool_id pool = {1, 0};
    void *g = NULL;
    result r;
    uint8_t *bits = malloc(4 * s->unit);
    NEED(bits != NULL, "no host memory");
    TRY(capture(s, pool, DVMM_CAPTURE_GLOBAL, 1000, &g, &r));
    const char *why = launch_often(s, g, &r, bits, bits + 2 * s->unit);
    free(bits);
    TRY(why);
    TRY(end_graph(s, pool, g, &r));
    command_figure("launches_alike", s->request.launches);
    return NULL;
}

/* ---- Captures ------------------------------------------------------------------------------ */

static const char *test_captures(stage *s, dvmm_capture_mode mode, const char *name) {
    uint8_t *bits = malloc(2 * s->unit);
    NEED(bits != NULL, "no host memory");
    const char *why = NULL;
    for (uint64_t i = 0; i < s->request.captures && why == NULL; i++) {
        ductile_pool_id pool = {100 + i, 0};
        void *g = NULL;
        result r;
        why = capture(s, pool, mode, i * 2, &g, &r);
        if (why == NULL && i % 16 == 0) {
            why = launch_and_read(s, g, &r, bits, s->stream);
        }
        why = why == NULL ? end_graph(s, pool, g, &r) : why;
        why = why == NULL ? all_go_on(s) : why;
    }
    free(bits);
    TRY(why);
    command_figure(name, s->request.captures);
    return NULL;
}

static const char *test_all(stage *s) {
    TRY(test_launches(s));
    TRY(test_captures(s, DVMM_CAPTURE_GLOBAL, "captures_whole_global"));
    TRY(test_captures(s, DVMM_CAPTURE_THREAD_LOCAL, "captures_whole_thread_local"));
    return test_captures(s, DVMM_CAPTURE_RELAXED, "captures_whole_relaxed");
}

/* ---- The play ------------------------------------------------------------------------------ */

static void pass_time(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    (void)nanosleep(&moment, NULL);
}

static const char *with_neighbours(stage *s) {
    static neighbour neighbours[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    uint64_t n = 0;
    for (; n < s->request.n_threads; n++) {
        neighbours[n].s = s;
        neighbours[n].on =
            (program_device){.device = s->on.device, .gpu = s->on.gpu, .driver = s->on.driver};
        neighbours[n].rng = rng_seeded(s->request.seed + n);
        neighbours[n].next_id = (n + 1) << 20;
        neighbours[n].is_relaxed = s->on.gpu != NULL || n % 2 == 1;
        if (pthread_create(&threads[n], NULL, live_beside, &neighbours[n]) != 0) {
            break;
        }
    }
    while (atomic_load(&s->n_open) < n && !atomic_load(&s->is_over)) {
        pass_time(); /* who opens a device loads kernels, which captures do not survive */
    }
    const char *why = n < s->request.n_threads ? "a thread cannot be made" : test_all(s);
    atomic_store(&s->is_over, true);
    for (uint64_t i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (uint64_t i = 0; i < n; i++) {
        NEED(neighbours[i].why[0] == '\0', "%s", neighbours[i].why);
    }
    TRY(why);
    for (uint64_t i = 0; i < n; i++) {
        TRY(program_clear(&neighbours[i].on));
    }
    return NULL;
}

static const char *judge(stage *s) {
    TRY(program_is_unspoilt(&s->on.painter));
    ductile_stats stats = fixture_stats(s->allocator);
    command_figure("neighbours_breaths", atomic_load(&s->n_steps));
    command_figure("recycled_handles", stats.recycled_handles);
    command_figure("compacted_handles", stats.compacted_handles);
    command_figure("releases", stats.releases);
    command_figure("reserved_peak_bytes", stats.reserved_peak_bytes);
    NEED(stats.live_blocks == 0, "blocks are live after all were freed");
    NEED(stats.quarantined_bytes == 0, "memory was lost");
    NEED(stats.recycled_handles > 0 && stats.compacted_handles > 0 && stats.releases > 0,
         "no handle was recycled, compacted or given back: nothing was tested");
    return program_is_sound(s->allocator);
}

static const char *open_all(stage *s) {
    ductile_virtual_options options =
        program_options((uint64_t)1 << 30, DUCTILE_SCHEDULE_LAGGING, 12, s->request.seed);
    TRY(program_open(&s->on, &options, 2));
    s->stream = s->on.streams[0];
    s->other = s->on.streams[1];
    s->unit = s->on.is_virtual ? (uint64_t)1 << 20 : (uint64_t)4 << 20;
    uint64_t usual = s->on.is_virtual ? (uint64_t)256 << 20 : (uint64_t)4 << 30;
    s->limit = s->request.limit != 0 ? s->request.limit : usual;
    program_print_head(&s->on, ", seed %llu, %llu threads, limit %llu",
                       (unsigned long long)s->request.seed,
                       (unsigned long long)s->request.n_threads, (unsigned long long)s->limit);
    return program_allocator(&s->on, s->limit, &s->allocator);
}

static const char *run(stage *s) {
    TRY(open_all(s));
    TRY(with_neighbours(s));
    TRY(judge(s));
    NEED_OK(ductile_destroy(s->allocator));
    return program_close(&s->on);
}

/* ---- The program --------------------------------------------------------------------------- */

static void read_request(stage *s, int argc, char **argv) {
    request *r = &s->request;
    const command_option options[] = {
        PROGRAM_OPTIONS(&s->on),
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
    static stage s;
    s.request = (request){.launches = 1000, .captures = 1000, .n_threads = 3, .seed = 30};
    read_request(&s, argc, argv);
    command_end_after(SECONDS_IN_ALL);
    return program_end(run(&s));
}
