/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do captured graphs and everybody else leave each other alone? While threads allocate, free,
 * recycle, compact and trim beside it, one thread
 *
 *   - captures work on blocks of a private pool, of which some are freed and their memory used
 *     again inside the capture, and launches the graph many times: every launch must give the bits
 *     that the first one gave, and no pattern of the graph or of the others may be damaged;
 *   - captures many times in each of the three modes: no capture may be invalidated.
 *
 *     graph_rounds [--device N] [--launches N] [--captures N] [--threads N]
 *
 * The others are in the capture mode that threads have by default; besides the allocator's calls
 * they make none but launches, which no capture minds. Ends with 1 when anything is wrong, also
 * when nothing was recycled, compacted or trimmed, because then nothing was tested; 77 without a
 * device.
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/graphs.h"
#include "tests/support/painter.h"
#include "tests/support/rng.h"
#include "vmm/cuda/open.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_THREADS = 8,
    MOST_BLOCKS = 96, /* live at one time, of one thread */
    N_TEMPORARIES = 12,
    RESULT_BYTES = 256 << 10 /* of each temporary that is part of the result */
};

#define LIMIT_BYTES ((uint64_t)6 << 30)

typedef struct request {
    int device;
    uint64_t launches;
    uint64_t captures;
    uint64_t threads;
} request;

struct rig;

typedef struct neighbour {
    struct rig *rig;
    pthread_t thread;
    uint64_t seed;
    painter painter;
    ductile_stream stream;
    canvas blocks[MOST_BLOCKS];
    size_t n_blocks;
    uint64_t ops, trims;
    char why[256]; /* empty: all was well */
} neighbour;

typedef struct rig {
    request request;
    dvmm_driver *driver;
    ductile_allocator *a;
    graphs graphs;
    painter painter;
    ductile_stream stream;
    ductile_addr result;
    neighbour neighbours[MOST_THREADS];
    atomic_bool over;
} rig;

/* ---- The others ---------------------------------------------------------------------------- */

static const char *let_go(neighbour *n, size_t at) {
    canvas c = n->blocks[at];
    n->blocks[at] = n->blocks[--n->n_blocks];
    TRY(look(&n->painter, &c, n->stream));
    NEED_OK(ductile_free(n->rig->a, c.address));
    return NULL;
}

static const char *take(neighbour *n, rng *r) {
    uint64_t size = ((uint64_t)512 << rng_below(r, 18)) + rng_below(r, 4096) * 4;
    canvas c = {.size = size, .id = n->seed << 32 | n->ops};
    ductile_status status = ductile_alloc(n->rig->a, size, n->stream, &c.address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        return n->n_blocks > 0 ? let_go(n, rng_below(r, n->n_blocks)) : NULL;
    }
    NEED_OK(status);
    n->blocks[n->n_blocks++] = c;
    return paint(&n->painter, &c, n->stream);
}

/* Live memory rises and dips, so that gaps come and are compacted. */
static const char *step(neighbour *n, rng *r) {
    bool rises = n->ops / 400 % 2 == 0;
    n->ops++;
    if (n->ops % 300 == 0) {
        n->trims++;
        NEED_OK(ductile_trim(n->rig->a, LIMIT_BYTES / 2, NULL));
    }
    bool full = n->n_blocks == MOST_BLOCKS;
    if (!full && (n->n_blocks == 0 || rng_percent(r, rises ? 70 : 30))) {
        return take(n, r);
    }
    return let_go(n, rng_below(r, n->n_blocks));
}

static const char *churn(neighbour *n) {
    rng r = rng_seeded(n->seed);
    while (!atomic_load(&n->rig->over)) {
        TRY(step(n, &r));
    }
    while (n->n_blocks > 0) {
        TRY(let_go(n, 0));
    }
    return NULL;
}

static void *live(void *argument) {
    neighbour *n = argument;
    const char *why = churn(n);
    if (why != NULL) {
        (void)snprintf(n->why, sizeof n->why, "%s", why);
    }
    return NULL;
}

static const char *move_in(rig *t) {
    atomic_store(&t->over, false);
    for (uint64_t i = 0; i < t->request.threads; i++) {
        neighbour *n = &t->neighbours[i];
        NEED(pthread_create(&n->thread, NULL, live, n) == 0, "no thread");
    }
    return NULL;
}

static const char *move_out(rig *t) {
    atomic_store(&t->over, true);
    const char *why = NULL;
    for (uint64_t i = 0; i < t->request.threads; i++) {
        neighbour *n = &t->neighbours[i];
        (void)pthread_join(n->thread, NULL);
        why = n->why[0] != '\0' ? n->why : why;
    }
    return why;
}

/* ---- One graph, launched many times -------------------------------------------------------- */

static int is_ours(void *user, ductile_stream stream) {
    const rig *t = user;
    return stream == t->stream;
}

static const char *temporary(rig *t, uint64_t i, canvas *c) {
    *c = (canvas){.size = ((uint64_t)1 << 20) + i % 5 * ((uint64_t)3 << 20), .id = 1000 + i};
    NEED_OK(ductile_alloc(t->a, c->size, t->stream, &c->address));
    return paint(&t->painter, c, t->stream);
}

/* Every second temporary is freed before the next is made, so that its memory serves again. */
static const char *captured_work(rig *t, canvas *kept, size_t *n_kept) {
    *n_kept = 0;
    for (uint64_t i = 0; i < N_TEMPORARIES; i++) {
        canvas c;
        TRY(temporary(t, i, &c));
        NEED_OK(
            dvmm_copy(t->driver, t->result + i * RESULT_BYTES, c.address, RESULT_BYTES, t->stream));
        TRY(look(&t->painter, &c, t->stream));
        if (i % 2 == 0) {
            NEED_OK(ductile_free(t->a, c.address));
        } else {
            kept[(*n_kept)++] = c;
        }
    }
    for (size_t i = 0; i < *n_kept; i++) {
        TRY(look(&t->painter, &kept[i], t->stream));
    }
    return NULL;
}

static const char *capture_graph(rig *t, ductile_pool_id pool, graph *g, canvas *kept,
                                 size_t *n_kept) {
    NEED_OK(ductile_pool_begin(t->a, pool, is_ours, t));
    TRY(graph_begin(&t->graphs, t->stream, DVMM_CAPTURE_GLOBAL));
    TRY(captured_work(t, kept, n_kept));
    TRY(graph_end(&t->graphs, t->stream, g));
    NEED_OK(ductile_pool_end(t->a, pool));
    return NULL;
}

static const char *launch_once(rig *t, const graph *g, uint8_t *bytes) {
    const uint64_t size = (uint64_t)N_TEMPORARIES * RESULT_BYTES;
    NEED_OK(dvmm_fill(t->driver, t->result, 0xEE, size, t->stream));
    TRY(graph_launch(&t->graphs, g, t->stream));
    NEED_OK(dvmm_read_back(t->driver, bytes, t->result, size, t->stream));
    return NULL;
}

static const char *compare_launches(rig *t, const graph *g, uint8_t *first, uint8_t *now) {
    const size_t size = (size_t)N_TEMPORARIES * RESULT_BYTES;
    TRY(launch_once(t, g, first));
    for (uint64_t i = 1; i < t->request.launches; i++) {
        TRY(launch_once(t, g, now));
        NEED(memcmp(first, now, size) == 0, "launch %llu gave other bits",
             (unsigned long long)i + 1);
    }
    return NULL;
}

static const char *launch_often(rig *t, const graph *g) {
    const size_t size = (size_t)N_TEMPORARIES * RESULT_BYTES;
    uint8_t *bytes = malloc(2 * size);
    NEED(bytes != NULL, "out of memory");
    const char *why = compare_launches(t, g, bytes, bytes + size);
    free(bytes);
    return why;
}

static const char *live_with_a_graph(rig *t) {
    const ductile_pool_id pool = {1, 0};
    graph g = {NULL};
    canvas kept[N_TEMPORARIES];
    size_t n_kept = 0;
    TRY(capture_graph(t, pool, &g, kept, &n_kept));
    TRY(launch_often(t, &g));
    TRY(graph_destroy(&t->graphs, &g));
    for (size_t i = 0; i < n_kept; i++) {
        NEED_OK(ductile_free(t->a, kept[i].address));
    }
    NEED_OK(ductile_pool_release(t->a, pool));
    (void)printf("launches %llu\n", (unsigned long long)t->request.launches);
    return NULL;
}

/* ---- Many captures ------------------------------------------------------------------------- */

static const char *capture_once(rig *t, dvmm_capture_mode mode) {
    const ductile_pool_id pool = {2, 0};
    canvas c[3];
    NEED_OK(ductile_pool_begin(t->a, pool, is_ours, t));
    NEED_OK(dvmm_capture_begin(t->driver, t->stream, mode));
    for (uint64_t i = 0; i < 3; i++) {
        TRY(temporary(t, i, &c[i]));
    }
    NEED_OK(ductile_free(t->a, c[1].address));
    NEED_OK(dvmm_capture_end(t->driver, t->stream)); /* fails when it was invalidated */
    NEED_OK(ductile_pool_end(t->a, pool));
    NEED_OK(ductile_free(t->a, c[0].address));
    NEED_OK(ductile_free(t->a, c[2].address));
    NEED_OK(ductile_pool_release(t->a, pool));
    return NULL;
}

static const char *capture_often(rig *t) {
    static const dvmm_capture_mode modes[] = {DVMM_CAPTURE_GLOBAL, DVMM_CAPTURE_THREAD_LOCAL,
                                              DVMM_CAPTURE_RELAXED};
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        for (uint64_t i = 0; i < t->request.captures; i++) {
            const char *why = capture_once(t, modes[m]);
            NEED(why == NULL, "mode %d, capture %llu: %s", (int)modes[m], (unsigned long long)i,
                 why);
        }
        (void)printf("captures in mode %d: %llu, none invalidated\n", (int)modes[m],
                     (unsigned long long)t->request.captures);
    }
    return NULL;
}

/* ---- All of it ----------------------------------------------------------------------------- */

static const char *open_rig(rig *t) {
    ductile_options options;
    ductile_options_init(&options);
    options.device = t->request.device;
    options.limit_bytes = LIMIT_BYTES;
    NEED_OK(ductile_create(&t->a, &options));
    TRY(painter_open(&t->painter, t->driver, t->request.device));
    t->graphs = (graphs){.gpu = t->painter.gpu, .driver = t->driver};
    NEED_OK(dvmm_stream_create(t->driver, &t->stream));
    canvas result = {.size = (uint64_t)N_TEMPORARIES * RESULT_BYTES, .id = 1};
    NEED_OK(ductile_alloc(t->a, result.size, t->stream, &result.address));
    t->result = result.address;
    TRY(paint(&t->painter, &result, t->stream)); /* kernels are loaded before a capture begins */
    TRY(look(&t->painter, &result, t->stream));
    for (uint64_t i = 0; i < t->request.threads; i++) {
        neighbour *n = &t->neighbours[i];
        n->rig = t;
        n->seed = i + 1;
        TRY(painter_open(&n->painter, t->driver, t->request.device));
        NEED_OK(dvmm_stream_create(t->driver, &n->stream));
    }
    return NULL;
}

static const char *judge(rig *t) {
    uint64_t mismatches = 0;
    uint64_t ops = 0;
    uint64_t trims = 0;
    TRY(painter_mismatches(&t->painter, &mismatches));
    for (uint64_t i = 0; i < t->request.threads; i++) {
        uint64_t of_one = 0;
        TRY(painter_mismatches(&t->neighbours[i].painter, &of_one));
        mismatches += of_one;
        ops += t->neighbours[i].ops;
        trims += t->neighbours[i].trims;
    }
    ductile_stats stats = {.struct_size = sizeof stats};
    NEED_OK(ductile_get_stats(t->a, &stats));
    (void)printf("ops of others %llu\ntrims %llu\nrecycled_handles %llu\ncompacted_handles %llu\n"
                 "mismatches %llu\n",
                 (unsigned long long)ops, (unsigned long long)trims,
                 (unsigned long long)stats.recycled_handles,
                 (unsigned long long)stats.compacted_handles, (unsigned long long)mismatches);
    NEED(mismatches == 0, "%llu words did not keep their pattern", (unsigned long long)mismatches);
    NEED(stats.recycled_handles > 0 && stats.compacted_handles > 0 && trims > 0,
         "nothing was recycled, compacted or trimmed: nothing was tested");
    return NULL;
}

static const char *close_rig(rig *t) {
    char report[256] = "";
    NEED(ductile_check(t->a, report, sizeof report) == DUCTILE_OK, "%s", report);
    NEED_OK(ductile_free(t->a, t->result));
    for (uint64_t i = 0; i < t->request.threads; i++) {
        painter_close(&t->neighbours[i].painter);
        NEED_OK(dvmm_stream_destroy(t->driver, t->neighbours[i].stream));
    }
    painter_close(&t->painter);
    NEED_OK(ductile_destroy(t->a));
    NEED_OK(dvmm_stream_destroy(t->driver, t->stream));
    dvmm_close(t->driver);
    return NULL;
}

static const char *run(rig *t) {
    TRY(open_rig(t));
    TRY(move_in(t));
    const char *why = live_with_a_graph(t);
    why = why == NULL ? capture_often(t) : why;
    char kept[256] = ""; /* joining complains, too */
    (void)snprintf(kept, sizeof kept, "%s", why == NULL ? "" : why);
    const char *others = move_out(t);
    NEED(kept[0] == '\0', "%s", kept);
    NEED(others == NULL, "another thread: %s", others);
    TRY(judge(t));
    return close_rig(t);
}

static void read_request(request *r, int argc, char **argv) {
    const command_option options[] = {
        {"--device", .device = &r->device},
        {"--launches", .number = &r->launches},
        {"--captures", .number = &r->captures},
        {"--threads", .number = &r->threads},
    };
    command_read("graph_rounds", options, sizeof options / sizeof *options, argc, argv);
    if (r->threads < 1 || r->threads > MOST_THREADS || r->launches < 2) {
        command_refuse("there are 1 to 8 threads, and at least two launches");
    }
}

int main(int argc, char **argv) {
    static rig t = {.request = {.launches = 1000, .captures = 1000, .threads = 3}};
    char reason[512] = "";
    read_request(&t.request, argc, argv);
    if (dvmm_open_cuda(t.request.device, &t.driver, reason, sizeof reason) != DUCTILE_OK) {
        command_skip(reason);
    }
    const char *why = run(&t);
    if (why == NULL) {
        (void)printf("passed\n");
    }
    return command_end(why);
}
