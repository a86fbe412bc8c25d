/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can two programs share a device when one of them is a balloon (memory_balloon.h)? A second
 * process takes between 10 % and 95 % of the device and gives it back, at random; the first works:
 * it allocates and frees on two streams, writes a pattern to every block and checks it before it
 * frees it, and trims now and then. Memory may be refused only when there is none: then the balloon
 * is held, the device is asked what it has free, and the request is made once more.
 *
 *     balloon [--virtual | --device N] [--seconds N] [--seed N]
 *
 * On the virtual GPU, which lives in one process, the balloon is a thread with a driver of its own.
 *
 * Prints one figure a line. Ends with 1 when anything is wrong, also when memory was never short or
 * the two never changed places, because then nothing was tested; 77 without a device; 3 when it
 * hangs.
 */
#include "tests/support/fixture_virtual.h"
#include "tests/support/memory_balloon.h"
#include "tests/support/program_blocks.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_STREAMS = 2, MOST_BLOCKS = 2048, SHARE_PERCENT = 15, STEPS_AT_A_TIME = 64 };

typedef struct worker {
    program_device on;
    uint64_t seconds;
    uint64_t seed;
    memory_balloon *balloon;
    ductile_allocator *allocator;
    uint64_t granule;
    uint64_t total_bytes;
    rng rng;
    live_blocks live;
    uint64_t next_id;
    uint64_t allocs, refusals, overtaken, trims;
    uint64_t least_live, most_live;
} worker;

/* ---- The one that works -------------------------------------------------------------------- */

/* What the driver keeps for itself on hardware. */
static uint64_t slack_bytes(const worker *w) {
    return w->on.gpu != NULL ? w->granule : 256 * DTI_MIB;
}

static int by_address(const void *a, const void *b) {
    ductile_addr x = ((const live_block *)a)->block.address;
    ductile_addr y = ((const live_block *)b)->block.address;
    return (x > y) - (x < y);
}

/* Granules that hold a byte of a live block. */
static uint64_t touched_granules(worker *w) {
    uint64_t n = 0;
    uint64_t next = 0; /* the first granule that is not counted yet */
    qsort(w->live.all, w->live.n, sizeof *w->live.all, by_address);
    for (size_t i = 0; i < w->live.n; i++) {
        const pattern_block *c = &w->live.all[i].block;
        uint64_t first = c->address / w->granule;
        uint64_t last = (c->address + c->size - 1) / w->granule;
        first = first < next ? next : first;
        n += last >= first ? last - first + 1 : 0;
        next = last + 1 > next ? last + 1 : next;
    }
    return n;
}

static const char *wait_for_streams(const worker *w) {
    for (int i = 0; i < N_STREAMS; i++) {
        NEED_OK(dvmm_stream_sync(w->on.driver, w->on.streams[i]));
    }
    return NULL;
}

/* All work is done and no process takes anything: what was refused twice must not be there. */
static const char *check_refusal(worker *w, uint64_t size) {
    uint64_t free_bytes = 0;
    TRY(program_free_bytes(w->on.driver, &free_bytes));
    uint64_t reserved = fixture_stats(w->allocator).reserved_bytes;
    uint64_t touched = touched_granules(w) * w->granule;
    uint64_t unused = reserved > touched ? reserved - touched : 0;
    uint64_t needed = dti_round_up(size, w->granule) + slack_bytes(w);
    NEED(free_bytes + unused < needed,
         "%llu bytes refused with %llu free on the device and %llu unused in the allocator",
         (unsigned long long)size, (unsigned long long)free_bytes, (unsigned long long)unused);
    return NULL;
}

static const char *retry(worker *w, pattern_block *c, ductile_stream stream) {
    TRY(wait_for_streams(w));
    TRY(memory_balloon_hold(w->balloon));
    TRY(program_ask(w->allocator, c, stream));
    bool is_refused = c->address == 0;
    w->refusals += is_refused;
    w->overtaken += !is_refused;
    const char *why = is_refused ? check_refusal(w, c->size) : NULL;
    memory_balloon_go_on(w->balloon);
    return why;
}

static uint64_t random_size(worker *w) {
    uint64_t top = rng_percent(&w->rng, 30) ? w->total_bytes / 24 : w->total_bytes / 400;
    return rng_between(&w->rng, 512, top) / 4 * 4;
}

static const char *allocate(worker *w) {
    live_block b = {.block = {.size = random_size(w), .id = w->next_id++}};
    b.stream = (uint32_t)rng_below(&w->rng, N_STREAMS);
    ductile_stream stream = w->on.streams[b.stream];
    TRY(program_ask(w->allocator, &b.block, stream));
    TRY(b.block.address == 0 ? retry(w, &b.block, stream) : NULL);
    if (b.block.address == 0) {
        return NULL;
    }
    w->allocs++;
    live_blocks_add(&w->live, b);
    return pattern_write(&w->on.tester, &b.block, stream);
}

/* Some blocks are checked by the other stream, which is recorded. */
static const char *release(worker *w, size_t index) {
    live_block b = live_blocks_remove(&w->live, index);
    ductile_stream own = w->on.streams[b.stream];
    ductile_stream other = w->on.streams[(b.stream + 1) % N_STREAMS];
    TRY(pattern_check(&w->on.tester, &b.block, own));
    if (rng_percent(&w->rng, SHARE_PERCENT)) {
        NEED_OK(dvmm_stream_sync(w->on.driver, own));
        TRY(pattern_check(&w->on.tester, &b.block, other));
        NEED_OK(ductile_record_stream(w->allocator, b.block.address, other));
    } else {
        TRY(pattern_overwrite(&w->on.tester, &b.block, own));
    }
    NEED_OK(ductile_free(w->allocator, b.block.address));
    return NULL;
}

/* Live memory swings between little and more than there may be. */
static const char *work_for_a_while(worker *w) {
    uint64_t wanted = w->total_bytes / 100 * rng_between(&w->rng, 1, 80);
    for (int i = 0; i < STEPS_AT_A_TIME; i++) {
        bool grows = w->live.live_bytes < wanted && w->live.n < MOST_BLOCKS;
        if (w->live.n == 0 || (grows && rng_percent(&w->rng, 75))) {
            TRY(allocate(w));
        } else {
            TRY(release(w, (size_t)rng_below(&w->rng, w->live.n)));
        }
        if (w->on.gpu != NULL) {
            ductile_virtual_advance(w->on.gpu, 1);
        }
    }
    w->least_live = w->live.live_bytes < w->least_live ? w->live.live_bytes : w->least_live;
    w->most_live = w->live.live_bytes > w->most_live ? w->live.live_bytes : w->most_live;
    return NULL;
}

static const char *trim_sometimes(worker *w) {
    if (!rng_percent(&w->rng, 20)) {
        return NULL;
    }
    w->trims++;
    NEED_OK(ductile_trim(w->allocator, NULL, 0, NULL));
    return NULL;
}

static const char *work(worker *w) {
    time_t end = time(NULL) + (time_t)w->seconds;
    w->least_live = UINT64_MAX;
    while (time(NULL) < end) {
        TRY(work_for_a_while(w));
        TRY(trim_sometimes(w));
        TRY(pattern_all_hold(&w->on.tester));
        NEED(!memory_balloon_is_broken(w->balloon), "the other program has failed");
    }
    while (w->live.n > 0) {
        TRY(release(w, w->live.n - 1));
    }
    return program_is_sound(w->allocator);
}

/* ---- The two together ---------------------------------------------------------------------- */

static void report(const worker *w) {
    printf("seconds %llu\nallocations %llu\nrefusals %llu\novertaken %llu\ntrims %llu\n"
           "swings %llu\nleast live bytes %llu\nmost live bytes %llu\n",
           (unsigned long long)w->seconds, (unsigned long long)w->allocs,
           (unsigned long long)w->refusals, (unsigned long long)w->overtaken,
           (unsigned long long)w->trims, (unsigned long long)memory_balloon_swings(w->balloon),
           (unsigned long long)w->least_live, (unsigned long long)w->most_live);
}

static const char *was_a_test(const worker *w) {
    NEED(memory_balloon_swings(w->balloon) > 2, "the other process hardly changed its size");
    NEED(w->refusals + w->overtaken > 0, "memory was never short");
    return NULL;
}

static const char *work_and_report(worker *w) {
    w->granule = dvmm_get_caps(w->on.driver)->granule_bytes;
    w->total_bytes = dvmm_get_caps(w->on.driver)->total_bytes;
    w->rng = rng_seeded(w->seed);
    TRY(program_attach(&w->on, N_STREAMS));
    TRY(program_allocator(&w->on, 0, &w->allocator));
    const char *why = work(w);
    report(w);
    TRY(why);
    TRY(was_a_test(w));
    NEED_OK(ductile_trim(w->allocator, NULL, 0, NULL));
    uint64_t held = fixture_stats(w->allocator).reserved_bytes;
    NEED(held == 0, "%llu bytes are still held", (unsigned long long)held);
    return NULL;
}

/* Both are gone: the device has what it had. */
static const char *check_device(const worker *w, uint64_t before) {
    uint64_t after = 0;
    TRY(program_free_bytes(w->on.driver, &after));
    NEED(after + slack_bytes(w) >= before, "%llu bytes of the device did not come back",
         (unsigned long long)(before - after));
    return NULL;
}

/* The other program is there before the device is asked what it has, and goes with what it had. */
static const char *run(worker *w) {
    uint64_t before = 0;
    ductile_virtual_options options =
        program_options(1024 * DTI_MIB, DUCTILE_SCHEDULE_LAGGING, 7, 0);
    TRY(program_open_driver(&w->on, &options));
    TRY(w->on.is_virtual ? memory_balloon_start(&w->balloon, w->on.gpu, w->seed + 1) : NULL);
    TRY(memory_balloon_hold(w->balloon));
    TRY(program_free_bytes(w->on.driver, &before));
    memory_balloon_go_on(w->balloon);
    const char *why = work_and_report(w);
    const char *of_balloon = memory_balloon_end(w->balloon);
    TRY(why);
    TRY(of_balloon);
    NEED_OK(ductile_destroy(w->allocator));
    TRY(program_detach(&w->on));
    TRY(check_device(w, before));
    return program_close(&w->on);
}

/* ---- The command line ---------------------------------------------------------------------- */

int main(int argc, char **argv) {
    static worker w = {.seconds = 10, .seed = 1};
    const command_option options[] = {
        PROGRAM_OPTIONS(&w.on),
        {"--seconds", .number = &w.seconds},
        {"--seed", .number = &w.seed},
    };
    command_read("balloon", options, sizeof options / sizeof *options, argc, argv);
    if (w.seconds == 0) {
        command_refuse("it takes at least a second");
    }
    command_end_after(w.seconds * 2 + 60);
    const char *why =
        w.on.is_virtual ? NULL : memory_balloon_fork(&w.balloon, w.on.device, w.seed + 1);
    return command_end(why == NULL ? run(&w) : why);
}
