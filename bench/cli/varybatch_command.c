/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench varybatch: how much memory does a transformer's training loop hold under each
 * allocator when batch and sequence length change at every step? With --sweep: how does that grow
 * with the spread of the two?
 */
#include "bench/cli/commands.h"
#include "bench/cli/generated.h"
#include "bench/cli/sweep.h"
#include "bench/workloads/vary_model.h"
#include "bench/workloads/vary_sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct varybatch_options {
    generated_options generated;
    vary_options model;
    bool sweep;
    uint64_t n_seeds; /* with sweep */
} varybatch_options;

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

/* The sweep sets these itself. */
static const char *refuse_with_sweep(const varybatch_options *o) {
    if (o->model.recompute || o->generated.min_capacity ||
        o->generated.shared.capacity_bytes != 0) {
        return "--sweep runs with and without --recompute, --min-capacity and --capacity: give "
               "none";
    }
    return o->generated.trace_file != NULL ? "--sweep runs many traces: --write-trace writes one"
                                           : NULL;
}

static bool complete(bench_parser *p) {
    varybatch_options *o = p->own;
    const char *refusal = NULL;
    if (o->model.steps == 0) {
        o->model.steps = o->sweep ? 20 : 50;
    }
    if (o->sweep) {
        refusal = refuse_with_sweep(o);
        o->model.side_streams = o->model.side_streams > 0 ? o->model.side_streams : 2;
    }
    return generated_complete(p, refusal != NULL ? refusal : vary_check(&o->model));
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
    {"--steps", "N", bench_parse_number, .help = "training steps (50; 20 with --sweep)",
     .offset = AT(model.steps), .min = 1},
    {"--seed", "N", bench_parse_number, .help = "seed of the random numbers (1)",
     .offset = AT(model.seed)},
    {"--recompute", "on|off", parse_recompute,
     .help = "keep only the layers' inputs for the backward (off)"},
    {"--side-streams", "N", bench_parse_number,
     .help = "streams that run the second halves of layers in turn (0; 2 with --sweep)",
     .offset = AT(model.side_streams)},
    {"--optimizer", "adamw|sgd", parse_optimizer, .help = "the optimizer (adamw)"},
    {"--dtype", "bf16|fp32", parse_dtype, .help = "of weights, activations and gradients (bf16)"},
    {"--sweep", NULL, bench_parse_flag,
     .help = "from constant to all of --batch and --seq, with and without recomputation, on one\n"
             "                                    stream and on several, without a cap and near it",
     .offset = AT(sweep)},
    {"--seeds", "N", bench_parse_number, .help = "with --sweep: seeds of each (3)",
     .offset = AT(n_seeds), .min = 1, .max = SWEEP_MAX_SEEDS},
    GENERATED_OPTIONS(varybatch_options),
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
              .seed = 1,
              .element_bytes = 2,
              .optimizer = VARY_ADAMW},
    .n_seeds = 3,
    .generated = {.n_passes = 1},
};

/* ---- Running ------------------------------------------------------------------------------- */

static void print_heading(const vary_options *o, char *out, size_t size) {
    (void)snprintf(out, size,
                   "# ductile-bench varybatch: %" PRIu64 " layers, hidden %" PRIu64 ", %" PRIu64
                   " heads, vocabulary %" PRIu64 ",\n# batch %" PRIu64 ":%" PRIu64
                   ", sequence %" PRIu64 ":%" PRIu64 ", %" PRIu64 " steps, seed %" PRIu64
                   ", recompute %s, %s, %s, %" PRIu64 " side streams\n",
                   o->layers, o->hidden, o->heads, o->vocab, o->batch.min, o->batch.max,
                   o->sequence.min, o->sequence.max, o->steps, o->seed, o->recompute ? "on" : "off",
                   o->optimizer == VARY_ADAMW ? "adamw" : "sgd",
                   o->element_bytes == 2 ? "bf16" : "fp32", o->side_streams);
}

static int run(const bench_options *options) {
    const varybatch_options *own = (const varybatch_options *)options;
    char heading[512];
    trace_builder b;
    if (own->sweep) {
        return sweep_run_all(&own->generated, &own->model, own->n_seeds);
    }
    const char *reason = vary_generate(&own->model, &b);
    print_heading(&own->model, heading, sizeof heading);
    return generated_run(&own->generated, &(generated_trace){"varybatch", heading, &b, reason});
}

const bench_command command_varybatch = {
    .name = "varybatch",
    .brief = "a training loop whose batch size changes at every step",
    .summary =
        "Replays the allocations of a synthetic transformer's training loop: forward keeps what\n"
        "backward needs, backward frees it while gradients appear, the optimizer adds its\n"
        "temporaries; batch and sequence length change at every step. With --sweep it runs the "
        "loop\n"
        "while their spread grows, and says what is held over what is used.",
    .own = own_options,
    .defaults = &defaults.generated.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
