/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench varybatch: how much memory does a transformer's training loop hold under each
 * allocator when batch and sequence length change at every step?
 */
#include "bench/cli/commands.h"
#include "bench/cli/generated.h"
#include "bench/workloads/vary_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct varybatch_options {
    generated_options generated;
    vary_options model;
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

static bool complete(bench_parser *p) {
    const varybatch_options *o = p->own;
    return generated_complete(p, vary_check(&o->model));
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
              .steps = 50,
              .seed = 1,
              .element_bytes = 2,
              .optimizer = VARY_ADAMW},
    .generated = {.n_passes = 1},
};

/* ---- Running ------------------------------------------------------------------------------- */

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

static int run(const bench_options *options) {
    const varybatch_options *own = (const varybatch_options *)options;
    char heading[512];
    trace_builder b;
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
        "temporaries; batch and sequence length change at every step.",
    .own = own_options,
    .defaults = &defaults.generated.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
