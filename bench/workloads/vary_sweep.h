/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The synthetic training loop over and over, while batch and length spread ever further from their
 * largest values: what does each contender hold over what is in use, without a cap and near the
 * smallest capacity that suffices, and what does a step cost?
 */
#ifndef DUCTILE_BENCH_WORKLOADS_VARY_SWEEP_H
#define DUCTILE_BENCH_WORKLOADS_VARY_SWEEP_H

#include "bench/replay/replay_engine.h"
#include "bench/workloads/vary_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SWEEP_SPREADS = 5,       /* from constant to the whole interval    */
    SWEEP_SETTINGS = 4,      /* recomputation or not, one stream or several */
    SWEEP_ABOVE_PERCENT = 2, /* so much above its smallest capacity a contender is capped */
    SWEEP_MAX_SEEDS = 100
};

/* Percent of the way from constant to the whole interval. */
extern const unsigned sweep_spreads[SWEEP_SPREADS];

typedef struct sweep_plan {
    vary_options model; /* its intervals are the widest; its side_streams those of the settings
                           with several streams; its seed the first of n_seeds */
    uint64_t n_seeds;   /* from 1 to SWEEP_MAX_SEEDS */
    replay_spec replay; /* all but trace, contender and capacity */
    const bench_device *judge; /* where smallest capacities are searched */
} sweep_plan;

/* The loop of one setting at one spread, with the plan's first seed. */
vary_options sweep_model(const sweep_plan *plan, unsigned setting, unsigned spread);

/* What is told of one contender on one trace, in the order of the report. */
typedef enum sweep_figure {
    SWEEP_LIVE_PEAK, /* bytes, as all that is held */
    SWEEP_HELD_PEAK,
    SWEEP_HELD_OVER_USED,
    SWEEP_HOST_NS,    /* a step, without the driver's part */
    SWEEP_DRIVER_NS,  /* a step; modelled on the virtual GPU */
    SWEEP_HOST_WAITS, /* of the whole run */
    SWEEP_MIN_CAPACITY,
    SWEEP_MIN_CAPACITY_OVER_USED,
    SWEEP_TIGHT_HELD_PEAK, /* from here on SWEEP_ABOVE_PERCENT above that */
    SWEEP_TIGHT_HOST_NS,
    SWEEP_TIGHT_DRIVER_NS,
    SWEEP_TIGHT_HOST_WAITS,
    SWEEP_FIGURES
} sweep_figure;

/* One contender on one trace. */
typedef struct sweep_sample {
    run_outcome outcome;           /* without a cap */
    double figures[SWEEP_FIGURES]; /* NAN: the run did not complete, or was not made */
    char message[256];             /* the last fault of either run; empty: there was none */
} sweep_sample;

/* One seed: fills a sample for each of n contenders. NULL, or why there is no trace. */
const char *sweep_measure(const sweep_plan *plan, unsigned setting, unsigned spread, uint64_t seed,
                          const contender_ops *const *contenders, size_t n, sweep_sample *samples);

#endif
