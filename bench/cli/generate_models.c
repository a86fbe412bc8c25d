/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models that are a trace, which is replayed as `replay` does a recorded one:
 *
 *   vary     what does a training loop hold when batch and sequence length change at every step?
 *   offload  how much memory stays behind on streams that have fallen silent?
 *   oneshot  how much on streams that are gone?
 */
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"
#include "bench/cli/generate.h"
#include "bench/cli/replay_job.h"
#include "bench/workloads/offload_model.h"
#include "bench/workloads/oneshot_model.h"
#include "bench/workloads/vary_model.h"

/* Of all three: each uses its own model's. */
typedef struct model_options {
    replay_options replay;
    const char *trace_file; /* NULL: none */
    vary_options vary;
    bool is_adamw, is_half; /* vary */
    offload_options offload;
    oneshot_options oneshot;
} model_options;

#define AT(member) offsetof(model_options, member)
#define NUMBER(option, member, least, text)                                                        \
    BENCH_NUMBER_OPTION(option, model_options, member, least, text)
#define INTERVAL(option, member, text) BENCH_INTERVAL_OPTION(option, model_options, member, text)

static bool complete(bench_parser *p, const char *refusal) {
    return replay_options_complete(p) && (refusal == NULL || bench_refuse(p, "%s", refusal));
}

/* reason: why the model has made nothing. */
static int replay_or_write(const bench_command *model, const model_options *o, trace_builder *made,
                           const char *reason) {
    if (reason != NULL) {
        bench_complain("%s: %s", model->name, reason);
        return BENCH_FAILED;
    }
    if (o->trace_file != NULL) {
        return generate_write(model, o, made, o->trace_file);
    }
    trace *t = generate_trace(model, made);
    int status = t != NULL ? replay_job_run(&o->replay, &t, 1) : BENCH_FAILED;
    trace_free(t);
    return status;
}

/* ---- vary ---------------------------------------------------------------------------------- */

/* vary_check has the bounds of the model. */
static const bench_option vary_table[] = {
    NUMBER("--layers", vary.layers, 1, "layers"),
    NUMBER("--hidden", vary.hidden, 1, "width of the model"),
    NUMBER("--heads", vary.heads, 1, "attention heads, a divisor of the width"),
    NUMBER("--vocab", vary.vocab, 1, "words of the vocabulary"),
    INTERVAL("--batch", vary.batch, "sequences, drawn for every step"),
    INTERVAL("--seq", vary.sequence, "tokens per sequence, drawn for every step"),
    NUMBER("--steps", vary.steps, 1, "training steps"),
    NUMBER("--seed", vary.seed, 0, "seed of the random numbers"),
    {"--recompute", "on|off", bench_parse_either,
     .help = "keep only the layers' inputs for the backward", .offset = AT(vary.recompute)},
    NUMBER("--side-streams", vary.side_streams, 0,
           "streams that run the second halves of layers in turn"),
    {"--optimizer", "adamw|sgd", bench_parse_either, .help = "the optimizer",
     .offset = AT(is_adamw)},
    {"--dtype", "bf16|fp32", bench_parse_either, .help = "of weights, activations and gradients",
     .offset = AT(is_half)},
    GENERATE_TRACE_OPTION(model_options),
    {0},
};

static bool complete_vary(bench_parser *p) {
    model_options *o = p->own;
    o->vary.optimizer = o->is_adamw ? VARY_ADAMW : VARY_SGD;
    o->vary.element_bytes = o->is_half ? 2 : 4;
    return complete(p, vary_check(&o->vary));
}

static int run_vary(const bench_options *options) {
    const model_options *o = (const model_options *)options;
    trace_builder made;
    const char *reason = vary_generate(&o->vary, &made);
    return replay_or_write(&generate_vary, o, &made, reason);
}

static const model_options vary_defaults = {
    .replay.n_passes = 1,
    .vary = {.layers = 24,
             .hidden = 1024,
             .heads = 16,
             .vocab = 50257,
             .batch = {1, 12},
             .sequence = {64, 1024},
             .steps = 50,
             .seed = 1},
    .is_adamw = true,
    .is_half = true,
};

const bench_command generate_vary = {
    .name = "generate vary",
    .brief = "a training loop whose batch size changes at every step",
    .summary =
        "Replays the allocations of a synthetic transformer's training loop: forward keeps what\n"
        "backward needs, backward frees it while gradients appear, the optimizer adds its\n"
        "temporaries; batch and sequence length change at every step.",
    .own = vary_table,
    .also = replay_option_table,
    .defaults = &vary_defaults.replay.shared,
    .size = sizeof vary_defaults,
    .complete = complete_vary,
    .run = run_vary,
};

/* ---- offload ------------------------------------------------------------------------------- */

/* offload_check has the bounds of the model. */
static const bench_option offload_table[] = {
    NUMBER("--layers", offload.layers, 1, "layers"),
    NUMBER("--hidden", offload.hidden, 1, "width of the model"),
    NUMBER("--vocab", offload.vocab, 1, "words of the vocabulary"),
    INTERVAL("--batch", offload.batch, "sequences, drawn for every step"),
    INTERVAL("--seq", offload.sequence, "tokens per sequence, drawn for every step"),
    NUMBER("--steps", offload.steps, 1, "training steps"),
    NUMBER("--streams", offload.streams, 1,
           "side streams, each of which prefetches for a stretch and then is silent"),
    NUMBER("--depth", offload.depth, 1, "layers on the GPU at once, with the one in use"),
    NUMBER("--seed", offload.seed, 0, "seed of the random numbers"),
    GENERATE_TRACE_OPTION(model_options),
    {0},
};

static bool complete_offload(bench_parser *p) {
    return complete(p, offload_check(&((const model_options *)p->own)->offload));
}

static int run_offload(const bench_options *options) {
    const model_options *o = (const model_options *)options;
    trace_builder made;
    const char *reason = offload_generate(&o->offload, &made);
    return replay_or_write(&generate_offload, o, &made, reason);
}

static const model_options offload_defaults = {
    .replay.n_passes = 1,
    .offload = {.layers = 32,
                .hidden = 4096,
                .vocab = 32000,
                .batch = {1, 24},
                .sequence = {256, 2048},
                .steps = 20,
                .streams = 10,
                .depth = 3,
                .seed = 1},
};

const bench_command generate_offload = {
    .name = "generate offload",
    .brief = "a model whose layers come from the host, on streams that then fall silent",
    .summary =
        "Replays the allocations of a synthetic LLaMA whose parameters lie in host memory: each\n"
        "layer is prefetched on a side stream that allocates it, used by the main stream\n"
        "(record_stream) and freed; activations of ever other sizes come and go on the main "
        "stream.\n"
        "Each side stream serves a stretch of the run, drawn by the seed, and then is silent.",
    .own = offload_table,
    .also = replay_option_table,
    .defaults = &offload_defaults.replay.shared,
    .size = sizeof offload_defaults,
    .complete = complete_offload,
    .run = run_offload,
};

/* ---- oneshot ------------------------------------------------------------------------------- */

/* oneshot_check has the bounds of the model. */
static const bench_option oneshot_table[] = {
    NUMBER("--steps", oneshot.steps, 1, "steps, a stream for each"),
    INTERVAL("--mib", oneshot.mib, "MiB that a stream allocates, drawn for each"),
    INTERVAL("--blocks", oneshot.blocks, "blocks that a stream allocates, drawn for each"),
    {"--end", "told|untold", bench_parse_either,
     .help = "the allocator is told before a stream is destroyed, or not",
     .offset = AT(oneshot.is_told)},
    NUMBER("--numbers", oneshot.numbers, 1,
           "streams of a contender that cannot be told, used in turn"),
    NUMBER("--seed", oneshot.seed, 0, "seed of the random numbers"),
    GENERATE_TRACE_OPTION(model_options),
    {0},
};

static bool complete_oneshot(bench_parser *p) {
    return complete(p, oneshot_check(&((const model_options *)p->own)->oneshot));
}

static int run_oneshot(const bench_options *options) {
    const model_options *o = (const model_options *)options;
    trace_builder made;
    const char *reason = oneshot_generate(&o->oneshot, &made);
    return replay_or_write(&generate_oneshot, o, &made, reason);
}

static const model_options oneshot_defaults = {
    .replay.n_passes = 1,
    .oneshot = {.steps = 1000,
                .mib = {64, 2048},
                .blocks = {1, 8},
                .numbers = 32,
                .is_told = true,
                .seed = 1},
};

const bench_command generate_oneshot = {
    .name = "generate oneshot",
    .brief = "a new stream at every step, destroyed at its end",
    .summary =
        "Replays a program that makes a stream for one piece of work: it allocates blocks there,\n"
        "the main stream uses them (record_stream), they are freed, and the stream is destroyed.\n"
        "Ductile is told (ductile_stream_done) or not; PyTorch hands out the same 32 streams in\n"
        "turn and destroys none, and so do the contenders that model it.",
    .own = oneshot_table,
    .also = replay_option_table,
    .defaults = &oneshot_defaults.replay.shared,
    .size = sizeof oneshot_defaults,
    .complete = complete_oneshot,
    .run = run_oneshot,
};
