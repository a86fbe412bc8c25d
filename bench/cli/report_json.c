/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/report_json.h"

#include "bench/base/provenance.h"

#include <math.h>

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
    provenance_json(j, spec->device);
    dti_json_text(j, "trace", t->name);
    dti_json_text(j, "file", t->path);
    dti_json_text(j, "contender", spec->contender->name);
    if (spec->contender == &contender_ductile || spec->contender == &contender_planned) {
        dti_json_texts(j, "settings", spec->settings, spec->n_settings);
    }
    if (t->is_snapshot) {
        dti_json_number(j, "gpu", (uint64_t)t->gpu);
    }
    dti_json_number(j, "events", t->n_file_events);
    dti_json_number(j, "steps", t->n_steps);
    dti_json_number(j, "streams", t->n_streams);
    dti_json_number(j, "passes", spec->n_passes);
    if (t->is_varied) {
        dti_json_number(j, "vary_seed", t->vary_seed);
    }
    dti_json_text(j, "schedule", schedule_name(spec->pace.schedule));
    dti_json_number(j, "lag", spec->pace.lag);
    if (spec->pace.has_old_driver) {
        dti_json_number(j, "old_driver", 1);
    }
    dti_json_number(j, "capacity_bytes",
                    spec->capacity_bytes != 0 ? spec->capacity_bytes
                                              : spec->device->caps.total_bytes);
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
                  replay_wall_ns_per_op(&result->last, spec->device->is_virtual), 2);
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

/* The share of requests holds for the last pass, as the memory that it used. */
static void print_plan(dti_json *j, const replay_result *result) {
    const contender_plan_stats *plan = &result->last.stats.plan;
    dti_json_open(j, "plan", '{');
    dti_json_number(j, "requests", plan->requests);
    dti_json_number(j, "placed", plan->placed);
    dti_json_number(j, "layouts", result->total.plan.layouts);
    dti_json_real(j, "host_us", (double)result->total.plan.host_ns / 1e3, 3);
    dti_json_number(j, "touched_bytes", plan->touched_bytes);
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
    dti_json_real(j, "efficiency", has_efficiency ? report_efficiency(spec, result) : NAN, 6);
    dti_json_bool(j, "completed", completed);
    if (!completed) {
        print_stop(j, result);
    }
    print_times(j, spec, result);
    print_counts(j, &result->total);
    dti_json_number(j, "address_span_bytes", result->total.address_span_bytes);
    if (spec->contender == &contender_planned) {
        print_plan(j, result);
    }
    print_pass(j, "first_pass", &result->first, spec->device->is_virtual);
    print_pass(j, "last_pass", &result->last, spec->device->is_virtual);
    print_pass(j, "all_passes", &result->all, spec->device->is_virtual);
    dti_json_number(j, "forced_gates", result->forced_gates);
    dti_json_real(j, "forced_wait_us", (double)result->last.waited_ns / 1e3, 3);
    dti_json_number(j, "violations", result->violations);
}

static void print_min_capacity(dti_json *j, const report_row *row) {
    dti_json_text(j, "min_capacity_device",
                  row->min_is_modelled || row->spec->device->is_virtual ? "virtual" : "cuda");
    if (row->min_capacity_bytes == 0) {
        dti_json_null(j, "min_capacity_bytes");
        dti_json_null(j, "min_capacity_efficiency");
        return;
    }
    dti_json_number(j, "min_capacity_bytes", row->min_capacity_bytes);
    dti_json_real(j, "min_capacity_efficiency",
                  (double)row->spec->trace->live_peak_bytes / (double)row->min_capacity_bytes, 6);
}

void report_json(FILE *out, const report_row *row) {
    dti_json j = dti_json_begin_line(out);
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
            print_min_capacity(&j, row);
        }
        if (row->is_tight) {
            dti_json_number(&j, "above_min_percent", row->above_min_percent);
        }
    }
    dti_json_end_line(&j);
}
