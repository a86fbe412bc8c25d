/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/sweep.h"

#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/workloads/vary_sweep.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct sweep_job {
    sweep_plan plan;
    const contender_ops *const *contenders;
    size_t n_contenders;
    sweep_sample *samples; /* by setting, spread, seed and contender */
    bench_device device;
    bench_device judge;
    bool json;
    bool has_failed;
} sweep_job;

static sweep_sample *sample_at(const sweep_job *job, unsigned setting, unsigned spread,
                               uint64_t seed, size_t contender) {
    uint64_t run = (setting * SWEEP_SPREADS + spread) * job->plan.n_seeds + seed;
    return &job->samples[run * job->n_contenders + contender];
}

static bool is_absent(const sweep_job *job, size_t contender) {
    return sample_at(job, 0, 0, 0, contender)->outcome == RUN_ABSENT;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* One setting at one spread under one contender. */
typedef struct cell {
    const sweep_job *job;
    unsigned setting;
    unsigned spread;
    size_t contender;
} cell;

static const sweep_sample *sample_of(const cell *c, uint64_t seed) {
    return sample_at(c->job, c->setting, c->spread, seed, c->contender);
}

/* What each seed gave. */
static void print_figures(dti_json *j, const cell *c) {
    static const struct {
        const char *name;
        double unit;
        int digits;
    } known[SWEEP_FIGURES] = {
        [SWEEP_LIVE_PEAK] = {"live_peak_bytes", 1, 0},
        [SWEEP_HELD_PEAK] = {"reserved_peak_bytes", 1, 0},
        [SWEEP_HELD_OVER_USED] = {"held_over_used", 1, 6},
        [SWEEP_HOST_NS] = {"host_us_per_step", 1e3, 3},
        [SWEEP_DRIVER_NS] = {"driver_us_per_step", 1e3, 3},
        [SWEEP_HOST_WAITS] = {"stream_syncs", 1, 0},
        [SWEEP_MIN_CAPACITY] = {"min_capacity_bytes", 1, 0},
        [SWEEP_MIN_CAPACITY_OVER_USED] = {"min_capacity_over_used", 1, 6},
        [SWEEP_TIGHT_HELD_PEAK] = {"tight_reserved_peak_bytes", 1, 0},
        [SWEEP_TIGHT_HOST_NS] = {"tight_host_us_per_step", 1e3, 3},
        [SWEEP_TIGHT_DRIVER_NS] = {"tight_driver_us_per_step", 1e3, 3},
        [SWEEP_TIGHT_HOST_WAITS] = {"tight_stream_syncs", 1, 0},
    };
    for (size_t i = 0; i < SWEEP_FIGURES; i++) {
        dti_json_open(j, known[i].name, '[');
        for (uint64_t seed = 0; seed < c->job->plan.n_seeds; seed++) {
            double value = sample_of(c, seed)->figures[i];
            dti_json_real(j, NULL, value / known[i].unit, known[i].digits);
        }
        dti_json_close(j, ']');
    }
}

static void print_model(dti_json *j, const vary_options *m) {
    dti_json_bool(j, "recompute", m->recompute);
    dti_json_number(j, "side_streams", m->side_streams);
    dti_json_number(j, "layers", m->layers);
    dti_json_number(j, "hidden", m->hidden);
    dti_json_number(j, "steps", m->steps);
    dti_json_numbers(j, "batch", (const uint64_t[]){m->batch.min, m->batch.max}, 2);
    dti_json_numbers(j, "sequence", (const uint64_t[]){m->sequence.min, m->sequence.max}, 2);
}

static void print_cell(const cell *c) {
    const sweep_plan *plan = &c->job->plan;
    const vary_options model = sweep_model(plan, c->setting, c->spread);
    dti_json j = dti_json_begin_line(stdout);
    provenance_json(&j, plan->replay.plan.device);
    dti_json_text(&j, "sweep", "vary");
    dti_json_text(&j, "contender", c->job->contenders[c->contender]->name);
    dti_json_number(&j, "spread_percent", sweep_spreads[c->spread]);
    print_model(&j, &model);
    dti_json_number(&j, "first_seed", model.seed);
    dti_json_number(&j, "above_min_percent", SWEEP_ABOVE_PERCENT);
    dti_json_text(&j, "min_capacity_device", plan->judge->is_virtual ? "virtual" : "cuda");
    if (is_absent(c->job, c->contender)) {
        dti_json_bool(&j, "absent", true);
    } else {
        print_figures(&j, c);
    }
    dti_json_end_line(&j);
}

/* One line for each contender. */
static void print_json(const sweep_job *job, unsigned setting, unsigned spread) {
    for (size_t i = 0; i < job->n_contenders; i++) {
        print_cell(&(cell){job, setting, spread, i});
    }
    (void)fflush(stdout);
}

/* ---- Tables -------------------------------------------------------------------------------- */

/* Of the seeds that have one. */
typedef struct summary {
    double median; /* NAN: none has one */
    double most;
} summary;

static int compare_values(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static summary summarise(const cell *c, sweep_figure figure) {
    double values[SWEEP_MAX_SEEDS];
    size_t n = 0;
    for (uint64_t seed = 0; seed < c->job->plan.n_seeds; seed++) {
        double value = sample_of(c, seed)->figures[figure];
        if (!isnan(value)) {
            values[n++] = value;
        }
    }
    if (n == 0) {
        return (summary){NAN, NAN};
    }
    qsort(values, n, sizeof values[0], compare_values);
    return (summary){(values[(n - 1) / 2] + values[n / 2]) / 2, values[n - 1]};
}

/* What a table asks: a ratio, or a time of the host and behind it that of the driver. Prints into a
 * cell of COLUMN characters. */
enum { COLUMN = 17 };

static void print_figure(const cell *c, sweep_figure figure) {
    bool is_time = figure == SWEEP_HOST_NS || figure == SWEEP_TIGHT_HOST_NS;
    summary s = summarise(c, figure);
    char text[32] = "-";
    if (!isnan(s.median) && is_time) {
        summary driver = summarise(c, figure + 1);
        (void)snprintf(text, sizeof text, "%.2f + %.2f", s.median / 1e6, driver.median / 1e6);
    } else if (!isnan(s.median)) {
        (void)snprintf(text, sizeof text, "%.4f (%.4f)", s.median, s.most);
    }
    printf("%*s", COLUMN, text);
}

static void print_rows(const sweep_job *job, unsigned setting, sweep_figure figure) {
    const vary_options model = sweep_model(&job->plan, setting, 0);
    printf("  recompute %s, %" PRIu64 " stream%s\n", model.recompute ? "on" : "off",
           1 + model.side_streams, model.side_streams > 0 ? "s" : "");
    for (size_t i = 0; i < job->n_contenders; i++) {
        if (is_absent(job, i)) {
            continue;
        }
        printf("    %-16s", job->contenders[i]->name);
        for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
            print_figure(&(cell){job, setting, spread, i}, figure);
        }
        (void)putchar('\n');
    }
}

static void print_table(const sweep_job *job, const char *title, sweep_figure figure) {
    printf("\n%s\n  %-18s", title, "spread");
    for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
        printf("%*u %%", COLUMN - 2, sweep_spreads[spread]);
    }
    (void)putchar('\n');
    for (unsigned setting = 0; setting < SWEEP_SETTINGS; setting++) {
        print_rows(job, setting, figure);
    }
}

static void print_loop(const vary_options *m) {
    printf("\n%" PRIu64 " steps of %" PRIu64 " layers, hidden %" PRIu64 "; batch %" PRIu64
           " and sequence %" PRIu64 ", at 100 %% %" PRIu64 ":%" PRIu64 " and %" PRIu64 ":%" PRIu64
           "\n",
           m->steps, m->layers, m->hidden, m->batch.max, m->sequence.max, m->batch.min,
           m->batch.max, m->sequence.min, m->sequence.max);
}

/* One table for each question, a row for each setting and contender, a column for each spread. */
static void print_tables(const sweep_job *job) {
    const sweep_plan *plan = &job->plan;
    char title[160];
    print_loop(&plan->model);
    (void)snprintf(title, sizeof title,
                   "held / used without a cap: median of %" PRIu64 " seeds (most)", plan->n_seeds);
    print_table(job, title, SWEEP_HELD_OVER_USED);
    (void)snprintf(title, sizeof title, "smallest capacity%s / used: median (most)",
                   plan->judge == plan->replay.plan.device ? "" : ", on the virtual GPU,");
    print_table(job, title, SWEEP_MIN_CAPACITY_OVER_USED);
    print_table(job, "host + driver, ms a step, without a cap: medians", SWEEP_HOST_NS);
    (void)snprintf(title, sizeof title,
                   "host + driver, ms a step, %d %% above its smallest capacity: medians",
                   SWEEP_ABOVE_PERCENT);
    print_table(job, title, SWEEP_TIGHT_HOST_NS);
    for (size_t i = 0; i < job->n_contenders; i++) {
        if (is_absent(job, i)) {
            printf("\n%s is absent: %s\n", job->contenders[i]->name,
                   sample_at(job, 0, 0, 0, i)->message);
        }
    }
}

/* ---- Running ------------------------------------------------------------------------------- */

static bool find_devices(sweep_job *j, const bench_options *shared) {
    char reason[256] = "";
    if (!bench_find_device(shared, &j->device)) {
        return false;
    }
    if (!bench_device_model(&j->device, &j->judge, reason, sizeof reason)) {
        bench_complain("generate vary: %s", reason);
        return false;
    }
    return true;
}

/* A contender that the device does not have is no failure. */
static void note_failures(sweep_job *j, const sweep_sample *samples) {
    for (size_t i = 0; i < j->n_contenders; i++) {
        if (samples[i].message[0] != '\0' && samples[i].outcome != RUN_ABSENT) {
            bench_complain("generate vary: %s: %s", j->contenders[i]->name, samples[i].message);
            j->has_failed = true;
        }
    }
}

/* All seeds of one setting at one spread. False: the traces cannot be made. */
static bool run_cell(sweep_job *j, unsigned setting, unsigned spread) {
    for (uint64_t seed = 0; seed < j->plan.n_seeds; seed++) {
        sweep_sample *samples = sample_at(j, setting, spread, seed, 0);
        const char *reason =
            sweep_measure(&j->plan, setting, spread, seed, j->contenders, j->n_contenders, samples);
        if (reason != NULL) {
            bench_complain("generate vary: %s", reason);
            return false;
        }
        note_failures(j, samples);
    }
    if (j->json) {
        print_json(j, setting, spread);
    }
    return true;
}

static int run_cells(sweep_job *j) {
    for (unsigned setting = 0; setting < SWEEP_SETTINGS; setting++) {
        for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
            if (!run_cell(j, setting, spread)) {
                return BENCH_FAILED;
            }
        }
    }
    if (!j->json) {
        provenance_print_heading(stdout, &j->device);
        print_tables(j);
    }
    return j->has_failed ? BENCH_FAILED : BENCH_DONE;
}

static bool make_room(sweep_job *j) {
    size_t n = (size_t)(SWEEP_SETTINGS * SWEEP_SPREADS * j->plan.n_seeds);
    j->samples = calloc(n * j->n_contenders, sizeof *j->samples);
    if (j->samples == NULL) {
        bench_complain("the host has no memory left");
    }
    return j->samples != NULL;
}

static replay_spec make_spec(const replay_options *o, const bench_device *device) {
    replay_spec spec = {.plan = bench_plan_of(&o->shared, device, NULL), .n_passes = o->n_passes};
    spec.plan.pace = o->pace;
    return spec;
}

int sweep_run_all(const replay_options *o, const vary_options *model, uint64_t n_seeds) {
    sweep_job j = {.json = o->shared.json,
                   .contenders = o->shared.contenders,
                   .n_contenders = o->shared.n_contenders};
    j.plan = (sweep_plan){
        .model = *model, .n_seeds = n_seeds, .replay = make_spec(o, &j.device), .judge = &j.device};
    if (!find_devices(&j, &o->shared) || !make_room(&j)) {
        return BENCH_FAILED;
    }
    j.plan.judge = j.judge.is_virtual == j.device.is_virtual ? &j.device : &j.judge;
    int status = run_cells(&j);
    free(j.samples);
    return status;
}
