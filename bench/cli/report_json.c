/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/report_json.h"

#include "bench/base/provenance.h"

#include <inttypes.h>

static void print_number(FILE *out, const char *name, uint64_t value) {
    (void)fprintf(out, ",\"%s\":%" PRIu64, name, value);
}

static void print_real(FILE *out, const char *name, double value, int digits) {
    (void)fprintf(out, ",\"%s\":%.*f", name, digits, value);
}

static void print_bool(FILE *out, const char *name, bool value) {
    (void)fprintf(out, ",\"%s\":%s", name, value ? "true" : "false");
}

static void print_text(FILE *out, const char *name, const char *text) {
    (void)fprintf(out, ",\"%s\":", name);
    print_json_string(out, text);
}

static void print_settings(FILE *out, const replay_spec *spec) {
    (void)fputs(",\"settings\":[", out);
    for (size_t i = 0; i < spec->n_settings; i++) {
        (void)fputs(i > 0 ? "," : "", out);
        print_json_string(out, spec->settings[i]);
    }
    (void)putc(']', out);
}

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
static void print_spec(FILE *out, const replay_spec *spec) {
    const trace *t = spec->trace;
    (void)putc('{', out);
    provenance_print_json(out, spec->device);
    (void)fputs("\"trace\":", out);
    print_json_string(out, t->name);
    print_text(out, "file", t->path);
    print_text(out, "contender", spec->contender->name);
    if (spec->contender == &contender_ductile) {
        print_settings(out, spec);
    }
    if (t->is_snapshot) {
        print_number(out, "gpu", (uint64_t)t->gpu);
    }
    print_number(out, "events", t->n_file_events);
    print_number(out, "steps", t->n_steps);
    print_number(out, "streams", t->n_streams);
    print_number(out, "passes", spec->n_passes);
    if (t->is_varied) {
        print_number(out, "vary_seed", t->vary_seed);
    }
    print_text(out, "schedule", schedule_name(spec->pace.schedule));
    print_number(out, "lag", spec->pace.lag);
    if (spec->pace.has_old_driver) {
        print_number(out, "old_driver", 1);
    }
    print_number(out, "capacity_bytes",
                 spec->capacity_bytes != 0 ? spec->capacity_bytes : spec->device->caps.total_bytes);
    print_number(out, "live_peak_bytes", t->live_peak_bytes);
}

static void print_counts(FILE *out, const contender_stats *stats) {
    print_number(out, "creates", stats->creates);
    print_number(out, "releases", stats->releases);
    print_number(out, "maps", stats->maps);
    print_number(out, "unmaps", stats->unmaps);
    print_number(out, "stream_syncs", stats->stream_syncs);
    print_number(out, "event_waits", stats->event_waits);
    print_number(out, "pressure_waits", stats->pressure_waits);
    print_number(out, "pressure_returns", stats->pressure_returns);
    print_number(out, "pressure_returned_bytes", stats->pressure_returned_bytes);
}

static void print_times(FILE *out, const replay_spec *spec, const replay_result *result) {
    print_real(out, "ns_per_op", result->ns_per_op, 2);
    print_real(out, "wall_ns_per_op",
               replay_wall_ns_per_op(&result->last, spec->device->is_virtual), 2);
    print_real(out, "loop_ns_per_op", result->loop_ns_per_op, 2);
    print_real(out, "driver_time_us", (double)result->last.stats.driver_time_ns / 1e3, 3);
    print_real(out, "driver_host_us", (double)result->last.stats.driver_host_ns / 1e3, 3);
}

/* The first pass: what it costs to become warm. The last: what is still done then. */
static void print_pass(FILE *out, const char *name, const replay_pass *pass, bool is_virtual) {
    (void)fprintf(out, ",\"%s\":{\"ops\":%" PRIu64, name, pass->ops);
    print_counts(out, &pass->stats);
    print_real(out, "driver_time_us", (double)pass->stats.driver_time_ns / 1e3, 3);
    print_real(out, "wall_us", replay_wall_ns(pass, is_virtual) / 1e3, 3);
    (void)putc('}', out);
}

static void print_stop(FILE *out, const replay_result *result) {
    print_text(out, "reason",
               result->outcome == RUN_OUT_OF_MEMORY ? "out of memory" : result->message);
    print_number(out, "stopped_at_event", result->stopped_at_event);
    print_number(out, "stopped_in_pass", result->stopped_in_pass);
}

static void print_result(FILE *out, const replay_spec *spec, const replay_result *result) {
    bool completed = result->outcome == RUN_COMPLETED;
    print_number(out, "reserved_peak_bytes", result->total.reserved_peak_bytes);
    if (completed && result->total.reserved_peak_bytes > 0) {
        print_real(out, "efficiency", report_efficiency(spec, result), 6);
    } else {
        (void)fputs(",\"efficiency\":null", out);
    }
    print_bool(out, "completed", completed);
    if (!completed) {
        print_stop(out, result);
    }
    print_times(out, spec, result);
    print_counts(out, &result->total);
    print_number(out, "address_span_bytes", result->total.address_span_bytes);
    print_pass(out, "first_pass", &result->first, spec->device->is_virtual);
    print_pass(out, "last_pass", &result->last, spec->device->is_virtual);
    print_pass(out, "all_passes", &result->all, spec->device->is_virtual);
    print_number(out, "forced_gates", result->forced_gates);
    print_real(out, "forced_wait_us", (double)result->last.waited_ns / 1e3, 3);
    print_number(out, "violations", result->violations);
}

static void print_calls(FILE *out, const char *name, const call_summary *calls) {
    (void)fprintf(out, ",\"%s\":{\"calls\":%" PRIu64, name, calls->calls);
    print_number(out, "median", calls->median_ns);
    print_number(out, "p99", calls->p99_ns);
    print_number(out, "worst", calls->worst_ns);
    (void)putc('}', out);
}

static void print_min_capacity(FILE *out, const report_row *row) {
    print_text(out, "min_capacity_device",
               row->min_is_modelled || row->spec->device->is_virtual ? "virtual" : "cuda");
    if (row->min_capacity_bytes == 0) {
        (void)fputs(",\"min_capacity_bytes\":null,\"min_capacity_efficiency\":null", out);
        return;
    }
    print_number(out, "min_capacity_bytes", row->min_capacity_bytes);
    print_real(out, "min_capacity_efficiency",
               (double)row->spec->trace->live_peak_bytes / (double)row->min_capacity_bytes, 6);
}

void report_json(FILE *out, const report_row *row) {
    print_spec(out, row->spec);
    if (row->result->outcome == RUN_ABSENT) {
        print_bool(out, "absent", true);
        print_text(out, "reason", row->result->message);
    } else {
        print_result(out, row->spec, row->result);
        if (row->calls != NULL && row->calls->outcome == RUN_COMPLETED) {
            print_calls(out, "cold_call_ns", &row->calls->cold_calls);
            print_calls(out, "warm_call_ns", &row->calls->warm_calls);
        }
        if (row->has_min_capacity) {
            print_min_capacity(out, row);
        }
        if (row->is_tight) {
            print_number(out, "above_min_percent", row->above_min_percent);
        }
    }
    (void)fputs("}\n", out);
}
