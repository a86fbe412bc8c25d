/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/sweep_report.h"

#include "bench/base/provenance.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* A number of a sample; NAN where the sample has none. */
typedef double (*figure_fn)(const sweep_sample *sample);

static bool is_absent(const sweep_results *r, size_t contender) {
    return sweep_sample_at(r, 0, 0, 0, contender)->uncapped.outcome == RUN_ABSENT;
}

static double if_completed(const sweep_run *run, double value) {
    return run->outcome == RUN_COMPLETED ? value : NAN;
}

static double held_over_used(const sweep_sample *s) {
    return if_completed(&s->uncapped,
                        (double)s->uncapped.held_peak_bytes / (double)s->live_peak_bytes);
}

static double smallest_over_used(const sweep_sample *s) {
    return s->min_capacity_bytes > 0 ? (double)s->min_capacity_bytes / (double)s->live_peak_bytes
                                     : NAN;
}

static double host_uncapped(const sweep_sample *s) {
    return if_completed(&s->uncapped, s->uncapped.host_ns_per_step);
}

static double driver_uncapped(const sweep_sample *s) {
    return if_completed(&s->uncapped, s->uncapped.driver_ns_per_step);
}

static double host_tight(const sweep_sample *s) {
    return if_completed(&s->tight, s->tight.host_ns_per_step);
}

static double driver_tight(const sweep_sample *s) {
    return if_completed(&s->tight, s->tight.driver_ns_per_step);
}

static double waits_uncapped(const sweep_sample *s) {
    return if_completed(&s->uncapped, (double)s->uncapped.host_waits);
}

static double waits_tight(const sweep_sample *s) {
    return if_completed(&s->tight, (double)s->tight.host_waits);
}

static double held_tight(const sweep_sample *s) {
    return if_completed(&s->tight, (double)s->tight.held_peak_bytes);
}

static double held_uncapped(const sweep_sample *s) {
    return if_completed(&s->uncapped, (double)s->uncapped.held_peak_bytes);
}

static double smallest(const sweep_sample *s) {
    return s->min_capacity_bytes > 0 ? (double)s->min_capacity_bytes : NAN;
}

static double live(const sweep_sample *s) {
    return (double)s->live_peak_bytes;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* One setting at one spread under one contender. */
typedef struct cell {
    const sweep_results *results;
    unsigned setting;
    unsigned spread;
    size_t contender;
} cell;

static const sweep_sample *sample_of(const cell *c, uint64_t seed) {
    return sweep_sample_at(c->results, c->setting, c->spread, seed, c->contender);
}

static void print_list(dti_json *j, const cell *c, const char *name, figure_fn figure, double unit,
                       int digits) {
    dti_json_open(j, name, '[');
    for (uint64_t seed = 0; seed < c->results->plan->n_seeds; seed++) {
        dti_json_real(j, NULL, figure(sample_of(c, seed)) / unit, digits);
    }
    dti_json_close(j, ']');
}

static void print_figures(dti_json *j, const cell *c) {
    print_list(j, c, "live_peak_bytes", live, 1, 0);
    print_list(j, c, "reserved_peak_bytes", held_uncapped, 1, 0);
    print_list(j, c, "held_over_used", held_over_used, 1, 6);
    print_list(j, c, "host_us_per_step", host_uncapped, 1e3, 3);
    print_list(j, c, "driver_us_per_step", driver_uncapped, 1e3, 3);
    print_list(j, c, "stream_syncs", waits_uncapped, 1, 0);
    print_list(j, c, "min_capacity_bytes", smallest, 1, 0);
    print_list(j, c, "min_capacity_over_used", smallest_over_used, 1, 6);
    print_list(j, c, "tight_reserved_peak_bytes", held_tight, 1, 0);
    print_list(j, c, "tight_host_us_per_step", host_tight, 1e3, 3);
    print_list(j, c, "tight_driver_us_per_step", driver_tight, 1e3, 3);
    print_list(j, c, "tight_stream_syncs", waits_tight, 1, 0);
}

static void print_interval(dti_json *j, const char *name, const vary_interval *interval) {
    dti_json_open(j, name, '[');
    dti_json_number(j, NULL, interval->min);
    dti_json_number(j, NULL, interval->max);
    dti_json_close(j, ']');
}

static void print_model(dti_json *j, const vary_options *m) {
    dti_json_bool(j, "recompute", m->recompute);
    dti_json_number(j, "side_streams", m->side_streams);
    dti_json_number(j, "layers", m->layers);
    dti_json_number(j, "hidden", m->hidden);
    dti_json_number(j, "steps", m->steps);
    print_interval(j, "batch", &m->batch);
    print_interval(j, "sequence", &m->sequence);
}

static void print_cell(FILE *out, const cell *c) {
    const sweep_plan *plan = c->results->plan;
    const vary_options model = sweep_model(plan, c->setting, c->spread);
    dti_json j = dti_json_begin_line(out);
    provenance_json(&j, plan->replay.device);
    dti_json_text(&j, "sweep", "vary");
    dti_json_text(&j, "contender", c->results->contenders[c->contender]->name);
    dti_json_number(&j, "spread_percent", sweep_spreads[c->spread]);
    print_model(&j, &model);
    dti_json_number(&j, "first_seed", model.seed);
    dti_json_number(&j, "above_min_percent", SWEEP_ABOVE_PERCENT);
    dti_json_text(&j, "min_capacity_device", plan->judge->is_virtual ? "virtual" : "cuda");
    if (is_absent(c->results, c->contender)) {
        dti_json_bool(&j, "absent", true);
    } else {
        print_figures(&j, c);
    }
    dti_json_end_line(&j);
}

void sweep_report_json(FILE *out, const sweep_results *r, unsigned setting, unsigned spread) {
    for (size_t i = 0; i < r->n_contenders; i++) {
        print_cell(out, &(cell){r, setting, spread, i});
    }
    (void)fflush(out);
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

static summary summarise(const cell *c, figure_fn figure) {
    double values[SWEEP_MAX_SEEDS];
    size_t n = 0;
    for (uint64_t seed = 0; seed < c->results->plan->n_seeds; seed++) {
        double value = figure(sample_of(c, seed));
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

/* What a table asks. Prints into a cell of COLUMN characters. */
enum { COLUMN = 17 };
typedef void (*print_fn)(FILE *out, const cell *c);

static void print_ratio(FILE *out, const cell *c, figure_fn figure) {
    summary s = summarise(c, figure);
    char text[32] = "-";
    if (!isnan(s.median)) {
        (void)snprintf(text, sizeof text, "%.4f (%.4f)", s.median, s.most);
    }
    (void)fprintf(out, "%*s", COLUMN, text);
}

static void print_times(FILE *out, const cell *c, figure_fn host, figure_fn driver) {
    summary own = summarise(c, host);
    summary drivers = summarise(c, driver);
    char text[32] = "-";
    if (!isnan(own.median)) {
        (void)snprintf(text, sizeof text, "%.2f + %.2f", own.median / 1e6, drivers.median / 1e6);
    }
    (void)fprintf(out, "%*s", COLUMN, text);
}

static void print_held(FILE *out, const cell *c) {
    print_ratio(out, c, held_over_used);
}

static void print_smallest(FILE *out, const cell *c) {
    print_ratio(out, c, smallest_over_used);
}

static void print_times_uncapped(FILE *out, const cell *c) {
    print_times(out, c, host_uncapped, driver_uncapped);
}

static void print_times_tight(FILE *out, const cell *c) {
    print_times(out, c, host_tight, driver_tight);
}

static void print_rows(FILE *out, const sweep_results *r, unsigned setting, print_fn print) {
    const vary_options model = sweep_model(r->plan, setting, 0);
    (void)fprintf(out, "  recompute %s, %" PRIu64 " stream%s\n", model.recompute ? "on" : "off",
                  1 + model.side_streams, model.side_streams > 0 ? "s" : "");
    for (size_t i = 0; i < r->n_contenders; i++) {
        if (is_absent(r, i)) {
            continue;
        }
        (void)fprintf(out, "    %-16s", r->contenders[i]->name);
        for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
            print(out, &(cell){r, setting, spread, i});
        }
        (void)putc('\n', out);
    }
}

static void print_table(FILE *out, const sweep_results *r, const char *title, print_fn print) {
    (void)fprintf(out, "\n%s\n  %-18s", title, "spread");
    for (unsigned spread = 0; spread < SWEEP_SPREADS; spread++) {
        (void)fprintf(out, "%*u %%", COLUMN - 2, sweep_spreads[spread]);
    }
    (void)putc('\n', out);
    for (unsigned setting = 0; setting < SWEEP_SETTINGS; setting++) {
        print_rows(out, r, setting, print);
    }
}

static void print_loop(FILE *out, const vary_options *m) {
    (void)fprintf(out,
                  "\n%" PRIu64 " steps of %" PRIu64 " layers, hidden %" PRIu64 "; batch %" PRIu64
                  " and sequence %" PRIu64 ", at 100 %% %" PRIu64 ":%" PRIu64 " and %" PRIu64
                  ":%" PRIu64 "\n",
                  m->steps, m->layers, m->hidden, m->batch.max, m->sequence.max, m->batch.min,
                  m->batch.max, m->sequence.min, m->sequence.max);
}

void sweep_report_tables(FILE *out, const sweep_results *r) {
    const sweep_plan *plan = r->plan;
    char title[160];
    print_loop(out, &plan->model);
    (void)snprintf(title, sizeof title,
                   "held / used without a cap: median of %" PRIu64 " seeds (most)", plan->n_seeds);
    print_table(out, r, title, print_held);
    (void)snprintf(title, sizeof title, "smallest capacity%s / used: median (most)",
                   plan->judge == plan->replay.device ? "" : ", on the virtual GPU,");
    print_table(out, r, title, print_smallest);
    print_table(out, r, "host + driver, ms a step, without a cap: medians", print_times_uncapped);
    (void)snprintf(title, sizeof title,
                   "host + driver, ms a step, %d %% above its smallest capacity: medians",
                   SWEEP_ABOVE_PERCENT);
    print_table(out, r, title, print_times_tight);
    for (size_t i = 0; i < r->n_contenders; i++) {
        if (is_absent(r, i)) {
            (void)fprintf(out, "\n%s is absent: %s\n", r->contenders[i]->name,
                          sweep_sample_at(r, 0, 0, 0, i)->message);
        }
    }
}
