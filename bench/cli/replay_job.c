/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/replay_job.h"

#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/report.h"
#include "bench/replay/mincap.h"
#include "bench/replay/replay_engine.h"

#include "vmm/base/align.h"

typedef struct replay_job {
    const replay_options *options;
    bench_device device;
    bench_device model; /* where the smallest capacity is searched with --tight */
    timeline timeline;
    bool has_failed;
} replay_job;

/* ---- Getting ready ------------------------------------------------------------------------- */

/* With --tight, the smallest capacity takes twenty replays of all passes. */
static bool find_model(replay_job *s) {
    char reason[256] = "";
    s->model = s->device;
    if (s->options->tight && !bench_device_model(&s->device, &s->model, reason, sizeof reason)) {
        bench_complain("--tight: %s", reason);
        return false;
    }
    return true;
}

/* ---- Replays ------------------------------------------------------------------------------- */

static void note_failure(replay_job *s, const report_row *row) {
    const replay_spec *spec = row->spec;
    if (row->result->outcome == RUN_FAILED) {
        bench_complain("%s: %s: %s", spec->trace->path, spec->plan.contender->name,
                       row->result->message);
        s->has_failed = true;
    } else if (row->result->violations > 0) {
        bench_complain("%s: %s: %s", spec->trace->path, spec->plan.contender->name,
                       row->result->last_violation);
        s->has_failed = true;
    }
}

static void report(replay_job *s, const report_row *row) {
    if (s->options->shared.json) {
        report_json(row);
    } else if (s->options->tight) {
        report_tight_row(row);
    } else {
        report_table_row(row);
    }
    (void)fflush(stdout);
    note_failure(s, row);
}

static replay_spec make_spec(const replay_job *s, const trace *t, const contender_ops *contender) {
    const replay_options *o = s->options;
    replay_spec spec = {
        .trace = t,
        .plan = bench_plan_of(&o->shared, &s->device, contender),
        .n_passes = o->n_passes,
        .checks = o->check,
        .watch = s->timeline.file != NULL ? &s->timeline.watch : NULL,
    };
    spec.plan.pace = o->pace;
    return spec;
}

static uint64_t find_min_capacity(const replay_job *s, const replay_spec *spec,
                                  const replay_result *uncapped) {
    replay_spec own = *spec;
    own.plan.device = &s->model;
    return mincap_find(&own, uncapped);
}

/* Near the smallest capacity, where a policy has to release and reuse memory all the time. */
static void replay_tight(replay_job *s, const report_row *uncapped) {
    const replay_options *o = s->options;
    uint64_t granule = s->device.caps.granule_bytes;
    uint64_t least = uncapped->min_capacity_bytes;
    replay_spec spec = *uncapped->spec;
    replay_result result;
    spec.plan.capacity_bytes = dti_round_up(least + least / 100 * o->above_min_percent, granule);
    spec.watch = NULL;
    replay_run(&spec, &result);
    report_row row = *uncapped;
    row.spec = &spec;
    row.result = &result;
    row.is_tight = true;
    row.above_min_percent = o->above_min_percent;
    report(s, &row);
}

/* One cold pass, and two warm ones where the replay has as many. */
static void time_calls(const replay_spec *spec, replay_result *result) {
    replay_spec own = *spec;
    own.times_calls = true;
    own.watch = NULL;
    own.n_passes = own.n_passes < 3 ? own.n_passes : 3;
    replay_run(&own, result);
}

static void replay_contender(replay_job *s, const trace *t, const contender_ops *contender) {
    replay_spec spec = make_spec(s, t, contender);
    replay_result result;
    replay_run(&spec, &result);
    report_row row = {.spec = &spec,
                      .result = &result,
                      .has_min_capacity = s->options->min_capacity || s->options->tight,
                      .min_is_modelled = s->model.is_virtual && !s->device.is_virtual};
    if (row.has_min_capacity && result.outcome == RUN_COMPLETED) {
        row.min_capacity_bytes = find_min_capacity(s, &spec, &result);
    }
    replay_result calls;
    if (s->options->calls && result.outcome == RUN_COMPLETED) {
        time_calls(&spec, &calls);
        row.calls = &calls;
    }
    report(s, &row);
    if (s->options->tight && row.min_capacity_bytes > 0) {
        replay_tight(s, &row);
    }
}

static void begin_table(const replay_job *s, const trace *t) {
    if (s->options->tight) {
        report_tight_begin(t, s->model.is_virtual && !s->device.is_virtual);
    } else {
        report_table_begin(t, s->options->min_capacity);
    }
}

static void replay_trace(replay_job *s, const trace *t) {
    if (!s->options->shared.json) {
        begin_table(s, t);
    }
    for (size_t i = 0; i < s->options->shared.n_contenders; i++) {
        replay_contender(s, t, s->options->shared.contenders[i]);
    }
}

static int run_all(replay_job *s, trace *const *traces, size_t n) {
    if (!s->options->shared.json) {
        provenance_print_heading(stdout, &s->device);
    }
    for (size_t i = 0; i < n; i++) {
        replay_trace(s, traces[i]);
    }
    bool is_written = report_close_timeline(&s->timeline, s->options->timeline);
    return s->has_failed || !is_written ? BENCH_FAILED : BENCH_DONE;
}

int replay_job_run(const replay_options *options, trace *const *traces, size_t n) {
    replay_job s = {.options = options};
    return bench_find_device(&options->shared, &s.device) && find_model(&s) &&
                   report_open_timeline(&s.timeline, options->timeline, &s.device)
               ? run_all(&s, traces, n)
               : BENCH_FAILED;
}
