/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/workloads/vary_sweep.h"

#include "bench/base/progress_line.h"
#include "bench/replay/mincap.h"
#include "bench/trace/trace_finish.h"
#include "bench/workloads/vary_model.h"

#include "vmm/base/align.h"

#include <math.h>
#include <stdio.h>

const unsigned sweep_spreads[SWEEP_SPREADS] = {0, 25, 50, 75, 100};

/* ---- The loops ----------------------------------------------------------------------------- */

/* The largest value stays, so that runs of every spread need about as much memory. */
static vary_interval narrowed(vary_interval whole, unsigned percent) {
    return (vary_interval){whole.max - (whole.max - whole.min) * percent / 100, whole.max};
}

vary_options sweep_model(const sweep_plan *plan, unsigned setting, unsigned spread) {
    vary_options model = plan->model;
    model.batch = narrowed(model.batch, sweep_spreads[spread]);
    model.sequence = narrowed(model.sequence, sweep_spreads[spread]);
    model.recompute = setting % 2 == 1;
    model.side_streams = setting / 2 == 1 ? model.side_streams : 0;
    return model;
}

static trace *make_trace(const vary_options *model, const char **reason) {
    trace_builder b;
    *reason = vary_generate(model, &b);
    return *reason == NULL ? trace_make(&b, "vary", reason) : NULL;
}

/* ---- One contender ------------------------------------------------------------------------- */

static void note_fault(sweep_sample *sample, const replay_result *result) {
    if (result->outcome == RUN_FAILED || result->outcome == RUN_ABSENT) {
        (void)snprintf(sample->message, sizeof sample->message, "%s", result->message);
    } else if (result->violations > 0) {
        (void)snprintf(sample->message, sizeof sample->message, "%s", result->last_violation);
    }
}

/* Of a run that completed, into the figures that are those of runs like it. */
static void note_run(sweep_sample *sample, const replay_spec *spec, const replay_result *result,
                     sweep_figure held, sweep_figure host, sweep_figure driver,
                     sweep_figure waits) {
    const contender_stats *all = &result->all.stats;
    bool is_virtual = spec->plan.device->is_virtual;
    double steps = (double)(spec->trace->n_steps * spec->n_passes);
    double driver_ns = (double)(is_virtual ? all->driver_time_ns : all->driver_host_ns);
    note_fault(sample, result);
    if (result->outcome == RUN_COMPLETED) {
        sample->figures[held] = (double)result->total.reserved_peak_bytes;
        sample->figures[host] = (replay_wall_ns(&result->all, is_virtual) - driver_ns) / steps;
        sample->figures[driver] = driver_ns / steps;
        sample->figures[waits] = (double)all->stream_syncs;
    }
}

static void run_tight(const sweep_plan *plan, const replay_spec *uncapped,
                      const replay_result *result, sweep_sample *sample) {
    replay_spec spec = *uncapped;
    replay_result capped;
    spec.plan.device = plan->judge;
    uint64_t least = mincap_find(&spec, result);
    if (least == 0) {
        return;
    }
    sample->figures[SWEEP_MIN_CAPACITY] = (double)least;
    spec.plan.device = uncapped->plan.device;
    spec.plan.capacity_bytes = dti_round_up(least + least / 100 * SWEEP_ABOVE_PERCENT,
                                            spec.plan.device->caps.granule_bytes);
    replay_run(&spec, &capped);
    note_run(sample, &spec, &capped, SWEEP_TIGHT_HELD_PEAK, SWEEP_TIGHT_HOST_NS,
             SWEEP_TIGHT_DRIVER_NS, SWEEP_TIGHT_HOST_WAITS);
}

static void measure_contender(const sweep_plan *plan, const replay_spec *spec,
                              sweep_sample *sample) {
    replay_result result;
    double *figures = sample->figures;
    replay_run(spec, &result);
    *sample = (sweep_sample){.outcome = result.outcome};
    for (size_t i = 0; i < SWEEP_FIGURES; i++) {
        figures[i] = NAN;
    }
    figures[SWEEP_LIVE_PEAK] = (double)spec->trace->live_peak_bytes;
    note_run(sample, spec, &result, SWEEP_HELD_PEAK, SWEEP_HOST_NS, SWEEP_DRIVER_NS,
             SWEEP_HOST_WAITS);
    if (result.outcome == RUN_COMPLETED) {
        run_tight(plan, spec, &result, sample);
    }
    figures[SWEEP_HELD_OVER_USED] = figures[SWEEP_HELD_PEAK] / figures[SWEEP_LIVE_PEAK];
    figures[SWEEP_MIN_CAPACITY_OVER_USED] = figures[SWEEP_MIN_CAPACITY] / figures[SWEEP_LIVE_PEAK];
}

/* ---- One trace ----------------------------------------------------------------------------- */

static void tell_progress(const sweep_plan *plan, unsigned setting, unsigned spread,
                          uint64_t seed) {
    uint64_t traces_before = (setting * SWEEP_SPREADS + spread) * plan->n_seeds + seed;
    progress_set_whole(traces_before, SWEEP_SETTINGS * SWEEP_SPREADS * plan->n_seeds);
}

const char *sweep_measure(const sweep_plan *plan, unsigned setting, unsigned spread, uint64_t seed,
                          const contender_ops *const *contenders, size_t n, sweep_sample *samples) {
    vary_options model = sweep_model(plan, setting, spread);
    const char *reason = NULL;
    model.seed += seed;
    trace *t = make_trace(&model, &reason);
    if (t == NULL) {
        return reason;
    }
    replay_spec spec = plan->replay;
    spec.trace = t;
    tell_progress(plan, setting, spread, seed);
    for (size_t i = 0; i < n; i++) {
        spec.plan.contender = contenders[i];
        measure_contender(plan, &spec, &samples[i]);
    }
    progress_set_whole(0, 0);
    trace_free(t);
    return NULL;
}
