/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench replay: what would each allocator have needed for this recorded run?
 *
 * All errors of the command line and of files are reported before the first replay starts and
 * before anything is written.
 */
#include "bench/cli/cli.h"
#include "bench/cli/commands.h"
#include "bench/cli/replay_job.h"
#include "bench/trace/trace_read.h"
#include "bench/trace/trace_variant.h"

#include <stdlib.h>

typedef struct recorded_options {
    replay_options replay; /* operands: the traces */
    bool vary;
    uint64_t vary_seed; /* with vary */
    int gpu;            /* TRACE_FULLEST_GPU unless chosen */
} recorded_options;

/* ---- Options ------------------------------------------------------------------------------- */

static bool parse_vary(bench_parser *p, const char *value) {
    recorded_options *o = p->own;
    o->vary = true;
    return bench_parse_count(value, 0, UINT64_MAX, &o->vary_seed) ||
           bench_refuse(p, "--vary is the seed of the random numbers, not '%s'", value);
}

static bool complete(bench_parser *p) {
    return p->shared->n_operands == 0
               ? bench_refuse(p, "it needs a trace: ductile-bench replay FILE..., or bench/run "
                                 "without arguments for the bundled ones")
               : replay_options_complete(p);
}

static const bench_option own_options[] = {
    {"--vary", "SEED", parse_vary,
     .help = "another run of the same program in each pass: steps shuffled, sizes scaled"},
    BENCH_GPU_OPTION(recorded_options),
    {0},
};

/* ---- Running ------------------------------------------------------------------------------- */

static trace *load_trace(const recorded_options *o, const char *path) {
    trace_error error;
    trace *t = o->vary ? trace_load_varied(path, o->gpu, o->vary_seed, o->replay.n_passes, &error)
                       : trace_load(path, o->gpu, &error);
    if (t == NULL) {
        bench_complain_of(path, error.line, error.reason);
    }
    return t;
}

/* Returns the exit status so far. */
static int load_traces(const recorded_options *o, trace **traces) {
    const bench_options *shared = &o->replay.shared;
    bool has_snapshot = false;
    for (size_t i = 0; i < shared->n_operands; i++) {
        traces[i] = load_trace(o, shared->operands[i]);
        if (traces[i] == NULL) {
            return BENCH_FAILED;
        }
        has_snapshot = has_snapshot || traces[i]->is_snapshot;
    }
    if (o->gpu != TRACE_FULLEST_GPU && !has_snapshot) {
        bench_complain("--gpu needs a PyTorch snapshot, and no trace is one");
        return BENCH_MISUSED;
    }
    return BENCH_DONE;
}

static int run(const bench_options *options) {
    const recorded_options *o = (const recorded_options *)options;
    size_t n = options->n_operands;
    trace **traces = calloc(n, sizeof(trace *));
    if (traces == NULL) {
        bench_complain("the host has no memory left");
        return BENCH_FAILED;
    }
    int status = load_traces(o, traces);
    if (status == BENCH_DONE) {
        status = replay_job_run(&o->replay, traces, n);
    }
    for (size_t i = 0; i < n; i++) {
        trace_free(traces[i]);
    }
    free(traces);
    return status;
}

static const recorded_options defaults = {.replay.n_passes = 1, .gpu = TRACE_FULLEST_GPU};

const bench_command command_replay = {
    .name = "replay",
    .brief = "replay recorded allocation traces under several allocators",
    .summary =
        "Replays allocation traces and says what each allocator would have needed. A TRACE is\n"
        "a text trace (bench/traces/README.md) or a PyTorch snapshot, gzipped or not:\n\n"
        "  torch.cuda.memory._record_memory_history()       # before the run\n"
        "  torch.cuda.memory._dump_snapshot(\"run.pickle\")   # after it",
    .own = own_options,
    .also = replay_option_table,
    .operand = "TRACE...",
    .defaults = &defaults.replay.shared,
    .size = sizeof defaults,
    .complete = complete,
    .exit_status = "0 done (running out of memory under a cap is a result), 1 something\n"
                   "failed, 2 the command line is wrong.",
    .run = run,
};
