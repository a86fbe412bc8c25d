/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench generate fsdp: what does an allocator hold when the host runs ahead of two streams
 * that use each other's memory, and do the streams still overlap?
 */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"
#include "bench/cli/generate.h"
#include "bench/cli/report.h"
#include "bench/workloads/fsdp_run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIANTS = N_CONTENDERS + 1, MAX_RUNS = 1000 };

typedef struct fsdp_command_options {
    bench_options shared;
    fsdp_options model;
    uint64_t n_runs;
    const char *trace_file; /* NULL: none */
    const char *timeline;   /* NULL: none */
} fsdp_command_options;

/* A contender with its settings: Ductile comes with either way of record_stream. */
typedef struct variant {
    const contender_ops *contender;
    const char *label;
    const char *settings[BENCH_MAX_SETTINGS + 1];
    size_t n_settings;
} variant;

/* One run of the command. */
typedef struct fsdp_command {
    const fsdp_command_options *own;
    bench_device device;
    fsdp_program program;
    trace *trace; /* of its allocations */
    variant variants[MAX_VARIANTS];
    size_t n_variants;
    uint64_t alone_ns[FSDP_N_STREAMS]; /* steady_ns while the other's work takes no time */
    timeline timeline;
    const variant *sampled; /* the variant under way: samples are its */
    bool has_failed;
} fsdp_command;

/* ---- Options ------------------------------------------------------------------------------- */

static bool complete(bench_parser *p) {
    const fsdp_command_options *o = p->own;
    const char *refusal = fsdp_check(&o->model);
    return refusal == NULL || bench_refuse(p, "%s", refusal);
}

#define AT(member) offsetof(fsdp_command_options, member)
#define NUMBER(option, member, least, text)                                                        \
    BENCH_NUMBER_OPTION(option, fsdp_command_options, member, least, text)
#define INTERVAL(option, member, text)                                                             \
    BENCH_INTERVAL_OPTION(option, fsdp_command_options, member, text)

/* fsdp_check has the bounds of the model. */
static const bench_option own_options[] = {
    NUMBER("--layers", model.layers, 0, "layers, of two units each"),
    NUMBER("--hidden", model.hidden, 0, "width of the model"),
    NUMBER("--ranks", model.ranks, 0, "GPUs that share the parameters"),
    INTERVAL("--tokens", model.tokens_min, "tokens, drawn for every step"),
    NUMBER("--prefetch", model.prefetch, 0, "units gathered ahead of the one in use"),
    NUMBER("--hold", model.hold, 0, "gradients kept while they are reduced"),
    NUMBER("--limiter", model.limiter, 0, "gathered units, of which the host waits for the oldest"),
    NUMBER("--steps", model.steps, 0, "training steps"),
    NUMBER("--seed", model.seed, 0, "seed of the random numbers"),
    {"--runs", "N", bench_parse_number, .help = "runs of each contender, with other durations each",
     .offset = AT(n_runs), .min = 1, .max = MAX_RUNS},
    GENERATE_TRACE_OPTION(fsdp_command_options),
    {"--timeline", "FILE", bench_parse_text,
     .help = "write live and reserved memory over time as CSV; a folder gets timeline.csv",
     .offset = AT(timeline)},
    {0},
};

#undef AT

static const fsdp_command_options defaults = {
    .model = {.layers = 12,
              .hidden = 4096,
              .ranks = 64,
              .tokens_min = 2048,
              .tokens_max = 8192,
              .steps = 6,
              .prefetch = 3,
              .hold = 1,
              .seed = 1},
    .n_runs = 3,
};

/* ---- Variants ------------------------------------------------------------------------------ */

static bool chooses_record_stream(const bench_options *o) {
    for (size_t i = 0; i < o->n_settings; i++) {
        if (strncmp(o->settings[i], "record_stream", strlen("record_stream")) == 0) {
            return true;
        }
    }
    return false;
}

static variant *add_variant(fsdp_command *c, const contender_ops *contender, const char *label) {
    variant *v = &c->variants[c->n_variants++];
    *v = (variant){.contender = contender, .label = label};
    return v;
}

static void add_ductile(fsdp_command *c, const char *label, const char *setting) {
    variant *v = add_variant(c, &contender_ductile, label);
    memcpy(v->settings, c->own->shared.settings, sizeof c->own->shared.settings);
    v->n_settings = c->own->shared.n_settings;
    if (setting != NULL) {
        v->settings[v->n_settings++] = setting;
    }
}

static void choose_variants(fsdp_command *c) {
    for (size_t i = 0; i < c->own->shared.n_contenders; i++) {
        const contender_ops *contender = c->own->shared.contenders[i];
        if (contender != &contender_ductile) {
            (void)add_variant(c, contender, contender->name);
        } else if (chooses_record_stream(&c->own->shared)) {
            add_ductile(c, "ductile", NULL);
        } else {
            add_ductile(c, "ductile poll", "record_stream=poll");
            add_ductile(c, "ductile wait", "record_stream=wait");
        }
    }
}

/* ---- Reports ------------------------------------------------------------------------------- */

/* 1: the shorter of the two streams' work is hidden behind the other's; 0: they take turns. */
static double overlap(const fsdp_command *c, const fsdp_result *result) {
    double compute = (double)c->alone_ns[FSDP_COMPUTE];
    double communication = (double)c->alone_ns[FSDP_COMMUNICATION];
    double least = compute < communication ? compute : communication;
    return least > 0 ? (compute + communication - (double)result->steady_ns) / least : 0;
}

static double efficiency(const fsdp_command *c, const fsdp_result *result) {
    uint64_t reserved = result->stats.reserved_peak_bytes;
    return reserved > 0 ? (double)c->trace->live_peak_bytes / (double)reserved : 0;
}

static void begin_table(const fsdp_command *c) {
    provenance_print_heading(stdout, &c->device);
    printf("\nfsdp: %" PRIu64 " events, %" PRIu64
           " steps, live peak %.1f MiB\nafter the first step, compute "
           "alone takes %.1f ms, communication alone %.1f ms\n",
           c->trace->n_file_events, c->trace->n_steps, bench_mib(c->trace->live_peak_bytes),
           (double)c->alone_ns[FSDP_COMPUTE] / 1e6, (double)c->alone_ns[FSDP_COMMUNICATION] / 1e6);
    printf("  %-15s %3s %12s %10s %10s %9s %7s %8s %10s %11s %9s\n", "contender", "run",
           "reserved MiB", "efficiency", "elapsed ms", "steady ms", "overlap", "gap us",
           "host waits", "event waits", "creates");
}

static void print_row(const fsdp_command *c, const variant *v, uint64_t index,
                      const fsdp_result *r) {
    printf("  %-15s %3" PRIu64, v->label, index);
    switch (r->outcome) {
    case RUN_COMPLETED:
        printf(" %12.1f %10.4f %10.2f %9.2f %7.3f %8.1f %10" PRIu64 " %11" PRIu64 " %9" PRIu64 "\n",
               bench_mib(r->stats.reserved_peak_bytes), efficiency(c, r),
               (double)r->elapsed_ns / 1e6, (double)r->steady_ns / 1e6, overlap(c, r),
               (double)r->gap_mean_ns / 1e3, r->stats.stream_syncs, r->stats.event_waits,
               r->stats.creates);
        break;
    case RUN_OUT_OF_MEMORY:
        printf(" out of memory, %.1f MiB reserved\n", bench_mib(r->stats.reserved_peak_bytes));
        break;
    case RUN_ABSENT:
        printf(" absent: %s\n", r->message);
        break;
    case RUN_FAILED:
        printf(" failed: %s\n", r->message);
        break;
    }
}

static void print_model(dti_json *j, const fsdp_options *o) {
    dti_json_number(j, "layers", o->layers);
    dti_json_number(j, "hidden", o->hidden);
    dti_json_number(j, "ranks", o->ranks);
    dti_json_number(j, "tokens_min", o->tokens_min);
    dti_json_number(j, "tokens_max", o->tokens_max);
    dti_json_number(j, "steps", o->steps);
    dti_json_number(j, "prefetch", o->prefetch);
    dti_json_number(j, "hold", o->hold);
    dti_json_number(j, "limiter", o->limiter);
    dti_json_number(j, "seed", o->seed);
}

static void print_figures(dti_json *j, const fsdp_command *c, const fsdp_result *r) {
    dti_json_number(j, "reserved_peak_bytes", r->stats.reserved_peak_bytes);
    dti_json_real(j, "efficiency", efficiency(c, r), 6);
    dti_json_real(j, "elapsed_us", (double)r->elapsed_ns / 1e3, 3);
    dti_json_real(j, "steady_us", (double)r->steady_ns / 1e3, 3);
    dti_json_real(j, "compute_alone_us", (double)c->alone_ns[FSDP_COMPUTE] / 1e3, 3);
    dti_json_real(j, "communication_alone_us", (double)c->alone_ns[FSDP_COMMUNICATION] / 1e3, 3);
    dti_json_real(j, "overlap", overlap(c, r), 4);
    dti_json_real(j, "gap_mean_us", (double)r->gap_mean_ns / 1e3, 3);
    dti_json_real(j, "gap_most_us", (double)r->gap_most_ns / 1e3, 3);
    dti_json_number(j, "stream_syncs", r->stats.stream_syncs);
    dti_json_number(j, "event_waits", r->stats.event_waits);
    dti_json_number(j, "creates", r->stats.creates);
    dti_json_number(j, "releases", r->stats.releases);
    dti_json_real(j, "driver_time_us", (double)r->stats.driver_time_ns / 1e3, 3);
    dti_json_number(j, "tags", r->n_tags);
    dti_json_number(j, "wrong_tags", r->wrong_tags);
    dti_json_number(j, "violations", r->violations);
}

static void print_json(const fsdp_command *c, const variant *v, uint64_t index,
                       const fsdp_result *r) {
    dti_json j = provenance_begin_row(stdout);
    provenance_json(&j, &c->device);
    dti_json_text(&j, "trace", "fsdp");
    dti_json_text(&j, "contender", v->contender->name);
    dti_json_text(&j, "variant", v->label);
    dti_json_number(&j, "run", index);
    if (v->contender == &contender_ductile) {
        dti_json_texts(&j, "settings", v->settings, v->n_settings);
    }
    print_model(&j, &c->own->model);
    dti_json_number(&j, "events", c->trace->n_file_events);
    dti_json_number(&j, "live_peak_bytes", c->trace->live_peak_bytes);
    dti_json_bool(&j, "completed", r->outcome == RUN_COMPLETED);
    if (r->outcome == RUN_ABSENT || r->outcome == RUN_FAILED) {
        dti_json_text(&j, "reason", r->message);
    } else {
        print_figures(&j, c, r);
    }
    dti_json_end_line(&j);
}

static void note_failure(fsdp_command *c, const variant *v, const fsdp_result *r) {
    if (r->outcome == RUN_FAILED) {
        bench_complain("generate fsdp: %s: %s", v->label, r->message);
    } else if (r->wrong_tags > 0) {
        bench_complain("generate fsdp: %s: %" PRIu64 " of %" PRIu64
                       " tags were overwritten while in use",
                       v->label, r->wrong_tags, r->n_tags);
    } else if (r->violations > 0) {
        bench_complain("generate fsdp: %s: %" PRIu64 " violations, the last: %s", v->label,
                       r->violations, r->last_violation);
    } else {
        return;
    }
    c->has_failed = true;
}

/* ---- Running ------------------------------------------------------------------------------- */

static void take_sample(void *user, uint64_t event, uint64_t live_bytes,
                        const contender_stats *stats) {
    fsdp_command *c = user;
    timeline_add(&c->timeline, "fsdp", c->sampled->label, event, live_bytes,
                 c->trace->live_peak_bytes, stats);
}

static fsdp_run_spec make_spec(const fsdp_command *c, const variant *v, uint64_t seed) {
    fsdp_run_spec spec = {.program = &c->program,
                          .plan = bench_plan_of(&c->own->shared, &c->device, v->contender),
                          .seed = seed};
    spec.plan.settings = v->settings;
    spec.plan.n_settings = v->n_settings;
    return spec;
}

/* What each stream takes on its own, under the first variant. */
static void measure_alone(fsdp_command *c) {
    for (size_t i = 0; i < FSDP_N_STREAMS; i++) {
        fsdp_run_spec spec = make_spec(c, &c->variants[0], 1);
        fsdp_result result;
        spec.is_idle[FSDP_N_STREAMS - 1 - i] = true;
        fsdp_run(&spec, &result);
        c->alone_ns[i] = result.steady_ns;
    }
}

/* The first run of each variant gives the timeline. */
static void run_once(fsdp_command *c, const variant *v, uint64_t index) {
    fsdp_run_spec spec = make_spec(c, v, index);
    fsdp_result result;
    if (c->timeline.file != NULL && index == 1) {
        c->sampled = v;
        spec.sample = take_sample;
        spec.user = c;
    }
    fsdp_run(&spec, &result);
    if (c->own->shared.json) {
        print_json(c, v, index, &result);
    } else {
        print_row(c, v, index, &result);
    }
    (void)fflush(stdout);
    note_failure(c, v, &result);
}

static int run_all(fsdp_command *c) {
    measure_alone(c);
    if (!c->own->shared.json) {
        begin_table(c);
    }
    for (size_t i = 0; i < c->n_variants; i++) {
        for (uint64_t k = 1; k <= c->own->n_runs; k++) {
            run_once(c, &c->variants[i], k);
        }
    }
    bool is_written = report_close_timeline(&c->timeline, c->own->timeline);
    return c->has_failed || !is_written ? BENCH_FAILED : BENCH_DONE;
}

static int find_device_and_run(fsdp_command *c) {
    if (!bench_find_device(&c->own->shared, &c->device) ||
        !report_open_timeline(&c->timeline, c->own->timeline, &c->device)) {
        return BENCH_FAILED;
    }
    choose_variants(c);
    return run_all(c);
}

static int write_or_run(fsdp_command *c) {
    trace_builder b;
    const char *reason = fsdp_generate(&c->program, &b);
    if (reason != NULL) {
        bench_complain("generate fsdp: %s", reason);
        return BENCH_FAILED;
    }
    if (c->own->trace_file != NULL) {
        return generate_write(&generate_fsdp, c->own, &b, c->own->trace_file);
    }
    c->trace = generate_trace(&generate_fsdp, &b);
    return c->trace != NULL ? find_device_and_run(c) : BENCH_FAILED;
}

static int run(const bench_options *options) {
    fsdp_command c = {.own = (const fsdp_command_options *)options};
    if (!fsdp_build(&c.own->model, &c.program)) {
        bench_complain("the host has no memory left");
        return BENCH_FAILED;
    }
    int status = write_or_run(&c);
    fsdp_drop(&c.program);
    trace_free(c.trace);
    return status;
}

const bench_command generate_fsdp = {
    .name = "generate fsdp",
    .brief = "training steps with sharded parameters: two streams that use each other's memory",
    .summary =
        "Runs training steps with sharded parameters: a communication stream gathers parameters\n"
        "ahead of compute and reduces gradients behind it, with work on real streams. Ductile "
        "runs\n"
        "with record_stream=poll and with record_stream=wait, unless --set chooses one.",
    .own = own_options,
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
