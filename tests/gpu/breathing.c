/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Can two programs share a device when one of them breathes? A second process takes between 10 %
 * and 95 % of the device and gives it back, at random; the first works: it allocates and frees on
 * two streams, paints every block and looks at it before it frees it, and trims now and then.
 * Memory may be refused only when there is none: then the second process holds its breath, the
 * device is asked what it has free, and the request is made once more.
 *
 *     breathing [--virtual | --device N] [--seconds N] [--seed N]
 *
 * On the virtual GPU, which lives in one process, a thread with a driver of its own breathes.
 *
 * Prints one figure a line. Ends with 1 when anything is wrong, also when memory was never short or
 * the two never changed places, because then nothing was tested; 77 without a device; 3 when it
 * hangs.
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/lung.h"
#include "tests/support/painter.h"
#include "tests/support/program_device.h"
#include "tests/support/rng.h"
#include "vmm/base/align.h"
#include "vmm/cuda/open.h"
#include "vmm/driver/open_virtual.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_STREAMS = 2, MOST_BLOCKS = 2048, SHARE_PERCENT = 15, STEPS_PER_BREATH = 64 };

typedef struct request {
    bool is_virtual;
    int device;
    uint64_t seconds;
    uint64_t seed;
} request;

/* ---- The one that works -------------------------------------------------------------------- */

typedef struct block {
    canvas canvas;
    uint32_t stream;
} block;

typedef struct worker {
    const request *request;
    lung *lung;
    ductile_virtual_gpu *gpu; /* NULL on CUDA */
    dvmm_driver *driver;
    painter painter;
    ductile_allocator *allocator;
    ductile_stream streams[N_STREAMS];
    uint64_t granule;
    uint64_t total_bytes;
    rng rng;
    block blocks[MOST_BLOCKS]; /* live, in no order */
    size_t n_blocks;
    uint64_t live_bytes;
    uint64_t next_id;
    uint64_t allocs, refusals, overtaken, trims;
    uint64_t least_live, most_live;
} worker;

/* What the driver keeps for itself on hardware. */
static uint64_t slack_bytes(const worker *w) {
    return w->gpu != NULL ? w->granule : 256 * DTI_MIB;
}

static int by_address(const void *a, const void *b) {
    ductile_addr x = ((const block *)a)->canvas.address;
    ductile_addr y = ((const block *)b)->canvas.address;
    return (x > y) - (x < y);
}

/* Granules that hold a byte of a live block. */
static uint64_t touched_granules(worker *w) {
    uint64_t n = 0;
    uint64_t next = 0; /* the first granule that is not counted yet */
    qsort(w->blocks, w->n_blocks, sizeof w->blocks[0], by_address);
    for (size_t i = 0; i < w->n_blocks; i++) {
        const canvas *c = &w->blocks[i].canvas;
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
        NEED_OK(dvmm_stream_sync(w->driver, w->streams[i]));
    }
    return NULL;
}

/* All work is done and no process takes anything: what was refused twice must not be there. */
static const char *check_refusal(worker *w, uint64_t size) {
    uint64_t free_bytes = 0;
    uint64_t total = 0;
    ductile_stats s = {.struct_size = sizeof s};
    NEED_OK(dvmm_mem_info(w->driver, &free_bytes, &total));
    NEED_OK(ductile_get_stats(w->allocator, NULL, &s));
    uint64_t touched = touched_granules(w) * w->granule;
    uint64_t unused = s.reserved_bytes > touched ? s.reserved_bytes - touched : 0;
    uint64_t needed = dti_round_up(size, w->granule) + slack_bytes(w);
    NEED(free_bytes + unused < needed,
         "%llu bytes refused with %llu free on the device and %llu unused in the allocator",
         (unsigned long long)size, (unsigned long long)free_bytes, (unsigned long long)unused);
    return NULL;
}

static const char *retry(worker *w, uint64_t size, ductile_stream stream, ductile_addr *out) {
    TRY(wait_for_streams(w));
    TRY(lung_hold(w->lung));
    ductile_status status = ductile_alloc(w->allocator, size, stream, out);
    const char *why = NULL;
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        w->refusals++;
        why = check_refusal(w, size);
    } else {
        w->overtaken++;
    }
    lung_breathe(w->lung);
    TRY(why);
    NEED(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc: %s",
         ductile_status_string(status));
    return NULL;
}

static uint64_t random_size(worker *w) {
    uint64_t top = rng_percent(&w->rng, 30) ? w->total_bytes / 24 : w->total_bytes / 400;
    return rng_between(&w->rng, 512, top) / 4 * 4;
}

static const char *allocate(worker *w) {
    block b = {.canvas = {.size = random_size(w), .id = w->next_id++}};
    b.stream = (uint32_t)rng_below(&w->rng, N_STREAMS);
    ductile_stream stream = w->streams[b.stream];
    ductile_status status = ductile_alloc(w->allocator, b.canvas.size, stream, &b.canvas.address);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        b.canvas.address = 0;
        TRY(retry(w, b.canvas.size, stream, &b.canvas.address));
        if (b.canvas.address == 0) {
            return NULL;
        }
    } else {
        NEED_OK(status);
    }
    w->allocs++;
    w->live_bytes += b.canvas.size;
    w->blocks[w->n_blocks++] = b;
    return paint(&w->painter, &b.canvas, stream);
}

/* Some blocks are looked at by the other stream, which is recorded. */
static const char *release(worker *w, size_t index) {
    block b = w->blocks[index];
    w->blocks[index] = w->blocks[--w->n_blocks];
    w->live_bytes -= b.canvas.size;
    TRY(look(&w->painter, &b.canvas, w->streams[b.stream]));
    if (rng_percent(&w->rng, SHARE_PERCENT)) {
        uint32_t other = (b.stream + 1) % N_STREAMS;
        NEED_OK(dvmm_stream_sync(w->driver, w->streams[b.stream]));
        TRY(look(&w->painter, &b.canvas, w->streams[other]));
        NEED_OK(ductile_record_stream(w->allocator, b.canvas.address, w->streams[other]));
    } else {
        TRY(scribble(&w->painter, &b.canvas, w->streams[b.stream]));
    }
    NEED_OK(ductile_free(w->allocator, b.canvas.address));
    return NULL;
}

/* Live memory swings between little and more than there may be. */
static const char *work_for_a_breath(worker *w) {
    uint64_t wanted = w->total_bytes / 100 * rng_between(&w->rng, 1, 80);
    for (int i = 0; i < STEPS_PER_BREATH; i++) {
        bool grows = w->live_bytes < wanted && w->n_blocks < MOST_BLOCKS;
        if (w->n_blocks == 0 || (grows && rng_percent(&w->rng, 75))) {
            TRY(allocate(w));
        } else {
            TRY(release(w, (size_t)rng_below(&w->rng, w->n_blocks)));
        }
        if (w->gpu != NULL) {
            ductile_virtual_advance(w->gpu, 1);
        }
    }
    w->least_live = w->live_bytes < w->least_live ? w->live_bytes : w->least_live;
    w->most_live = w->live_bytes > w->most_live ? w->live_bytes : w->most_live;
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
    time_t end = time(NULL) + (time_t)w->request->seconds;
    w->least_live = UINT64_MAX;
    while (time(NULL) < end) {
        uint64_t mismatches = 0;
        TRY(work_for_a_breath(w));
        TRY(trim_sometimes(w));
        TRY(painter_mismatches(&w->painter, &mismatches));
        NEED(mismatches == 0, "%llu places were overwritten", (unsigned long long)mismatches);
        NEED(!lung_is_broken(w->lung), "the other program has failed");
    }
    while (w->n_blocks > 0) {
        TRY(release(w, w->n_blocks - 1));
    }
    NEED_OK(ductile_check(w->allocator, NULL, 0));
    return NULL;
}

static const char *open_worker(worker *w) {
    w->granule = dvmm_get_caps(w->driver)->granule_bytes;
    w->total_bytes = dvmm_get_caps(w->driver)->total_bytes;
    w->rng = rng_seeded(w->request->seed);
    for (int i = 0; i < N_STREAMS; i++) {
        NEED_OK(dvmm_stream_create(w->driver, &w->streams[i]));
    }
    TRY(painter_open(&w->painter, w->driver, w->request->device));
    return program_allocator(w->gpu, w->request->device, 0, &w->allocator);
}

static const char *close_worker(worker *w) {
    painter_close(&w->painter);
    if (w->allocator != NULL) {
        NEED_OK(ductile_destroy(w->allocator));
        w->allocator = NULL;
    }
    for (int i = 0; i < N_STREAMS; i++) {
        if (w->streams[i] != NULL) {
            NEED_OK(dvmm_stream_destroy(w->driver, w->streams[i]));
        }
    }
    return NULL;
}

/* ---- The two together ---------------------------------------------------------------------- */

static void report(const worker *w) {
    printf("seconds %llu\nallocations %llu\nrefusals %llu\novertaken %llu\ntrims %llu\n"
           "breaths %llu\nleast live bytes %llu\nmost live bytes %llu\n",
           (unsigned long long)w->request->seconds, (unsigned long long)w->allocs,
           (unsigned long long)w->refusals, (unsigned long long)w->overtaken,
           (unsigned long long)w->trims, (unsigned long long)lung_breaths(w->lung),
           (unsigned long long)w->least_live, (unsigned long long)w->most_live);
}

static const char *was_a_test(const worker *w) {
    NEED(lung_breaths(w->lung) > 2, "the other process hardly breathed");
    NEED(w->refusals + w->overtaken > 0, "memory was never short");
    return NULL;
}

static const char *work_and_report(worker *w) {
    TRY(open_worker(w));
    const char *why = work(w);
    report(w);
    TRY(why);
    TRY(was_a_test(w));
    NEED_OK(ductile_trim(w->allocator, NULL, 0, NULL));
    ductile_stats s = {.struct_size = sizeof s};
    NEED_OK(ductile_get_stats(w->allocator, NULL, &s));
    NEED(s.reserved_bytes == 0, "%llu bytes are still held", (unsigned long long)s.reserved_bytes);
    return NULL;
}

/* Both are gone: the device has what it had. */
static const char *check_device(const worker *w, uint64_t before) {
    uint64_t after = 0;
    uint64_t total = 0;
    NEED_OK(dvmm_mem_info(w->driver, &after, &total));
    NEED(after + slack_bytes(w) >= before, "%llu bytes of the device did not come back",
         (unsigned long long)(before - after));
    return NULL;
}

static const char *open_virtual(worker *w) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.capacity_bytes = 1024 * DTI_MIB;
    options.schedule = DUCTILE_SCHEDULE_LAGGING;
    options.lag = 7;
    NEED_OK(ductile_virtual_create(&w->gpu, &options));
    NEED_OK(dvmm_open_virtual(w->gpu, &w->driver, NULL, 0));
    return lung_start(&w->lung, w->gpu, w->request->seed + 1);
}

static const char *open_device(worker *w) {
    char reason[256] = "";
    if (w->request->is_virtual) {
        return open_virtual(w);
    }
    if (dvmm_open_cuda(w->request->device, &w->driver, reason, sizeof reason) != DUCTILE_OK) {
        (void)lung_end(w->lung);
        command_skip(reason);
    }
    return NULL;
}

static const char *run(worker *w) {
    uint64_t before = 0;
    uint64_t total = 0;
    TRY(open_device(w));
    TRY(lung_hold(w->lung));
    NEED_OK(dvmm_mem_info(w->driver, &before, &total));
    lung_breathe(w->lung);
    const char *why = work_and_report(w);
    const char *of_lung = lung_end(w->lung);
    TRY(why);
    TRY(of_lung);
    TRY(close_worker(w));
    TRY(check_device(w, before));
    dvmm_close(w->driver);
    ductile_virtual_destroy(w->gpu);
    return NULL;
}

/* ---- The command line ---------------------------------------------------------------------- */

static void read_request(request *r, int argc, char **argv) {
    const command_option options[] = {
        {"--virtual", .flag = &r->is_virtual},
        {"--device", .device = &r->device},
        {"--seconds", .number = &r->seconds},
        {"--seed", .number = &r->seed},
    };
    command_read("breathing", options, sizeof options / sizeof *options, argc, argv);
    if (r->seconds == 0) {
        command_refuse("it takes at least a second");
    }
}

int main(int argc, char **argv) {
    static worker w;
    request r = {.seconds = 10, .seed = 1};
    read_request(&r, argc, argv);
    w.request = &r;
    command_end_after(r.seconds * 2 + 60);
    const char *why = r.is_virtual ? NULL : lung_fork(&w.lung, r.device, r.seed + 1);
    return command_end(why == NULL ? run(&w) : why);
}
