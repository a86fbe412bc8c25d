/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench oneshot: how much memory stays behind on streams that are gone?
 */
#include "bench/cli/commands.h"
#include "bench/cli/generated.h"
#include "bench/workloads/oneshot_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct oneshot_command {
    generated_options generated;
    oneshot_options model;
} oneshot_command;

static bool parse_end(bench_parser *p, const char *value) {
    oneshot_command *o = p->own;
    o->model.is_told = strcmp(value, "told") == 0;
    return o->model.is_told || strcmp(value, "untold") == 0 ||
           bench_refuse(p, "--end is told or untold, not '%s'", value);
}

static bool complete(bench_parser *p) {
    const oneshot_command *o = p->own;
    return generated_complete(p, oneshot_check(&o->model));
}

#define AT(member) offsetof(oneshot_command, member)

/* oneshot_check has the bounds of the model. */
static const bench_option own_options[] = {
    {"--steps", "N", bench_parse_number, .help = "steps, a stream for each (1000)",
     .offset = AT(model.steps), .min = 1},
    {"--mib", "MIN:MAX", bench_parse_interval,
     .help = "MiB that a stream allocates, drawn for each (64:2048)", .offset = AT(model.mib),
     .min = 1},
    {"--blocks", "MIN:MAX", bench_parse_interval,
     .help = "blocks that a stream allocates, drawn for each (1:8)", .offset = AT(model.blocks),
     .min = 1},
    {"--end", "told|untold", parse_end,
     .help = "the allocator is told before a stream is destroyed, or not (told)"},
    {"--numbers", "N", bench_parse_number,
     .help = "streams of a contender that cannot be told, used in turn (32)",
     .offset = AT(model.numbers), .min = 1},
    {"--seed", "N", bench_parse_number, .help = "seed of the random numbers (1)",
     .offset = AT(model.seed)},
    GENERATED_OPTIONS(oneshot_command),
    {0},
};

#undef AT

static const oneshot_command defaults = {
    .model = {.steps = 1000,
              .mib = {64, 2048},
              .blocks = {1, 8},
              .numbers = 32,
              .is_told = true,
              .seed = 1},
    .generated = {.n_passes = 1},
};

static void print_heading(const oneshot_options *o, char *out, size_t size) {
    (void)snprintf(out, size,
                   "# ductile-bench oneshot: %" PRIu64 " steps, %" PRIu64 ":%" PRIu64
                   " MiB in %" PRIu64 ":%" PRIu64 " blocks,\n# %s, %" PRIu64
                   " numbers, seed %" PRIu64 "\n",
                   o->steps, o->mib.min, o->mib.max, o->blocks.min, o->blocks.max,
                   o->is_told ? "told" : "untold", o->numbers, o->seed);
}

static int run(const bench_options *options) {
    const oneshot_command *own = (const oneshot_command *)options;
    char heading[512];
    trace_builder b;
    const char *reason = oneshot_generate(&own->model, &b);
    print_heading(&own->model, heading, sizeof heading);
    return generated_run(&own->generated, &(generated_trace){"oneshot", heading, &b, reason});
}

const bench_command command_oneshot = {
    .name = "oneshot",
    .brief = "a new stream at every step, destroyed at its end",
    .summary =
        "Replays a program that makes a stream for one piece of work: it allocates blocks there,\n"
        "the main stream uses them (record_stream), they are freed, and the stream is destroyed.\n"
        "Ductile is told (ductile_stream_done) or not; PyTorch hands out the same 32 streams in\n"
        "turn and destroys none, and so do the contenders that model it.",
    .own = own_options,
    .defaults = &defaults.generated.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
