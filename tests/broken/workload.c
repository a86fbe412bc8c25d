/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that does all that a correct program may do with an allocator and its streams, on a
 * virtual GPU that detects misuse of memory: first the scenarios, then at random. tests/variants
 * links it with allocators that are broken on purpose, and with the one that is not.
 *
 *     workload [--schedule eager|lagging|lazy|random] [--seed N] [--steps N] [--conf OPTIONS]
 *              [--until KIND[,KIND]...] [--scenario NAME]
 *
 * Prints how often each kind of violation was seen and the first one; --until stops at the first of
 * its kind. --scenario plays one scenario and nothing else; --conf is for the random part. Exit
 * status: 0 without violations, 1 with some, 2 for wrong arguments or a run that could not go on.
 *
 * Three kinds of streams: those of the device, which any thread may name; and the per-thread
 * default streams of two threads, one handle for both, which only these threads can mean.
 * Everything runs on one thread at a time, so a run is a function of its arguments.
 */
#include "tests/broken/program.h"
#include "tests/broken/scenarios.h"

#include "pool/base/allocator.h"
#include "segments/unmap_handles.h"
#include "tests/support/command.h"
#include "vmm/base/check.h"
#include "vmm/marker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    uint64_t seed, steps;
    ductile_schedule schedule;
    const char *conf, *until;
    const char *scenario; /* NULL: all, and the random part */
} arguments;

static play the_play;

/* ---- Graphs -------------------------------------------------------------------------------- */

#define MAX_CONF 256
#define CAPTURED ((unsigned)N_OWN - 1) /* the slot whose stream is captured; it never ends */

static graph *find_graph(play *p, bool exists) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if ((p->graphs[i].graph != NULL) == exists) {
            return &p->graphs[i];
        }
    }
    return NULL;
}

static void give_captured(play *p, graph *g) {
    block b = g->blocks[--g->n_blocks];
    ductile_virtual_block_end(p->f.gpu, b.address);
    (void)ductile_free(p->f.allocator, b.address);
}

/* Blocks come and go while others, on threads of their own, allocate too. */
static void do_pool_work(play *p, graph *g, uint64_t scale) {
    uint64_t n = rng_between(&p->r, 4, 20);
    uint64_t typical = p->typical_size;
    p->typical_size = scale * FIXTURE_GRANULE;
    for (uint64_t i = 0; i < n; i++) {
        if (g->n_blocks > 0 && (g->n_blocks == N_CAPTURED || rng_percent(&p->r, 40))) {
            give_captured(p, g);
        } else if (get_block(p, CAPTURED, any_size(p), &g->blocks[g->n_blocks])) {
            g->n_blocks++;
        }
        if (rng_percent(&p->r, 30)) {
            make_on(p, any_threads_slot(p), any_size(p));
        }
    }
    p->typical_size = typical;
}

static void capture(play *p) {
    graph *g = find_graph(p, false);
    if (g == NULL) {
        return;
    }
    *g = (graph){.pool = {++p->n_captures, 0}};
    if (ductile_pool_begin(p->f.allocator, g->pool, NULL, NULL) != DUCTILE_OK) {
        return;
    }
    ductile_stream stream = stream_of(p, CAPTURED);
    bool keeps_nothing = rng_percent(&p->r, 50);
    ductile_capture_mode mode = (ductile_capture_mode)rng_below(&p->r, 3);
    do_pool_work(p, g, 1); /* as programs warm up */
    if (ductile_virtual_capture_begin(p->f.gpu, stream, mode) == DUCTILE_OK) {
        do_pool_work(p, g, 1);
        while (g->n_blocks > 0 && keeps_nothing) {
            give_captured(p, g);
        }
        ductile_status status = ductile_virtual_capture_end(p->f.gpu, stream, &g->graph);
        p->n_broken_captures += status != DUCTILE_OK;
    }
    do_pool_work(p, g, 4);
    while (g->n_blocks > 0 && keeps_nothing) {
        give_captured(p, g);
    }
    (void)!ductile_pool_end(p->f.allocator, g->pool);
    if (g->graph == NULL) {
        while (g->n_blocks > 0) {
            give_captured(p, g);
        }
        (void)!ductile_pool_release(p->f.allocator, g->pool);
    }
}

/* The capture's stream comes after the launch if blocks of it are freed there later. Without,
 * nobody but the pool's rules knows of the launch. */
static void launch_graph(play *p) {
    graph *g = &p->graphs[rng_below(&p->r, N_GRAPHS)];
    unsigned slot = (unsigned)rng_below(&p->r, N_OWN);
    if (g->graph != NULL && order_slots(p, CAPTURED, slot)) {
        (void)!ductile_virtual_graph_launch(g->graph, stream_of(p, slot));
        if (g->n_blocks > 0) {
            (void)order_slots(p, slot, CAPTURED);
        }
    }
}

static void end_graph(play *p) {
    graph *g = find_graph(p, true);
    if (g == NULL) {
        return;
    }
    ductile_virtual_graph_destroy(g->graph);
    while (g->n_blocks > 0) {
        give_captured(p, g);
    }
    (void)!ductile_pool_release(p->f.allocator, g->pool);
    g->graph = NULL;
}

/* ---- Between two steps of the allocator ---------------------------------------------------- */

/*
 * What another thread may do while one is between two calls of the driver. Calls between files of
 * the allocator come through here: after a marker was recorded, and after a wait of the host.
 * The interrupted thread may hold the grow lock, so only what never takes it is done: a use and a
 * free, and an allocation that the freed block serves.
 */
static bool is_in_no_pool(const play *p, const block *b) {
    ductile_block_info info = {.struct_size = sizeof info};
    return ductile_query_block(p->f.allocator, b->address, &info) == DUCTILE_OK &&
           info.pool.first == 0 && info.pool.second == 0;
}

static block *plain_block_of(play *p, ductile_stream stream) {
    size_t start = any_block(p);
    for (size_t i = 0; i < p->n_blocks; i++) {
        block *b = &p->blocks[(start + i) % p->n_blocks];
        bool is_plain = !b->is_recorded && !is_threads(b->slot) && b->slot != CAPTURED &&
                        !p->waits_for_join[b->slot];
        bool is_theirs = stream == NULL || stream_of(p, b->slot) == stream;
        if (is_plain && is_theirs && is_in_no_pool(p, b)) {
            return b;
        }
    }
    return NULL;
}

/* stream: whose memory; NULL: anybody's. */
static void interrupt(play *p, ductile_stream stream) {
    if (DUCTILE_CHECK >= 3 || p->is_interrupting || p->n_blocks == 0 || !rng_percent(&p->r, 50)) {
        return; /* where every call checks the whole heap, every call takes the grow lock */
    }
    if (!dti_lock_is_free(&p->f.allocator->grow_lock)) {
        return; /* this thread holds it, and an allocation may want it */
    }
    p->is_interrupting = true;
    block *b;
    for (int n = 0; n < 3 && p->n_blocks > 0 && (b = plain_block_of(p, stream)) != NULL; n++) {
        launch_use(p, b->slot, b, 1);
        ductile_virtual_block_end(p->f.gpu, b->address);
        (void)ductile_free(p->f.allocator, b->address);
        p->live_bytes -= b->size;
        unsigned slot = b->slot;
        *b = p->blocks[--p->n_blocks];
        make_on(p, slot, 512);
    }
    p->is_interrupting = false;
}

ductile_status __real_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record(dvmm_marker_pool *pool, ductile_stream stream,
                                         dvmm_marker **out) {
    ductile_status status = __real_dvmm_marker_record(pool, stream, out);
    interrupt(&the_play, stream);
    return status;
}

ductile_status __real_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out);
ductile_status __wrap_dvmm_marker_record_context(dvmm_marker_pool *pool, dvmm_marker **out) {
    ductile_status status = __real_dvmm_marker_record_context(pool, out);
    if (the_play.at_mark != NULL) {
        the_play.at_mark(&the_play);
    }
    interrupt(&the_play, NULL);
    return status;
}

ductile_status __real_dvmm_markers_wait_all(dvmm_marker_pool *pool);
ductile_status __wrap_dvmm_markers_wait_all(dvmm_marker_pool *pool);
ductile_status __wrap_dvmm_markers_wait_all(dvmm_marker_pool *pool) {
    ductile_status status = __real_dvmm_markers_wait_all(pool);
    interrupt(&the_play, NULL);
    return status;
}

ductile_status __real_dseg_sync(dvmm_handle_store *store, ductile_stream stream,
                                dseg_stream_idle *proof);
ductile_status __wrap_dseg_sync(dvmm_handle_store *store, ductile_stream stream,
                                dseg_stream_idle *proof);
ductile_status __wrap_dseg_sync(dvmm_handle_store *store, ductile_stream stream,
                                dseg_stream_idle *proof) {
    ductile_status status = __real_dseg_sync(store, stream, proof);
    interrupt(&the_play, stream);
    return status;
}

/* ---- Streams that end ---------------------------------------------------------------------- */

/* Its blocks are freed; those it was recorded for stay, and are freed by whoever comes. */
static void replace_stream(play *p) {
    unsigned slot = (unsigned)rng_below(&p->r, CAPTURED);
    p->is_interrupting = true; /* nobody allocates on a stream that ends */
    for (size_t i = p->n_blocks; i-- > 0;) {
        if (p->blocks[i].slot == slot) {
            free_at(p, i);
        }
    }
    for (unsigned i = 0; i < 3 && p->n_blocks > 0; i++) {
        share_with(p, &p->blocks[any_block(p)], slot);
    }
    request q = {.p = p, .slot = slot};
    do_done(&q);
    if (q.status != DUCTILE_OK) {
        sync_slot(p, slot);
    }
    (void)ductile_virtual_stream_destroy(p->f.gpu, p->f.streams[slot]);
    p->is_lost |= ductile_virtual_stream_create(p->f.gpu, &p->f.streams[slot]) != DUCTILE_OK;
    p->is_interrupting = false;
}

/* ---- Faults -------------------------------------------------------------------------------- */

/* One of the next calls of a kind fails, done or not; what the allocator made of it shows later. */
static void plan_fault(play *p) {
    static const char *const calls[] = {"event_record", "event_query", "event_sync", "stream_sync",
                                        "unmap",        "map",         "set_access", "phys_create"};
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = calls[rng_below(&p->r, rng_percent(&p->r, 5) ? 8 : 4)],
                                   .nth = rng_between(&p->r, 1, 3),
                                   .code = 1,
                                   .effect = rng_percent(&p->r, 50) ? 1 : 0};
    (void)!ductile_virtual_inject(p->f.gpu, &fault);
}

/* ---- The play ------------------------------------------------------------------------------ */

static void begin_phase(play *p) {
    static const unsigned percents[] = {15, 40, 70, 90, 110};
    p->target_bytes = CAPACITY / 100 * percents[rng_below(&p->r, 5)];
    p->busiest = any_slot(p);
    p->typical_size = (uint64_t)64 << (10 + rng_below(&p->r, 7));
    (void)!ductile_virtual_inject(p->f.gpu, NULL);
}

static void make_or_free(play *p) {
    bool grows = p->n_blocks == 0 || rng_percent(&p->r, p->live_bytes < p->target_bytes ? 75 : 25);
    if (grows) {
        make_block(p);
    } else {
        free_at(p, any_block(p));
    }
}

static void give_back(play *p) {
    uint64_t keep = rng_percent(&p->r, 30) ? 0 : rng_below(&p->r, CAPACITY);
    (void)!ductile_trim(p->f.allocator, keep, NULL);
}

static void step(play *p) {
    uint64_t dice = rng_below(&p->r, 1000);
    if (dice < 700) {
        make_or_free(p);
    } else if (dice < 780 && p->n_blocks > 0) {
        share_block(p, any_block(p));
    } else if (dice < 820 && p->n_blocks > 0 && p->n_blocks < N_BLOCKS_MAX) {
        share_and_join(p, any_block(p));
    } else if (dice < 870) {
        ductile_virtual_advance(p->f.gpu, rng_between(&p->r, 1, 30));
    } else if (dice < 900) {
        sync_slot(p, any_slot(p));
    } else if (dice < 920) {
        (void)order_slots(p, any_slot(p), any_slot(p));
    } else if (dice < 930) {
        give_back(p);
    } else if (dice < 955) {
        plan_fault(p);
    } else if (dice < 963) {
        replace_stream(p);
    } else if (dice < 968) {
        capture(p);
    } else if (dice < 984) {
        launch_graph(p);
    } else if (dice < 988) {
        end_graph(p);
    }
}

static const char *kind_name(int kind) {
    return kind == BROKEN_CAPTURE ? "broken-capture"
                                  : ductile_virtual_violation_name((ductile_violation)kind);
}

static uint64_t count_of(const play *p, int kind) {
    return kind == BROKEN_CAPTURE
               ? p->n_broken_captures
               : ductile_virtual_violations_of(p->f.gpu, (ductile_violation)kind);
}

static bool is_over(const play *p) {
    for (int kind = 0; kind < N_KINDS; kind++) {
        if (p->ends_at[kind] && count_of(p, kind) > 0) {
            return true;
        }
    }
    return p->is_lost;
}

static void end(play *p) {
    (void)!ductile_virtual_inject(p->f.gpu, NULL);
    for (size_t i = 0; i < N_GRAPHS; i++) {
        end_graph(p);
    }
    while (p->n_blocks > N_BLOCKS_MAX / 8) {
        free_at(p, p->n_blocks - 1);
    }
    for (; p->n_blocks > 0; p->n_blocks--) { /* live ones end with the allocator */
        launch_use(p, p->blocks[p->n_blocks - 1].slot, &p->blocks[p->n_blocks - 1], 1);
        ductile_virtual_block_end(p->f.gpu, p->blocks[p->n_blocks - 1].address);
    }
    (void)ductile_destroy(p->f.allocator);
}

/* Says what the device saw; where: NULL, or the scenario. */
static void report(const play *p, const char *where) {
    for (int kind = 0; kind < N_KINDS; kind++) {
        uint64_t n = count_of(p, kind);
        if (n > 0) {
            (void)printf("%s=%llu ", kind_name(kind), (unsigned long long)n);
        }
    }
    ductile_virtual_violation first = {.struct_size = sizeof first};
    (void)!ductile_virtual_get_violation(p->f.gpu, 0, &first);
    (void)printf("%s%s%s\n", where != NULL ? where : "", where != NULL ? ": " : "", first.text);
}

void give_up(const play *p, const char *what) {
    (void)printf("a step of the scenario cannot be made: %s; ", what);
    report(p, NULL);
    (void)fflush(stdout);
    _Exit(2);
}

/* A broken allocator need not come to a good end: nothing is closed. */
static void stop_if_over(const play *p, const char *where) {
    if (is_over(p)) {
        report(p, where);
        (void)fflush(stdout);
        _Exit(1);
    }
}

/* Ends the device; true when it saw a violation. */
static bool judge(play *p, const char *where) {
    stop_if_over(p, where);
    bool is_broken = fixture_state(&p->f).violations > 0 || p->n_broken_captures > 0;
    if (is_broken) {
        report(p, where);
    }
    fixture_abandon(&p->f);
    return is_broken;
}

/* With handles of one granule: more of them move, and scenarios count granules. */
static bool open_device(play *p, const fixture_setup *setup) {
    char conf[MAX_CONF];
    fixture_setup own = *setup;
    (void)snprintf(conf, sizeof conf, "sizes:tight,%s", setup->conf != NULL ? setup->conf : "");
    own.conf = conf;
    const char *why = fixture_open(&p->f, &own);
    if (why != NULL) {
        (void)fprintf(stderr, "workload: %s\n", why);
    }
    return why == NULL;
}

static bool play_scenario(play *p, const scenario *s, const fixture_setup *setup) {
    fixture_setup own = *setup;
    own.conf = s->conf;
    if (!open_device(p, &own)) {
        exit(2);
    }
    p->is_interrupting = true; /* nobody comes between */
    p->schedule = setup->schedule;
    p->n_broken_captures = 0;
    s->play(p);
    stop_if_over(p, s->name);
    (void)ductile_destroy(p->f.allocator);
    p->is_interrupting = false;
    return judge(p, s->name);
}

static bool play_scenarios(play *p, const arguments *a, const fixture_setup *setup) {
    bool is_broken = false;
    bool is_known = a->scenario == NULL;
    const scenario *s;
    for (size_t i = 0; (s = scenario_at(i)) != NULL; i++) {
        if (a->scenario == NULL || strcmp(a->scenario, s->name) == 0) {
            is_known = true;
            is_broken |= play_scenario(p, s, setup);
        }
    }
    if (!is_known) {
        command_refuse("no scenario has that name");
    }
    return is_broken;
}

static bool play_at_random(play *p, const arguments *a, const fixture_setup *setup) {
    p->schedule = setup->schedule;
    p->n_broken_captures = 0;
    if (!open_device(p, setup)) {
        exit(2);
    }
    p->r = rng_seeded(a->seed);
    for (uint64_t i = 0; i < a->steps && !is_over(p); i++) {
        if (i % PHASE_STEPS == 0) {
            begin_phase(p);
        }
        step(p);
    }
    stop_if_over(p, NULL);
    end(p);
    return judge(p, NULL);
}

static int run(play *p, const arguments *a, const fixture_setup *setup) {
    p->schedule = setup->schedule;
    p->lag = setup->lag;
    for (unsigned i = 0; i < N_THREADS; i++) {
        start_worker(&p->workers[i]);
    }
    bool is_broken = play_scenarios(p, a, setup);
    if (a->scenario == NULL) {
        is_broken |= play_at_random(p, a, setup);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        stop_worker(&p->workers[i]);
    }
    if (!is_broken) {
        (void)puts("none");
    }
    return is_broken ? 1 : 0;
}

/* ---- Arguments ----------------------------------------------------------------------------- */

static int kind_named(const char *name) {
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(name, kind_name(i)) == 0) {
            return i;
        }
    }
    command_refuse("no kind of violation has that name");
}

static void end_at(play *p, const char *kinds) {
    char text[256];
    (void)snprintf(text, sizeof text, "%s", kinds);
    for (char *kind = strtok(text, ","); kind != NULL; kind = strtok(NULL, ",")) {
        p->ends_at[kind_named(kind)] = true;
    }
}

static void read_arguments(arguments *a, int argc, char **argv) {
    const command_option options[] = {
        {"--schedule", .schedule = &a->schedule},
        {"--seed", .number = &a->seed},
        {"--steps", .number = &a->steps},
        {"--conf", .text = &a->conf, .placeholder = "OPTIONS"},
        {"--until", .text = &a->until, .placeholder = "KIND[,KIND]..."},
        {"--scenario", .text = &a->scenario, .placeholder = "NAME"},
    };
    command_read("workload", options, sizeof options / sizeof *options, argc, argv);
}

int main(int argc, char **argv) {
    arguments a = {.seed = 1, .steps = 60000, .schedule = DUCTILE_SCHEDULE_RANDOM, .until = ""};
    read_arguments(&a, argc, argv);
    fixture_setup setup = {.capacity_bytes = CAPACITY,
                           .schedule = a.schedule,
                           .lag = 150,
                           .seed = a.seed,
                           .n_streams = N_OWN,
                           .n_devices = 2,
                           .conf = a.conf};
    play *p = &the_play;
    end_at(p, a.until);
    return run(p, &a, &setup);
}
