/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does memory keep its contents while the allocator recycles and compacts under way? Blocks of all
 * sizes on several streams get patterns of their own right after they are allocated, which are
 * checked right before they are freed, and are written over once more in between, with work in
 * flight all the time. Live memory rises and dips, so that handles move. Some blocks are used by a
 * second stream. Afterwards allocators are made and destroyed, and the device's free memory has to
 * come back each time. What has to stay flat is measured at the end of each twentieth (flat.h).
 *
 *     pattern_churn [--virtual | --device N] [--soak] [--seconds N] [--cycles N] [--operations N]
 *                   [--streams N] [--limit BYTES] [--seed N] [--state FILE] [--no-control]
 *
 * --soak: meanwhile another program takes most of the device and gives it back (memory_balloon.h),
 * and after each cycle a graph is captured and launched, and a pool is put to sleep and woken.
 * --state: a piece of a longer run (pieces.h), which goes on with the next seed and the count where
 * the last piece ended; a file that is not there begins one with --seed.
 *
 * First, on CUDA, the control: in a child, memory is unmapped under kernels that read it. That has
 * to be seen (not with --no-control: a tool that watches would see the child's mistake). Prints one
 * figure a line. Ends with 1 when anything is wrong, also when no handle was recycled or compacted,
 * because then nothing was tested; 77 without a device; 3 when it ran out of time.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/cpu_time.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/flat.h"
#include "tests/support/memory_balloon.h"
#include "tests/support/pieces.h"
#include "tests/support/program_blocks.h"
#include "tests/support/program_graphs.h"
#include "tests/support/rng.h"

#include <stdio.h>

enum {
    STEPS_PER_CYCLE = 1500,
    CHECK_EVERY_CYCLES = 4,
    TRIM_EVERY_CYCLES = 9,
    SHARE_PERCENT = 15, /* blocks that a second stream uses too */
    BUSY_PERCENT = 10,
    ALLOCATOR_ROUNDS = 10,
    LAUNCHES = 3
};

#define MOST_BYTES ((uint64_t)8 << 30) /* of a block */

typedef struct request {
    bool is_soak;
    bool has_no_control;
    uint64_t seconds;
    uint64_t cycles;
    uint64_t operations; /* at least */
    uint64_t n_streams;
    uint64_t limit; /* 0: a fifth of the device */
    uint64_t seed;
    const char *state; /* NULL: a whole run */
} request;

typedef struct churn {
    request request;
    program_device p;
    memory_balloon *balloon; /* of a soak */
    ductile_allocator *allocator;
    dvmm_event events[PROGRAM_MOST_STREAMS]; /* recorded where the work of their stream is shared */
    uint64_t limit;
    rng rng;
    pieces behind;

    live_blocks live;
    uint64_t next_id;

    uint64_t allocs, frees, refusals, shared, cycles, checks;
    uint64_t graphs_launched, sleeps;
    uint64_t pattern_bytes;
} churn;

/* ---- One block ----------------------------------------------------------------------------- */

/* Every magnitude is as likely as the next. */
static uint64_t random_size(churn *c, uint64_t low, uint64_t high) {
    uint64_t magnitude = low;
    for (uint64_t steps = rng_below(&c->rng, 64); steps > 0 && magnitude < high; steps--) {
        magnitude *= 2;
    }
    uint64_t top = magnitude >= high ? high : magnitude;
    return (top / 2 + rng_below(&c->rng, top / 2 + 1) + low) / 4 * 4;
}

/* What a cycle allocates: sometimes small blocks, sometimes large ones, mostly both. */
static uint64_t size_of_cycle(churn *c) {
    uint64_t large = c->limit / 4 < MOST_BYTES ? c->limit / 4 : MOST_BYTES;
    uint64_t middle = c->limit / 512;
    unsigned percent_small = (unsigned)(c->cycles % 4) * 25;
    if (rng_percent(&c->rng, percent_small)) {
        return random_size(c, 512, 64 << 10);
    }
    return rng_percent(&c->rng, 70) ? random_size(c, 64 << 10, middle)
                                    : random_size(c, middle, large);
}

/* Refused for lack of memory is no error: *got says. */
static const char *ask(churn *c, ductile_stream stream, pattern_block *it, bool *got) {
    it->id = c->next_id++;
    TRY(program_ask(c->allocator, it, stream));
    *got = it->address != 0;
    c->refusals += !*got;
    return NULL;
}

/* A block on any stream. */
static const char *allocate(churn *c, uint64_t size, bool *got) {
    live_block b = {.block = {.size = size}};
    b.stream = (uint32_t)rng_below(&c->rng, c->request.n_streams);
    ductile_stream stream = c->p.streams[b.stream];
    TRY(ask(c, stream, &b.block, got));
    if (!*got) {
        return NULL;
    }
    program_announce(&c->p, &b.block, true);
    if (rng_percent(&c->rng, BUSY_PERCENT)) {
        TRY(pattern_keep_busy(&c->p.tester, stream, rng_between(&c->rng, 1000, 200000)));
    }
    TRY(pattern_write(&c->p.tester, &b.block, stream));
    live_blocks_add(&c->live, b);
    c->pattern_bytes += size;
    c->allocs++;
    return NULL;
}

/* A second stream, in order after the first, is the last to check and to write. */
static const char *share(churn *c, const live_block *b, ductile_stream *user) {
    uint64_t n = c->request.n_streams;
    uint32_t second = (uint32_t)((b->stream + 1 + rng_below(&c->rng, n - 1)) % n);
    *user = c->p.streams[second];
    NEED_OK(dvmm_event_record(c->p.driver, c->events[b->stream], c->p.streams[b->stream]));
    NEED_OK(dvmm_stream_wait_event(c->p.driver, *user, c->events[b->stream]));
    NEED_OK(ductile_record_stream(c->allocator, b->block.address, *user));
    c->shared++;
    return NULL;
}

static const char *release_at(churn *c, size_t index) {
    live_block b = live_blocks_remove(&c->live, index);
    ductile_stream user = c->p.streams[b.stream];
    if (c->request.n_streams > 1 && rng_percent(&c->rng, SHARE_PERCENT)) {
        TRY(share(c, &b, &user));
    }
    TRY(pattern_check(&c->p.tester, &b.block, user));
    TRY(pattern_overwrite(&c->p.tester, &b.block, user));
    c->frees++;
    return program_give(&c->p, c->allocator, &b.block);
}

static const char *release_any(churn *c) {
    return release_at(c, rng_below(&c->rng, c->live.n));
}

static const char *release_until(churn *c, uint64_t live_bytes) {
    while (c->live.n > 0 && c->live.live_bytes > live_bytes) {
        TRY(release_any(c));
    }
    return NULL;
}

/* ---- Cycles -------------------------------------------------------------------------------- */

/* Allocates or frees one block, towards the level. */
static const char *step(churn *c, uint64_t level) {
    uint64_t size = size_of_cycle(c);
    bool got = false;
    if (c->live.n == MOST_LIVE_BLOCKS || c->live.live_bytes + size > level) {
        return c->live.n > 0 ? release_any(c) : NULL;
    }
    TRY(allocate(c, size, &got));
    return got ? NULL : release_until(c, c->live.live_bytes - c->live.live_bytes / 8);
}

static const char *check_invariants(churn *c) {
    c->checks++;
    return program_is_sound(c->allocator);
}

/* Up to most of the limit, some turnover there, and down again: to a dip of a step's end, where
 * compaction begins, or nearly to nothing. */
static const char *run_cycle(churn *c) {
    uint64_t high = c->limit / 100 * rng_between(&c->rng, 70, 97);
    uint64_t low = c->limit / 100 * rng_between(&c->rng, 2, 22);
    for (int i = 0; i < STEPS_PER_CYCLE; i++) {
        TRY(step(c, high));
    }
    TRY(release_until(c, low));
    for (int i = 0; i < STEPS_PER_CYCLE / 8; i++) {
        TRY(step(c, low + low / 4));
    }
    c->cycles++;
    if (c->cycles % TRIM_EVERY_CYCLES == 0) {
        NEED_OK(ductile_trim(c->allocator, NULL, c->limit / 2, NULL));
    }
    return c->cycles % CHECK_EVERY_CYCLES == 0 ? check_invariants(c) : NULL;
}

/* ---- What else a soak does: it goes without where there is no memory ------------------------ */

static int is_first_stream(void *user, ductile_stream stream) {
    const churn *c = user;
    return stream == c->p.streams[0];
}

/* What is written first leaves its memory to the block that stays. */
static const char *captured_work(churn *c, pattern_block *stays, bool *got) {
    pattern_block passing = {.size = 4 * stays->size};
    TRY(ask(c, c->p.streams[0], &passing, got));
    if (!*got) {
        return NULL;
    }
    TRY(pattern_write(&c->p.tester, &passing, c->p.streams[0]));
    NEED_OK(ductile_free(c->allocator, passing.address));
    TRY(ask(c, c->p.streams[0], stays, got));
    return *got ? pattern_write(&c->p.tester, stays, c->p.streams[0]) : NULL;
}

static const char *capture(churn *c, ductile_pool_id pool, void **g, pattern_block *stays,
                           bool *got) {
    NEED_OK(ductile_pool_begin(c->allocator, pool, is_first_stream, c));
    NEED_OK(bench_capture_begin(c->p.driver, c->p.streams[0], DVMM_CAPTURE_GLOBAL));
    TRY(captured_work(c, stays, got));
    TRY(program_graph(&c->p, c->p.streams[0], g));
    NEED_OK(ductile_pool_end(c->allocator, pool));
    return NULL;
}

/* Each launch writes it again. */
static const char *launch(churn *c, void *g, const pattern_block *stays) {
    for (int i = 0; i < LAUNCHES; i++) {
        TRY(pattern_overwrite(&c->p.tester, stays, c->p.streams[0]));
        TRY(program_launch(&c->p, g, c->p.streams[0]));
        TRY(pattern_check(&c->p.tester, stays, c->p.streams[0]));
        c->graphs_launched++;
    }
    NEED_OK(dvmm_stream_sync(c->p.driver, c->p.streams[0]));
    NEED_OK(ductile_free(c->allocator, stays->address));
    return NULL;
}

static const char *use_a_graph(churn *c) {
    const ductile_pool_id pool = {1, c->cycles};
    pattern_block stays = {.size = c->limit / 4096 / 4 * 4};
    void *g = NULL;
    bool got = false;
    TRY(capture(c, pool, &g, &stays, &got));
    if (got) {
        TRY(launch(c, g, &stays));
    }
    TRY(program_drop_graph(&c->p, g));
    NEED_OK(ductile_pool_release(c->allocator, pool));
    return NULL;
}

/* What another program took meanwhile does not come back: then the pool stays asleep. */
static const char *sleep_and_wake(churn *c, ductile_pool_id pool, const pattern_block *it) {
    TRY(pattern_write(&c->p.tester, it, c->p.streams[0]));
    NEED_OK(ductile_sleep(c->allocator, pool, DUCTILE_CONTENTS_KEEP));
    ductile_status status = ductile_wake(c->allocator, pool);
    c->sleeps++;
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        c->refusals++;
        return NULL;
    }
    NEED_OK(status);
    return pattern_expect(&c->p.tester, it, c->p.streams[0]);
}

static const char *sleep_a_pool(churn *c) {
    const ductile_pool_id pool = {2, c->cycles};
    pattern_block it = {.size = c->limit / 1024 / 4 * 4};
    bool got = false;
    NEED_OK(ductile_pool_begin(c->allocator, pool, NULL, NULL));
    TRY(ask(c, c->p.streams[0], &it, &got));
    NEED_OK(ductile_pool_end(c->allocator, pool));
    if (got) {
        TRY(sleep_and_wake(c, pool, &it));
        NEED_OK(ductile_free(c->allocator, it.address));
    }
    NEED_OK(ductile_pool_release(c->allocator, pool));
    return NULL;
}

static const char *run_round(churn *c) {
    TRY(run_cycle(c));
    if (!c->request.is_soak) {
        return NULL;
    }
    NEED(!memory_balloon_is_broken(c->balloon), "the other program has failed");
    TRY(use_a_graph(c));
    return sleep_a_pool(c);
}

/* ---- Twenty parts --------------------------------------------------------------------------- */

static uint64_t operations_of(const churn *c) {
    return c->allocs + c->frees;
}

static bool is_over(const churn *c, double begin, unsigned part) {
    const request *r = &c->request;
    double share = (part + 1.0) / FLAT_PARTS;
    return (double)c->cycles >= (double)r->cycles * share ||
           (double)operations_of(c) >= (double)r->operations * share ||
           wall_seconds() - begin >= (double)r->seconds * share;
}

/* Handles count in granules: near the limit of the device they are small, and there are more. */
static const char *measure(churn *c, double cpu_seconds, uint64_t n, flat_sample *out) {
    ductile_stats s = fixture_stats(c->allocator);
    uint64_t granule = dvmm_get_caps(c->p.driver)->granule_bytes;
    *out = flat_measure(&s, cpu_seconds, n, s.mapped_bytes / granule);
    out->handles = s.reserved_bytes / granule;
    flat_print(out, c->behind.operations + operations_of(c));
    return NULL;
}

static const char *run_part(churn *c, double begin, unsigned part, flat_sample *out) {
    double cpu = cpu_seconds();
    uint64_t n = operations_of(c);
    do {
        TRY(run_round(c));
    } while (!is_over(c, begin, part));
    return measure(c, cpu_seconds() - cpu, operations_of(c) - n, out);
}

static const char *run_parts(churn *c) {
    flat_sample all[FLAT_PARTS];
    double begin = wall_seconds();
    for (unsigned part = 0; part < FLAT_PARTS; part++) {
        TRY(run_part(c, begin, part, &all[part]));
    }
    TRY(release_until(c, 0));
    TRY(check_invariants(c));
    return flat_judge(all);
}

/* ---- Reporting ----------------------------------------------------------------------------- */

static const char *judge(churn *c) {
    uint64_t mismatches = 0;
    TRY(pattern_mismatches(&c->p.tester, &mismatches));
    ductile_stats stats = fixture_stats(c->allocator);
    command_figure("cycles", c->cycles);
    command_figure("ops", c->allocs + c->frees);
    command_figure("pattern_bytes", c->pattern_bytes);
    command_figure("shared_blocks", c->shared);
    command_figure("refused_allocs", c->refusals);
    command_figure("reserved_peak_bytes", stats.reserved_peak_bytes);
    command_figure("recycled_handles", stats.recycled_handles);
    command_figure("compacted_handles", stats.compacted_handles);
    command_figure("creates", stats.creates);
    command_figure("stream_syncs", stats.stream_syncs);
    command_figure("quarantined_bytes", stats.quarantined_bytes);
    command_figure("checks_passed", c->checks);
    command_figure("graphs_launched", c->graphs_launched);
    command_figure("sleeps", c->sleeps);
    command_figure("mismatches", mismatches);
    TRY(pattern_all_hold(&c->p.tester));
    NEED(stats.reserved_peak_bytes <= c->limit, "the limit was not kept");
    NEED(stats.live_blocks == 0, "%llu blocks are live after all were freed",
         (unsigned long long)stats.live_blocks);
    NEED(stats.quarantined_bytes == 0, "memory was lost");
    NEED(!c->request.is_soak || (c->graphs_launched > 0 && c->sleeps > 0),
         "no graph was launched, or no pool slept");
    NEED(stats.recycled_handles > 0 && stats.compacted_handles > 0,
         "no handle was recycled, or none compacted: nothing was tested");
    return NULL;
}

/* ---- Allocators that come and go ----------------------------------------------------------- */

static const char *destroy_allocator(churn *c) {
    ductile_allocator *allocator = c->allocator;
    c->allocator = NULL;
    while (c->live.n > 0) {
        live_block b = live_blocks_remove(&c->live, c->live.n - 1);
        program_announce(&c->p, &b.block, false);
    }
    NEED_OK(ductile_destroy(allocator));
    return NULL;
}

/* Half of the blocks are live when their allocator goes. */
static const char *churn_and_destroy(churn *c) {
    TRY(program_allocator(&c->p, c->limit, &c->allocator));
    for (int i = 0; i < 200; i++) {
        bool got = false;
        TRY(allocate(c, size_of_cycle(c), &got));
        if (i % 2 == 0 && c->live.n > 0) {
            TRY(release_any(c));
        }
    }
    return destroy_allocator(c);
}

static const char *free_bytes_now(churn *c, uint64_t *out) {
    NEED_OK(dvmm_context_sync(c->p.driver));
    return program_free_bytes(c->p.driver, out);
}

/* What the first allocators leave behind is the driver's own tables; later ones may add nothing. */
static const char *run_rounds(churn *c, uint64_t before) {
    const uint64_t first_may_keep = 64 << 20;
    const uint64_t later_may_keep = 4 << 20;
    uint64_t first = 0;
    uint64_t now = 0;
    for (int i = 0; i < ALLOCATOR_ROUNDS; i++) {
        TRY(churn_and_destroy(c));
        TRY(free_bytes_now(c, &now));
        command_figure("free_after_destroy", now);
        first = i == 0 ? now : first;
        NEED(now + first_may_keep >= before, "round %d did not give its memory back", i);
        NEED(now + later_may_keep >= first, "free memory shrinks from round to round");
    }
    return NULL;
}

/* ---- Opening and closing ------------------------------------------------------------------- */

static const char *open_device(churn *c) {
    ductile_virtual_options options =
        program_options((uint64_t)8 << 30, DUCTILE_SCHEDULE_LAGGING, 40, c->request.seed);
    options.detect = 2; /* every work with a block is ordered here */
    return program_open(&c->p, &options, c->request.n_streams);
}

static const char *open_all(churn *c) {
    TRY(open_device(c));
    if (c->request.is_soak && c->p.is_virtual) {
        TRY(memory_balloon_start(&c->balloon, c->p.gpu, c->request.seed + 1));
    }
    for (uint64_t i = 0; i < c->request.n_streams; i++) {
        NEED_OK(dvmm_event_create(c->p.driver, &c->events[i]));
    }
    uint64_t usual = dvmm_get_caps(c->p.driver)->total_bytes / 5;
    c->limit = c->request.limit != 0 ? c->request.limit : usual;
    c->rng = rng_seeded(c->request.seed);
    c->next_id = 1;
    program_print_head(&c->p, ", seed %llu, %llu streams, limit %llu",
                       (unsigned long long)c->request.seed,
                       (unsigned long long)c->request.n_streams, (unsigned long long)c->limit);
    return NULL;
}

/* The other program has nothing of the device before and after. */
static const char *run_beside_balloon(churn *c) {
    if (c->balloon != NULL) {
        TRY(memory_balloon_hold(c->balloon));
        memory_balloon_go_on(c->balloon);
    }
    TRY(run_parts(c));
    command_figure("swings", c->balloon != NULL ? memory_balloon_swings(c->balloon) : 0);
    return memory_balloon_end(c->balloon);
}

static const char *run(churn *c) {
    uint64_t before = 0;
    TRY(open_all(c));
    TRY(free_bytes_now(c, &before));
    command_figure("free_before", before);
    TRY(program_allocator(&c->p, c->limit, &c->allocator));
    TRY(run_beside_balloon(c));
    TRY(judge(c));
    TRY(destroy_allocator(c));
    return run_rounds(c, before);
}

/* Only what is left of a good run; after a bad one the device may be lost. */
static const char *close_all(churn *c) {
    for (uint64_t i = 0; i < c->request.n_streams; i++) {
        NEED_OK(dvmm_event_destroy(c->p.driver, c->events[i]));
    }
    return program_close(&c->p);
}

/* ---- The control --------------------------------------------------------------------------- */

static churn the_churn; /* large */

enum { CONTROL_BYTES = 256 << 20, CONTROL_KERNELS = 300 };

static const char *unmap_under_kernels(bool *is_seen) {
    churn *c = &the_churn;
    pattern_block read = {.size = CONTROL_BYTES, .id = 1};
    TRY(open_device(c));
    TRY(program_map(c->p.driver, read.size, &read.address));
    TRY(pattern_write(&c->p.tester, &read, NULL));
    for (int i = 0; i < CONTROL_KERNELS; i++) {
        TRY(pattern_check(&c->p.tester, &read, NULL));
    }
    NEED_OK(dvmm_unmap(c->p.driver, read.address, read.size));
    *is_seen = dvmm_context_sync(c->p.driver) != DUCTILE_OK;
    return NULL;
}

/* ---- Pieces of a longer run ----------------------------------------------------------------- */

/* A state that cannot be written is told now, not when the piece is over. */
static const char *go_on(request *r, pieces *behind) {
    behind->seed = r->seed;
    if (r->state != NULL) {
        TRY(pieces_read(r->state, behind));
        TRY(pieces_write(r->state, behind));
        r->seed = behind->seed;
        (void)printf("# piece %llu, after %llu operations in %llu s\n",
                     (unsigned long long)behind->pieces + 1, (unsigned long long)behind->operations,
                     (unsigned long long)behind->seconds);
    }
    return NULL;
}

static const char *note_piece(const churn *c, double seconds) {
    pieces now = c->behind;
    now.pieces++;
    now.seed++;
    now.operations += operations_of(c);
    now.seconds += (uint64_t)(seconds + 0.5);
    return c->request.state != NULL ? pieces_write(c->request.state, &now) : NULL;
}

/* ---- The program --------------------------------------------------------------------------- */

static void read_request(churn *c, int argc, char **argv) {
    request *r = &c->request;
    const command_option options[] = {
        PROGRAM_OPTIONS(&c->p),
        {"--seconds", .number = &r->seconds},
        {"--cycles", .number = &r->cycles},
        {"--streams", .number = &r->n_streams},
        {"--limit", .number = &r->limit},
        {"--seed", .number = &r->seed},
        {"--operations", .number = &r->operations},
        {"--soak", .flag = &r->is_soak},
        {"--state", .text = &r->state, .placeholder = "FILE"},
        {"--no-control", .flag = &r->has_no_control},
    };
    command_read("pattern_churn", options, sizeof options / sizeof *options, argc, argv);
    if (r->n_streams < 1 || r->n_streams > PROGRAM_MOST_STREAMS) {
        command_refuse("there are 1 to 16 streams");
    }
    if (r->cycles == 0) {
        r->cycles = c->p.is_virtual ? 40 : UINT64_MAX;
    }
}

int main(int argc, char **argv) {
    churn *c = &the_churn;
    c->request = (request){.seconds = 60, .n_streams = 4, .seed = 20, .operations = UINT64_MAX};
    read_request(c, argc, argv);
    command_end_after(c->request.seconds * 2 + 120);
    double begin = wall_seconds();
    const char *why = go_on(&c->request, &c->behind);
    bool has_control = !c->p.is_virtual && !c->request.has_no_control;
    why = why == NULL && has_control ? program_control(unmap_under_kernels) : why;
    if (why == NULL && c->request.is_soak && !c->p.is_virtual) {
        why = memory_balloon_fork(&c->balloon, c->p.device, c->request.seed + 1);
    }
    why = why == NULL ? run(c) : why;
    why = why == NULL ? close_all(c) : why;
    return program_end(why == NULL ? note_piece(c, wall_seconds() - begin) : why);
}
