/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/report.h"

#include "bench/base/provenance.h"
#include "bench/cli/cli.h"

#include <inttypes.h>
#include <math.h>

/* Live peak by reserved peak. Only of a completed replay. */
static double efficiency(const replay_spec *spec, const replay_result *result) {
    return (double)spec->trace->live_peak_bytes / (double)result->total.reserved_peak_bytes;
}

/* ---- Tables -------------------------------------------------------------------------------- */

static void print_trace(const trace *t) {
    printf("\n%s", t->name);
    if (t->is_snapshot) {
        printf(", GPU %d", t->gpu);
    }
    printf(": %" PRIu64 " events, %zu stream%s", t->n_file_events, t->n_streams,
           t->n_streams == 1 ? "" : "s");
    if (t->pools.n > 0) {
        printf(", %zu pool%s", t->pools.n, t->pools.n == 1 ? "" : "s");
    }
    if (t->n_steps > 0) {
        printf(", %" PRIu64 " steps", t->n_steps);
    }
    printf(", live peak %.1f MiB", bench_mib(t->live_peak_bytes));
    if (t->is_varied) {
        printf(", varied by seed %" PRIu64, t->vary_seed);
    }
    (void)putchar('\n');
}

void report_table_begin(const trace *t, bool has_min_capacity) {
    print_trace(t);
    printf("  %-15s %12s %10s", "contender", "reserved MiB", "efficiency");
    if (has_min_capacity) {
        printf(" %16s %10s", "smallest cap MiB", "efficiency");
    }
    printf(" %9s %10s %10s %9s %9s %7s %10s\n", "ns/op", "wall ns/op", "driver ms", "creates",
           "maps", "syncs", "span MiB");
}

static void print_min_capacity(const report_row *row) {
    if (row->min_capacity_bytes == 0) {
        printf(" %16s %10s", "none found", "-");
        return;
    }
    printf(" %16.1f %10.4f", bench_mib(row->min_capacity_bytes),
           (double)row->spec->trace->live_peak_bytes / (double)row->min_capacity_bytes);
}

static void print_figures(const report_row *row) {
    const replay_result *result = row->result;
    const contender_stats *total = &result->total;
    printf(" %12.1f %10.4f", bench_mib(total->reserved_peak_bytes), efficiency(row->spec, result));
    if (row->has_min_capacity) {
        print_min_capacity(row);
    }
    printf(" %9.1f %10.1f %10.2f", result->ns_per_op,
           replay_wall_ns_per_op(&result->last, row->spec->plan.device->is_virtual),
           (double)result->last.stats.driver_time_ns / 1e6);
    printf(" %9" PRIu64 " %9" PRIu64 " %7" PRIu64 " %10.1f", total->creates, total->maps,
           total->stream_syncs, bench_mib(total->address_span_bytes));
}

static void print_out_of_memory(const report_row *row) {
    const replay_result *result = row->result;
    printf(" out of memory at event %" PRIu64 " of pass %" PRIu64 ", %.1f MiB reserved",
           result->stopped_at_event + 1, result->stopped_in_pass,
           bench_mib(result->total.reserved_peak_bytes));
    printf(" of %.1f", bench_mib(testbed_capacity(&row->spec->plan)));
}

/* Else what the trace's pools hold serves all. */
static bool keeps_pools(const replay_spec *spec) {
    return spec->plan.contender->use_pool != NULL;
}

static void print_notes(const report_row *row) {
    const replay_result *result = row->result;
    if (row->spec->trace->pools.n > 0 && !keeps_pools(row->spec) && result->outcome != RUN_ABSENT) {
        printf("    it has no pools: what those of the trace keep is not kept\n");
    }
    if (result->forced_gates > 0) {
        printf("    waited on the host for %" PRIu64 " uses by other streams\n",
               result->forced_gates);
    }
    const contender_stats *total = &result->total;
    if (total->pressure_waits > 0 || total->pressure_returns > 0) {
        printf("    short of memory: the host waited %" PRIu64 " times, %.1f MiB went back "
               "to the driver in %" PRIu64 "\n",
               total->pressure_waits, bench_mib(total->pressure_returned_bytes),
               total->pressure_returns);
    }
    if (result->violations > 0) {
        printf("    %" PRIu64 " violations; the last: %s\n", result->violations,
               result->last_violation);
    }
}

typedef void (*figures_fn)(const report_row *row);

static void print_outcome(const report_row *row, figures_fn print_completed) {
    switch (row->result->outcome) {
    case RUN_COMPLETED:
        print_completed(row);
        break;
    case RUN_OUT_OF_MEMORY:
        print_out_of_memory(row);
        break;
    case RUN_ABSENT:
        printf(" absent: %s", row->result->message);
        break;
    case RUN_FAILED:
        printf(" failed: %s", row->result->message);
        break;
    }
    (void)putchar('\n');
    print_notes(row);
}

static void print_calls(const char *when, const call_summary *calls) {
    if (calls->calls > 0) {
        printf("    a call, %s: median %" PRIu64 " ns, 99th percentile %" PRIu64
               " ns, worst %" PRIu64 " ns\n",
               when, calls->median_ns, calls->p99_ns, calls->worst_ns);
    }
}

void report_table_row(const report_row *row) {
    printf("  %-15s", row->spec->plan.contender->name);
    print_outcome(row, print_figures);
    if (row->calls != NULL && row->calls->outcome == RUN_COMPLETED) {
        print_calls("cold", &row->calls->cold_calls);
        print_calls("warm", &row->calls->warm_calls);
    }
}

/* ---- Near the smallest capacity ------------------------------------------------------------ */

void report_tight_begin(const trace *t, bool min_is_modelled) {
    print_trace(t);
    if (min_is_modelled) {
        printf("  the smallest capacities are those of the virtual GPU\n");
    }
    printf("  %-15s %14s %12s %10s %9s %9s %9s %11s %10s %9s %9s\n", "contender", "capacity MiB",
           "reserved MiB", "efficiency", "first ms", "last ms", "all ms", "first waits",
           "last waits", "creates", "releases");
}

static void print_tight_figures(const report_row *row) {
    const replay_result *result = row->result;
    bool is_virtual = row->spec->plan.device->is_virtual;
    printf(" %12.1f %10.4f", bench_mib(result->total.reserved_peak_bytes),
           efficiency(row->spec, result));
    printf(" %9.2f %9.2f %9.2f", replay_wall_ns(&result->first, is_virtual) / 1e6,
           replay_wall_ns(&result->last, is_virtual) / 1e6,
           replay_wall_ns(&result->all, is_virtual) / 1e6);
    printf(" %11" PRIu64 " %10" PRIu64 " %9" PRIu64 " %9" PRIu64, result->first.stats.stream_syncs,
           result->last.stats.stream_syncs, result->total.creates, result->total.releases);
}

void report_tight_row(const report_row *row) {
    printf("  %-15s", row->spec->plan.contender->name);
    if (row->is_tight) {
        printf(" %14.1f", bench_mib(row->spec->plan.capacity_bytes));
    } else {
        printf(" %14s", "uncapped");
    }
    print_outcome(row, print_tight_figures);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static const char *schedule_name(ductile_schedule schedule) {
    static const char *const names[] = {
        [DUCTILE_SCHEDULE_EAGER] = "eager",
        [DUCTILE_SCHEDULE_LAGGING] = "lagging",
        [DUCTILE_SCHEDULE_LAZY] = "lazy",
        [DUCTILE_SCHEDULE_RANDOM] = "random",
    };
    return names[schedule];
}

/* What was asked for. */
static void print_spec(dti_json *j, const replay_spec *spec) {
    const trace *t = spec->trace;
    provenance_json(j, spec->plan.device);
    dti_json_text(j, "trace", t->name);
    dti_json_text(j, "file", t->path);
    dti_json_text(j, "contender", spec->plan.contender->name);
    if (spec->plan.contender == &contender_ductile) {
        dti_json_texts(j, "settings", spec->plan.settings, spec->plan.n_settings);
    }
    if (t->is_snapshot) {
        dti_json_number(j, "gpu", (uint64_t)t->gpu);
    }
    dti_json_number(j, "events", t->n_file_events);
    dti_json_number(j, "steps", t->n_steps);
    dti_json_number(j, "streams", t->n_streams);
    dti_json_number(j, "pools", t->pools.n);
    dti_json_bool(j, "keeps_pools", keeps_pools(spec));
    dti_json_number(j, "passes", spec->n_passes);
    if (t->is_varied) {
        dti_json_number(j, "vary_seed", t->vary_seed);
    }
    dti_json_text(j, "schedule", schedule_name(spec->plan.pace.schedule));
    dti_json_number(j, "lag", spec->plan.pace.lag);
    if (spec->plan.pace.has_old_driver) {
        dti_json_number(j, "old_driver", 1);
    }
    dti_json_number(j, "capacity_bytes", testbed_capacity(&spec->plan));
    dti_json_number(j, "live_peak_bytes", t->live_peak_bytes);
}

static void print_counts(dti_json *j, const contender_stats *stats) {
#define PRINT(name) dti_json_number(j, #name, stats->name);
    CONTENDER_COUNTS_MAP(PRINT)
#undef PRINT
}

static void print_times(dti_json *j, const replay_spec *spec, const replay_result *result) {
    dti_json_real(j, "ns_per_op", result->ns_per_op, 2);
    dti_json_real(j, "wall_ns_per_op",
                  replay_wall_ns_per_op(&result->last, spec->plan.device->is_virtual), 2);
    dti_json_real(j, "loop_ns_per_op", result->loop_ns_per_op, 2);
    dti_json_real(j, "driver_time_us", (double)result->last.stats.driver_time_ns / 1e3, 3);
    dti_json_real(j, "driver_host_us", (double)result->last.stats.driver_host_ns / 1e3, 3);
}

/* The first pass: what it costs to become warm. The last: what is still done then. */
static void print_pass(dti_json *j, const char *name, const replay_pass *pass, bool is_virtual) {
    dti_json_open(j, name, '{');
    dti_json_number(j, "ops", pass->ops);
    print_counts(j, &pass->stats);
    dti_json_real(j, "driver_time_us", (double)pass->stats.driver_time_ns / 1e3, 3);
    dti_json_real(j, "wall_us", replay_wall_ns(pass, is_virtual) / 1e3, 3);
    dti_json_close(j, '}');
}

static void print_stop(dti_json *j, const replay_result *result) {
    dti_json_text(j, "reason",
                  result->outcome == RUN_OUT_OF_MEMORY ? "out of memory" : result->message);
    dti_json_number(j, "stopped_at_event", result->stopped_at_event);
    dti_json_number(j, "stopped_in_pass", result->stopped_in_pass);
}

static void print_result(dti_json *j, const replay_spec *spec, const replay_result *result) {
    bool completed = result->outcome == RUN_COMPLETED;
    bool has_efficiency = completed && result->total.reserved_peak_bytes > 0;
    dti_json_number(j, "reserved_peak_bytes", result->total.reserved_peak_bytes);
    dti_json_real(j, "efficiency", has_efficiency ? efficiency(spec, result) : NAN, 6);
    dti_json_bool(j, "completed", completed);
    if (!completed) {
        print_stop(j, result);
    }
    print_times(j, spec, result);
    print_counts(j, &result->total);
    dti_json_number(j, "address_span_bytes", result->total.address_span_bytes);
    print_pass(j, "first_pass", &result->first, spec->plan.device->is_virtual);
    print_pass(j, "last_pass", &result->last, spec->plan.device->is_virtual);
    print_pass(j, "all_passes", &result->all, spec->plan.device->is_virtual);
    dti_json_number(j, "forced_gates", result->forced_gates);
    dti_json_real(j, "forced_wait_us", (double)result->last.waited_ns / 1e3, 3);
    dti_json_number(j, "violations", result->violations);
}

static void print_min_capacity_json(dti_json *j, const report_row *row) {
    dti_json_text(j, "min_capacity_device",
                  row->min_is_modelled || row->spec->plan.device->is_virtual ? "virtual" : "cuda");
    if (row->min_capacity_bytes == 0) {
        dti_json_null(j, "min_capacity_bytes");
        dti_json_null(j, "min_capacity_efficiency");
        return;
    }
    dti_json_number(j, "min_capacity_bytes", row->min_capacity_bytes);
    dti_json_real(j, "min_capacity_efficiency",
                  (double)row->spec->trace->live_peak_bytes / (double)row->min_capacity_bytes, 6);
}

void report_json(const report_row *row) {
    dti_json j = provenance_begin_row(stdout);
    print_spec(&j, row->spec);
    if (row->result->outcome == RUN_ABSENT) {
        dti_json_bool(&j, "absent", true);
        dti_json_text(&j, "reason", row->result->message);
    } else {
        print_result(&j, row->spec, row->result);
        if (row->calls != NULL && row->calls->outcome == RUN_COMPLETED) {
            call_summary_json(&j, "cold_call_ns", &row->calls->cold_calls);
            call_summary_json(&j, "warm_call_ns", &row->calls->warm_calls);
        }
        if (row->has_min_capacity) {
            print_min_capacity_json(&j, row);
        }
        if (row->is_tight) {
            dti_json_number(&j, "above_min_percent", row->above_min_percent);
        }
    }
    dti_json_end_line(&j);
}

/* ---- Memory over time ---------------------------------------------------------------------- */

bool report_open_timeline(timeline *t, const char *path, const bench_device *device) {
    char reason[256];
    bool ok = path == NULL || timeline_open(t, path, device, reason, sizeof reason);
    if (!ok) {
        bench_complain("--timeline: %s", reason);
    }
    return ok;
}

bool report_close_timeline(timeline *t, const char *path) {
    bool ok = timeline_close(t);
    if (!ok) {
        bench_complain("--timeline: %s: not all could be written", path);
    }
    return ok;
}
