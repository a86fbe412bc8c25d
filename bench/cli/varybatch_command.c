/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench varybatch: how much memory does a transformer's training loop hold under each
 * allocator when batch and sequence length change at every step?
 */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/cli/report_json.h"
#include "bench/cli/report_table.h"
#include "bench/replay/mincap.h"
#include "bench/replay/replay_engine.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_write.h"
#include "bench/workloads/vary_model.h"

#include <inttypes.h>
#include <string.h>

typedef struct varybatch_options {
    bench_options shared;
    vary_options model;
    uint64_t n_passes;
    bool min_capacity;
    const char *trace_file; /* NULL: none */
} varybatch_options;

/* One run of the command. */
typedef struct varybatch_command {
    const varybatch_options *own;
    bench_device device;
    trace *trace;
    bool has_failed;
} varybatch_command;

/* ---- Options ------------------------------------------------------------------------------- */

static vary_options *model_of(bench_parser *p) {
    varybatch_options *o = p->own;
    return &o->model;
}

/* Which of two words it is: false with a message when neither. */
static bool parse_either(bench_parser *p, const char *name, const char *value, const char *first,
                         const char *second, bool *is_first) {
    *is_first = strcmp(value, first) == 0;
    return *is_first || strcmp(value, second) == 0 ||
           bench_refuse(p, "%s is %s or %s, not '%s'", name, first, second, value);
}

static bool parse_recompute(bench_parser *p, const char *value) {
    return parse_either(p, "--recompute", value, "on", "off", &model_of(p)->recompute);
}

static bool parse_optimizer(bench_parser *p, const char *value) {
    bool is_adamw = false;
    bool ok = parse_either(p, "--optimizer", value, "adamw", "sgd", &is_adamw);
    model_of(p)->optimizer = is_adamw ? VARY_ADAMW : VARY_SGD;
    return ok;
}

static bool parse_dtype(bench_parser *p, const char *value) {
    bool is_half = false;
    bool ok = parse_either(p, "--dtype", value, "bf16", "fp32", &is_half);
    model_of(p)->element_bytes = is_half ? 2 : 4;
    return ok;
}

static bool complete(bench_parser *p) {
    const varybatch_options *o = p->own;
    if (o->min_capacity && p->shared->capacity_bytes != 0) {
        return bench_refuse(p,
                            "--min-capacity searches what --capacity sets: give only one of them");
    }
    const char *refusal = vary_check(&o->model);
    return refusal == NULL || bench_refuse(p, "%s", refusal);
}

#define AT(member) offsetof(varybatch_options, member)

/* vary_check has the bounds of the model. */
static const bench_option own_options[] = {
    {"--layers", "N", bench_parse_number, .help = "layers (24)", .offset = AT(model.layers),
     .min = 1},
    {"--hidden", "N", bench_parse_number, .help = "width of the model (1024)",
     .offset = AT(model.hidden), .min = 1},
    {"--heads", "N", bench_parse_number, .help = "attention heads, a divisor of the width (16)",
     .offset = AT(model.heads), .min = 1},
    {"--vocab", "N", bench_parse_number, .help = "words of the vocabulary (50257)",
     .offset = AT(model.vocab), .min = 1},
    {"--batch", "MIN:MAX", bench_parse_interval, .help = "sequences, drawn for every step (1:12)",
     .offset = AT(model.batch), .min = 1},
    {"--seq", "MIN:MAX", bench_parse_interval,
     .help = "tokens per sequence, drawn for every step (64:1024)", .offset = AT(model.sequence),
     .min = 1},
    {"--steps", "N", bench_parse_number, .help = "training steps (50)", .offset = AT(model.steps),
     .min = 1},
    {"--seed", "N", bench_parse_number, .help = "seed of the random numbers (1)",
     .offset = AT(model.seed)},
    {"--recompute", "on|off", parse_recompute,
     .help = "keep only the layers' inputs for the backward (off)"},
    {"--optimizer", "adamw|sgd", parse_optimizer, .help = "the optimizer (adamw)"},
    {"--dtype", "bf16|fp32", parse_dtype, .help = "of weights, activations and gradients (bf16)"},
    {"--repeat", "N", bench_parse_number, .help = "N passes through one allocator (1)",
     .offset = AT(n_passes), .min = 1, .max = 1000000},
    {"--min-capacity", NULL, bench_parse_flag,
     .help = "also find the smallest capacity from which the loop completes",
     .offset = AT(min_capacity)},
    {"--write-trace", "FILE", bench_parse_text,
     .help = "also write the events as a trace for replay", .offset = AT(trace_file)},
    {0},
};

#undef AT

static const varybatch_options defaults = {
    .model = {.layers = 24,
              .hidden = 1024,
              .heads = 16,
              .vocab = 50257,
              .batch = {1, 12},
              .sequence = {64, 1024},
              .steps = 50,
              .seed = 1,
              .element_bytes = 2,
              .optimizer = VARY_ADAMW},
    .n_passes = 1,
};

/* ---- The trace ----------------------------------------------------------------------------- */

static void print_heading(const vary_options *o, char *out, size_t size) {
    (void)snprintf(
        out, size,
        "# ductile-bench varybatch: %" PRIu64 " layers, hidden %" PRIu64 ", %" PRIu64
        " heads, vocabulary %" PRIu64 ",\n# batch %" PRIu64 ":%" PRIu64 ", sequence %" PRIu64
        ":%" PRIu64 ", %" PRIu64 " steps, seed %" PRIu64 ", recompute %s, %s, %s\n",
        o->layers, o->hidden, o->heads, o->vocab, o->batch.min, o->batch.max, o->sequence.min,
        o->sequence.max, o->steps, o->seed, o->recompute ? "on" : "off",
        o->optimizer == VARY_ADAMW ? "adamw" : "sgd", o->element_bytes == 2 ? "bf16" : "fp32");
}

static bool write_trace(const varybatch_command *c, const trace_builder *b) {
    char heading[512];
    char reason[256];
    print_heading(&c->own->model, heading, sizeof heading);
    bool ok = trace_save(b, heading, c->own->trace_file, reason, sizeof reason);
    if (!ok) {
        bench_complain("varybatch: %s: %s", c->own->trace_file, reason);
    }
    return ok;
}

static bool build_trace(varybatch_command *c) {
    trace_builder b;
    const char *reason = vary_generate(&c->own->model, &b);
    if (reason == NULL && c->own->trace_file != NULL && !write_trace(c, &b)) {
        trace_build_drop(&b);
        return false;
    }
    c->trace = reason == NULL ? trace_make(&b, "varybatch", &reason) : NULL;
    if (reason != NULL) {
        bench_complain("varybatch: %s", reason);
    }
    return reason == NULL;
}

/* ---- Running ------------------------------------------------------------------------------- */

static void note_failure(varybatch_command *c, const report_row *row) {
    const replay_result *r = row->result;
    if (r->outcome == RUN_FAILED || r->violations > 0) {
        bench_complain("varybatch: %s: %s", row->spec->contender->name,
                       r->outcome == RUN_FAILED ? r->message : r->last_violation);
        c->has_failed = true;
    }
}

static void run_contender(varybatch_command *c, const contender_ops *contender) {
    const replay_spec spec = {
        .trace = c->trace,
        .device = &c->device,
        .contender = contender,
        .settings = c->own->shared.settings,
        .n_settings = c->own->shared.n_settings,
        .capacity_bytes = c->own->shared.capacity_bytes,
        .n_passes = c->own->n_passes,
    };
    replay_result result;
    replay_run(&spec, &result);
    report_row row = {.spec = &spec, .result = &result, .has_min_capacity = c->own->min_capacity};
    if (row.has_min_capacity && result.outcome == RUN_COMPLETED) {
        row.min_capacity_bytes = mincap_find(&spec, &result);
    }
    if (c->own->shared.json) {
        report_json(stdout, &row);
    } else {
        report_table_row(stdout, &row);
    }
    (void)fflush(stdout);
    note_failure(c, &row);
}

static int run_all(varybatch_command *c) {
    if (!c->own->shared.json) {
        provenance_print_heading(stdout, &c->device);
        report_table_begin(stdout, c->trace, c->own->min_capacity);
    }
    for (size_t i = 0; i < c->own->shared.n_contenders; i++) {
        run_contender(c, c->own->shared.contenders[i]);
    }
    return c->has_failed ? BENCH_FAILED : BENCH_DONE;
}

static int run(const bench_options *options) {
    varybatch_command c = {.own = (const varybatch_options *)options};
    if (!bench_find_device(options, &c.device)) {
        return BENCH_FAILED;
    }
    int status = build_trace(&c) ? run_all(&c) : BENCH_FAILED;
    trace_free(c.trace);
    return status;
}

const bench_command command_varybatch = {
    .name = "varybatch",
    .brief = "a training loop whose batch size changes at every step",
    .summary =
        "Replays the allocations of a synthetic transformer's training loop: forward keeps what\n"
        "backward needs, backward frees it while gradients appear, the optimizer adds its\n"
        "temporaries; batch and sequence length change at every step.",
    .own = own_options,
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
