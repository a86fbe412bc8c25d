/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench offload: how much memory stays behind on streams that have fallen silent?
 */
#include "bench/cli/commands.h"
#include "bench/cli/generated.h"
#include "bench/workloads/offload_model.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct offload_command {
    generated_options generated;
    offload_options model;
} offload_command;

static bool complete(bench_parser *p) {
    const offload_command *o = p->own;
    return generated_complete(p, offload_check(&o->model));
}

#define AT(member) offsetof(offload_command, member)

/* offload_check has the bounds of the model. */
static const bench_option own_options[] = {
    {"--layers", "N", bench_parse_number, .help = "layers (32)", .offset = AT(model.layers),
     .min = 1},
    {"--hidden", "N", bench_parse_number, .help = "width of the model (4096)",
     .offset = AT(model.hidden), .min = 1},
    {"--vocab", "N", bench_parse_number, .help = "words of the vocabulary (32000)",
     .offset = AT(model.vocab), .min = 1},
    {"--batch", "MIN:MAX", bench_parse_interval, .help = "sequences, drawn for every step (1:24)",
     .offset = AT(model.batch), .min = 1},
    {"--seq", "MIN:MAX", bench_parse_interval,
     .help = "tokens per sequence, drawn for every step (256:2048)", .offset = AT(model.sequence),
     .min = 1},
    {"--steps", "N", bench_parse_number, .help = "training steps (20)", .offset = AT(model.steps),
     .min = 1},
    {"--streams", "N", bench_parse_number,
     .help = "side streams, each of which prefetches for a stretch and then is silent (10)",
     .offset = AT(model.streams), .min = 1},
    {"--depth", "N", bench_parse_number,
     .help = "layers on the GPU at once, with the one in use (3)", .offset = AT(model.depth),
     .min = 1},
    {"--seed", "N", bench_parse_number, .help = "seed of the random numbers (1)",
     .offset = AT(model.seed)},
    GENERATED_OPTIONS(offload_command),
    {0},
};

#undef AT

static const offload_command defaults = {
    .model = {.layers = 32,
              .hidden = 4096,
              .vocab = 32000,
              .batch = {1, 24},
              .sequence = {256, 2048},
              .steps = 20,
              .streams = 10,
              .depth = 3,
              .seed = 1},
    .generated = {.n_passes = 1},
};

static void print_heading(const offload_options *o, char *out, size_t size) {
    (void)snprintf(out, size,
                   "# ductile-bench offload: %" PRIu64 " layers, hidden %" PRIu64
                   ", vocabulary %" PRIu64 ",\n# batch %" PRIu64 ":%" PRIu64 ", sequence %" PRIu64
                   ":%" PRIu64 ", %" PRIu64 " steps, %" PRIu64 " streams, depth %" PRIu64
                   ", seed %" PRIu64 "\n",
                   o->layers, o->hidden, o->vocab, o->batch.min, o->batch.max, o->sequence.min,
                   o->sequence.max, o->steps, o->streams, o->depth, o->seed);
}

static int run(const bench_options *options) {
    const offload_command *own = (const offload_command *)options;
    char heading[512];
    trace_builder b;
    const char *reason = offload_generate(&own->model, &b);
    print_heading(&own->model, heading, sizeof heading);
    return generated_run(&own->generated, &(generated_trace){"offload", heading, &b, reason});
}

const bench_command command_offload = {
    .name = "offload",
    .brief = "a model whose layers come from the host, on streams that then fall silent",
    .summary =
        "Replays the allocations of a synthetic LLaMA whose parameters lie in host memory: each\n"
        "layer is prefetched on a side stream that allocates it, used by the main stream\n"
        "(record_stream) and freed; activations of ever other sizes come and go on the main "
        "stream.\n"
        "Each side stream serves a stretch of the run, drawn by the seed, and then is silent.",
    .own = own_options,
    .defaults = &defaults.generated.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
