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

/* Only digits are checked here; vary_check has the bounds. */
static bool parse_number(bench_parser *p, const char *name, const char *value, uint64_t *out) {
    return bench_parse_count(value, 1, UINT64_MAX, out) ||
           bench_refuse(p, "%s is a number from 1, not '%s'", name, value);
}

static bool parse_layers(bench_parser *p, const char *value) {
    return parse_number(p, "--layers", value, &model_of(p)->layers);
}

static bool parse_hidden(bench_parser *p, const char *value) {
    return parse_number(p, "--hidden", value, &model_of(p)->hidden);
}

static bool parse_heads(bench_parser *p, const char *value) {
    return parse_number(p, "--heads", value, &model_of(p)->heads);
}

static bool parse_vocab(bench_parser *p, const char *value) {
    return parse_number(p, "--vocab", value, &model_of(p)->vocab);
}

static bool parse_steps(bench_parser *p, const char *value) {
    return parse_number(p, "--steps", value, &model_of(p)->steps);
}

/* MIN:MAX, or one number for both. */
static bool parse_interval(bench_parser *p, const char *name, const char *value,
                           vary_interval *out) {
    char text[48];
    size_t length = strcspn(value, ":");
    const char *max = value[length] == ':' ? value + length + 1 : value;
    if (length < sizeof text) {
        memcpy(text, value, length);
        text[length] = '\0';
        if (bench_parse_count(text, 1, UINT64_MAX, &out->min) &&
            bench_parse_count(max, 1, UINT64_MAX, &out->max)) {
            return true;
        }
    }
    return bench_refuse(p, "%s is MIN:MAX, not '%s'", name, value);
}

static bool parse_batch(bench_parser *p, const char *value) {
    return parse_interval(p, "--batch", value, &model_of(p)->batch);
}

static bool parse_sequence(bench_parser *p, const char *value) {
    return parse_interval(p, "--seq", value, &model_of(p)->sequence);
}

static bool parse_seed(bench_parser *p, const char *value) {
    return bench_parse_count(value, 0, UINT64_MAX, &model_of(p)->seed) ||
           bench_refuse(p, "--seed is a number, not '%s'", value);
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

static bool parse_repeat(bench_parser *p, const char *value) {
    varybatch_options *o = p->own;
    return bench_parse_count(value, 1, 1000000, &o->n_passes) ||
           bench_refuse(p, "--repeat is a number from 1 to 1000000, not '%s'", value);
}

static bool parse_min_capacity(bench_parser *p, const char *unused) {
    varybatch_options *o = p->own;
    (void)unused;
    o->min_capacity = true;
    return true;
}

static bool parse_write_trace(bench_parser *p, const char *value) {
    varybatch_options *o = p->own;
    o->trace_file = value;
    return value[0] != '\0' || bench_refuse(p, "--write-trace needs a file");
}

static bool complete(bench_parser *p) {
    const varybatch_options *o = p->own;
    if (o->min_capacity && p->shared->capacity_bytes != 0) {
        return bench_refuse(p, "--min-capacity searches what --capacity sets: give one of them");
    }
    const char *refusal = vary_check(&o->model);
    return refusal == NULL || bench_refuse(p, "%s", refusal);
}

static const bench_option own_options[] = {
    {"--layers", "N", parse_layers, "layers (24)"},
    {"--hidden", "N", parse_hidden, "width of the model (1024)"},
    {"--heads", "N", parse_heads, "attention heads, a divisor of the width (16)"},
    {"--vocab", "N", parse_vocab, "words of the vocabulary (50257)"},
    {"--batch", "MIN:MAX", parse_batch, "sequences, drawn for every step (1:12)"},
    {"--seq", "MIN:MAX", parse_sequence, "tokens per sequence, drawn for every step (64:1024)"},
    {"--steps", "N", parse_steps, "training steps (50)"},
    {"--seed", "N", parse_seed, "seed of the random numbers (1)"},
    {"--recompute", "on|off", parse_recompute,
     "keep only the layers' inputs for the backward (off)"},
    {"--optimizer", "adamw|sgd", parse_optimizer, "the optimizer (adamw)"},
    {"--dtype", "bf16|fp32", parse_dtype, "of weights, activations and gradients (bf16)"},
    {"--repeat", "N", parse_repeat, "N passes through one allocator (1)"},
    {"--min-capacity", NULL, parse_min_capacity,
     "also find the smallest capacity from which the loop completes"},
    {"--write-trace", "FILE", parse_write_trace, "also write the events as a trace for replay"},
    {0},
};

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
