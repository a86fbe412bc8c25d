/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/churn_measure.h"

#include "bench/base/random.h"
#include "bench/base/stopwatch.h"
#include "vmm/base/align.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Choices are drawn in batches while the clock stands still. */
enum { BATCH = 4096, PREFETCH_AHEAD = 8 };

/* Free block `victim`, then allocate `size` in its place. */
typedef struct choice {
    uint64_t size;
    uint64_t victim;
} choice;

typedef struct churn {
    const churn_spec *spec;
    churn_result *result;
    testbed bed;
    ductile_addr *blocks;
    uint64_t n_blocks; /* live now */
    uint64_t random;
    choice batch[BATCH];
} churn;

/* ---- Sizes --------------------------------------------------------------------------------- */

static double mean_of(churn_sizes sizes) {
    double ratio = (double)sizes.max / (double)sizes.min;
    return ratio > 1 ? (double)(sizes.max - sizes.min) / log(ratio) : (double)sizes.min;
}

churn_sizes churn_fit_sizes(churn_sizes wanted, uint64_t live, uint64_t bytes) {
    churn_sizes sizes = wanted;
    while (sizes.max > DUCTILE_ALIGNMENT && 2 * mean_of(sizes) * (double)live > (double)bytes) {
        sizes.max /= 2;
        sizes.min = dti_max(sizes.min / 2, DUCTILE_ALIGNMENT);
    }
    return sizes;
}

static uint64_t draw_size(churn *c) {
    const double unit = 1.0 / 18446744073709551616.0; /* of all 64-bit numbers */
    churn_sizes sizes = c->spec->sizes;
    double share = (double)random_next(&c->random) * unit;
    double ratio = (double)sizes.max / (double)sizes.min;
    return (uint64_t)((double)sizes.min * exp2(share * log2(ratio)));
}

static void draw_batch(churn *c, size_t n) {
    for (size_t i = 0; i < n; i++) {
        c->batch[i] = (choice){draw_size(c), random_next(&c->random) % c->spec->live};
    }
}

/* ---- Playing ------------------------------------------------------------------------------- */

static bool stop(churn *c, ductile_status status) {
    churn_result *result = c->result;
    result->outcome = run_outcome_of(status);
    (void)snprintf(result->message, sizeof result->message, "%s", ductile_status_string(status));
    return false;
}

static bool fill(churn *c) {
    const testbed *bed = &c->bed;
    while (c->n_blocks < c->spec->live) {
        ductile_status status =
            bed->ops->alloc(bed->contender, draw_size(c), bed->streams[0], &c->blocks[c->n_blocks]);
        if (status != DUCTILE_OK) {
            return stop(c, status);
        }
        c->n_blocks++;
    }
    return true;
}

/* The list of blocks is the bench's own: what missing it in the caches costs is not the
 * allocator's. */
static ductile_status play_batch(churn *c, size_t n) {
    const contender_ops *ops = c->bed.ops;
    void *contender = c->bed.contender;
    ductile_stream stream = c->bed.streams[0];
    for (size_t i = 0; i < n; i++) {
        ductile_addr *block = &c->blocks[c->batch[i].victim];
        __builtin_prefetch(&c->blocks[c->batch[(i + PREFETCH_AHEAD) % BATCH].victim], 1);
        ductile_status status = ops->free(contender, *block);
        *block = 0;
        if (status == DUCTILE_OK) {
            status = ops->alloc(contender, c->batch[i].size, stream, block);
        }
        if (__builtin_expect(status != DUCTILE_OK, 0)) {
            return status;
        }
    }
    return DUCTILE_OK;
}

static bool play(churn *c, uint64_t pairs, stopwatch *watch) {
    while (pairs > 0) {
        size_t n = (size_t)dti_min(pairs, BATCH);
        draw_batch(c, n);
        stopwatch_start(watch);
        ductile_status status = play_batch(c, n);
        stopwatch_stop(watch);
        if (status != DUCTILE_OK) {
            return stop(c, status);
        }
        pairs -= n;
    }
    return true;
}

/* ---- Measuring ----------------------------------------------------------------------------- */

static uint64_t resident_bytes(void) {
    unsigned long total = 0;
    unsigned long resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) {
        return 0;
    }
    bool ok = fscanf(file, "%lu %lu", &total, &resident) == 2;
    (void)fclose(file);
    return ok ? (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static void read_stats(const churn *c, contender_stats *out) {
    *out = (contender_stats){0};
    c->bed.ops->stats(c->bed.contender, out);
}

/* Nanoseconds without the driver's part, and with it (modelled on the virtual GPU). */
typedef struct cost {
    double own_ns;
    double wall_ns;
} cost;

static cost cost_of(const churn *c, const stopwatch *watch, const contender_stats *before,
                    const contender_stats *after) {
    double host = (double)stopwatch_total_ns(watch);
    double driver_host = (double)(after->driver_host_ns - before->driver_host_ns);
    double driver =
        c->bed.gpu != NULL ? (double)(after->driver_time_ns - before->driver_time_ns) : driver_host;
    double own = host > driver_host ? host - driver_host : 0;
    return (cost){own, own + driver};
}

static bool run_stretch(churn *c, uint64_t pairs, churn_stretch *out, cost *spent) {
    contender_stats before;
    stopwatch watch = {0};
    read_stats(c, &before);
    if (!play(c, pairs, &watch)) {
        return false;
    }
    read_stats(c, &out->stats);
    *spent = cost_of(c, &watch, &before, &out->stats);
    out->ns_per_op = spent->own_ns / (2 * (double)pairs);
    out->wall_ns_per_op = spent->wall_ns / (2 * (double)pairs);
    out->host_bytes = resident_bytes();
    return true;
}

static void run_stretches(churn *c) {
    uint64_t pairs = dti_max((c->spec->ops / 2 + CHURN_STRETCHES - 1) / CHURN_STRETCHES, 1);
    cost total = {0, 0};
    for (int i = 0; i < CHURN_STRETCHES; i++) {
        churn_stretch *stretch = &c->result->stretches[i];
        cost spent;
        if (!run_stretch(c, pairs, stretch, &spent)) {
            return;
        }
        stretch->ops = 2 * pairs * (uint64_t)(i + 1);
        total.own_ns += spent.own_ns;
        total.wall_ns += spent.wall_ns;
    }
    double ops = (double)c->result->stretches[CHURN_STRETCHES - 1].ops;
    c->result->ns_per_op = total.own_ns / ops;
    c->result->wall_ns_per_op = total.wall_ns / ops;
}

/* As many replacements as there are blocks come before the clock starts: the first layout is no
 * steady state. */
static void run_on_testbed(churn *c) {
    stopwatch unused = {0};
    c->blocks = calloc((size_t)c->spec->live, sizeof *c->blocks);
    if (c->blocks == NULL) {
        (void)stop(c, DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    } else if (fill(c) && play(c, c->spec->live, &unused)) {
        run_stretches(c);
    }
    for (uint64_t i = 0; i < c->n_blocks; i++) {
        if (c->blocks[i] != 0) {
            (void)c->bed.ops->free(c->bed.contender, c->blocks[i]);
        }
    }
    free(c->blocks);
}

void churn_measure(const churn_spec *spec, churn_result *result) {
    churn *c = calloc(1, sizeof *c);
    *result = (churn_result){.outcome = RUN_FAILED, .message = "the host has no memory left"};
    if (c == NULL) {
        return;
    }
    c->spec = spec;
    c->result = result;
    c->random = spec->seed;
    testbed_plan plan = spec->plan;
    plan.n_streams = 1;
    ductile_status status = testbed_open(&c->bed, &plan, result->message, sizeof result->message);
    if (status == DUCTILE_OK) {
        result->outcome = RUN_COMPLETED;
        run_on_testbed(c);
        testbed_close(&c->bed);
    } else {
        result->outcome = run_outcome_unopened(status);
    }
    free(c);
}
