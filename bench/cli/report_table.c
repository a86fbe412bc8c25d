/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/report_table.h"

#include "vmm/base/align.h"

#include <inttypes.h>

static double mib(uint64_t bytes) {
    return (double)bytes / (double)DTI_MIB;
}

static void print_trace(FILE *out, const trace *t) {
    (void)fprintf(out, "\n%s", t->name);
    if (t->is_snapshot) {
        (void)fprintf(out, ", GPU %d", t->gpu);
    }
    (void)fprintf(out, ": %" PRIu64 " events, %zu stream%s", t->n_file_events, t->n_streams,
                  t->n_streams == 1 ? "" : "s");
    if (t->n_steps > 0) {
        (void)fprintf(out, ", %" PRIu64 " steps", t->n_steps);
    }
    (void)fprintf(out, ", live peak %.1f MiB", mib(t->live_peak_bytes));
    if (t->is_varied) {
        (void)fprintf(out, ", varied by seed %" PRIu64, t->vary_seed);
    }
    (void)fputc('\n', out);
}

void report_table_begin(FILE *out, const trace *t, bool has_min_capacity) {
    print_trace(out, t);
    (void)fprintf(out, "  %-15s %12s %10s", "contender", "reserved MiB", "efficiency");
    if (has_min_capacity) {
        (void)fprintf(out, " %16s %10s", "smallest cap MiB", "efficiency");
    }
    (void)fprintf(out, " %9s %10s %10s %9s %9s %7s %10s\n", "ns/op", "wall ns/op", "driver ms",
                  "creates", "maps", "syncs", "span MiB");
}

static void print_min_capacity(FILE *out, const report_row *row) {
    if (row->min_capacity_bytes == 0) {
        (void)fprintf(out, " %16s %10s", "none found", "-");
        return;
    }
    (void)fprintf(out, " %16.1f %10.4f", mib(row->min_capacity_bytes),
                  (double)row->spec->trace->live_peak_bytes / (double)row->min_capacity_bytes);
}

static void print_figures(FILE *out, const report_row *row) {
    const replay_result *result = row->result;
    const contender_stats *total = &result->total;
    (void)fprintf(out, " %12.1f %10.4f", mib(total->reserved_peak_bytes),
                  report_efficiency(row->spec, result));
    if (row->has_min_capacity) {
        print_min_capacity(out, row);
    }
    (void)fprintf(out, " %9.1f %10.1f %10.2f", result->ns_per_op,
                  replay_wall_ns_per_op(&result->last, row->spec->device->is_virtual),
                  (double)result->last.stats.driver_time_ns / 1e6);
    (void)fprintf(out, " %9" PRIu64 " %9" PRIu64 " %7" PRIu64 " %10.1f", total->creates,
                  total->maps, total->stream_syncs, mib(total->address_span_bytes));
}

static void print_out_of_memory(FILE *out, const report_row *row) {
    const replay_result *result = row->result;
    uint64_t cap = row->spec->capacity_bytes;
    (void)fprintf(out, " out of memory at event %" PRIu64 " of pass %" PRIu64 ", %.1f MiB reserved",
                  result->stopped_at_event, result->stopped_in_pass,
                  mib(result->total.reserved_peak_bytes));
    (void)fprintf(out, " of %.1f", mib(cap != 0 ? cap : row->spec->device->caps.total_bytes));
}

static void print_notes(FILE *out, const replay_result *result) {
    if (result->forced_gates > 0) {
        (void)fprintf(out, "    waited on the host for %" PRIu64 " uses by other streams\n",
                      result->forced_gates);
    }
    const contender_stats *total = &result->total;
    if (total->pressure_waits > 0 || total->pressure_returns > 0) {
        (void)fprintf(out,
                      "    short of memory: the host waited %" PRIu64 " times, %.1f MiB went back "
                      "to the driver in %" PRIu64 "\n",
                      total->pressure_waits, mib(total->pressure_returned_bytes),
                      total->pressure_returns);
    }
    if (result->violations > 0) {
        (void)fprintf(out, "    %" PRIu64 " violations; the last: %s\n", result->violations,
                      result->last_violation);
    }
}

typedef void (*figures_fn)(FILE *out, const report_row *row);

static void print_outcome(FILE *out, const report_row *row, figures_fn print_completed) {
    switch (row->result->outcome) {
    case RUN_COMPLETED:
        print_completed(out, row);
        break;
    case RUN_OUT_OF_MEMORY:
        print_out_of_memory(out, row);
        break;
    case RUN_ABSENT:
        (void)fprintf(out, " absent: %s", row->result->message);
        break;
    case RUN_FAILED:
        (void)fprintf(out, " failed: %s", row->result->message);
        break;
    }
    (void)putc('\n', out);
    print_notes(out, row->result);
}

static void print_calls(FILE *out, const char *when, const call_summary *calls) {
    if (calls->calls > 0) {
        (void)fprintf(out,
                      "    a call, %s: median %" PRIu64 " ns, 99th percentile %" PRIu64
                      " ns, worst %" PRIu64 " ns\n",
                      when, calls->median_ns, calls->p99_ns, calls->worst_ns);
    }
}

void report_table_row(FILE *out, const report_row *row) {
    (void)fprintf(out, "  %-15s", row->spec->contender->name);
    print_outcome(out, row, print_figures);
    if (row->calls != NULL && row->calls->outcome == RUN_COMPLETED) {
        print_calls(out, "cold", &row->calls->cold_calls);
        print_calls(out, "warm", &row->calls->warm_calls);
    }
}

/* ---- Near the smallest capacity ------------------------------------------------------------ */

void report_tight_begin(FILE *out, const trace *t, bool min_is_modelled) {
    print_trace(out, t);
    if (min_is_modelled) {
        (void)fprintf(out, "  the smallest capacities are those of the virtual GPU\n");
    }
    (void)fprintf(out, "  %-15s %14s %12s %10s %9s %9s %9s %11s %10s %9s %9s\n", "contender",
                  "capacity MiB", "reserved MiB", "efficiency", "first ms", "last ms", "all ms",
                  "first waits", "last waits", "creates", "releases");
}

static void print_tight_figures(FILE *out, const report_row *row) {
    const replay_result *result = row->result;
    bool is_virtual = row->spec->device->is_virtual;
    (void)fprintf(out, " %12.1f %10.4f", mib(result->total.reserved_peak_bytes),
                  report_efficiency(row->spec, result));
    (void)fprintf(out, " %9.2f %9.2f %9.2f", replay_wall_ns(&result->first, is_virtual) / 1e6,
                  replay_wall_ns(&result->last, is_virtual) / 1e6,
                  replay_wall_ns(&result->all, is_virtual) / 1e6);
    (void)fprintf(out, " %11" PRIu64 " %10" PRIu64 " %9" PRIu64 " %9" PRIu64,
                  result->first.stats.stream_syncs, result->last.stats.stream_syncs,
                  result->total.creates, result->total.releases);
}

void report_tight_row(FILE *out, const report_row *row) {
    (void)fprintf(out, "  %-15s", row->spec->contender->name);
    if (row->is_tight) {
        (void)fprintf(out, " %14.1f", mib(row->spec->capacity_bytes));
    } else {
        (void)fprintf(out, " %14s", "uncapped");
    }
    print_outcome(out, row, print_tight_figures);
}
