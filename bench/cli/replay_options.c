/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/replay_options.h"

#include "bench/cli/cli.h"
#include "bench/trace/trace_read.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static replay_options *own(const bench_parser *p) {
    return p->own;
}

/* ---- Options ------------------------------------------------------------------------------- */

static bool parse_min_capacity(bench_parser *p, const char *unused) {
    (void)unused;
    own(p)->min_capacity = true;
    return true;
}

static bool parse_check(bench_parser *p, const char *unused) {
    (void)unused;
    own(p)->check = true;
    return true;
}

static bool parse_tight(bench_parser *p, const char *value) {
    own(p)->tight = true;
    return bench_parse_count(value, 0, 1000, &own(p)->above_min_percent) ||
           bench_refuse(p, "--tight is a percentage from 0 to 1000, not '%s'", value);
}

static bool parse_repeat(bench_parser *p, const char *value) {
    return bench_parse_count(value, 1, REPLAY_MAX_PASSES, &own(p)->n_passes) ||
           bench_refuse(p, "--repeat is a number from 1 to %d, not '%s'", REPLAY_MAX_PASSES, value);
}

static bool parse_lag(bench_parser *p, const char *value) {
    return bench_parse_count(value, 0, UINT32_MAX, &own(p)->pace.lag) ||
           bench_refuse(p, "--lag is a number of events, not '%s'", value);
}

/* "random" or "random:SEED". */
static bool parse_random(const char *value, uint64_t *seed) {
    size_t length = strlen("random");
    return strncmp(value, "random", length) == 0 &&
           (value[length] == '\0' ||
            (value[length] == ':' && bench_parse_count(value + length + 1, 1, UINT64_MAX, seed)));
}

static bool parse_schedule(bench_parser *p, const char *value) {
    bench_pace *pace = &own(p)->pace;
    pace->seed = 1;
    if (strcmp(value, "eager") == 0) {
        pace->schedule = DUCTILE_SCHEDULE_EAGER;
    } else if (strcmp(value, "lazy") == 0) {
        pace->schedule = DUCTILE_SCHEDULE_LAZY;
    } else if (parse_random(value, &pace->seed)) {
        pace->schedule = DUCTILE_SCHEDULE_RANDOM;
    } else {
        return bench_refuse(p, "--schedule is eager, lazy, random or random:SEED, not '%s'", value);
    }
    return true;
}

static bool parse_gpu(bench_parser *p, const char *value) {
    uint64_t number = 0;
    if (!bench_parse_count(value, 0, INT_MAX, &number)) {
        return bench_refuse(p, "--gpu is the number of a GPU in a snapshot, not '%s'", value);
    }
    own(p)->gpu = (int)number;
    return true;
}

static bool parse_timeline(bench_parser *p, const char *value) {
    own(p)->timeline = value;
    return value[0] != '\0' || bench_refuse(p, "--timeline needs a file or a folder");
}

static bool take_trace(bench_parser *p, const char *word) {
    own(p)->traces[own(p)->n_traces++] = word; /* as many as words: they fit */
    return true;
}

static bool check_combination(bench_parser *p) {
    if (own(p)->n_traces == 0) {
        return bench_refuse(p, "replay needs a trace: ductile-bench replay FILE..., or bench/run "
                               "without arguments for the bundled ones");
    }
    if (own(p)->min_capacity && p->shared->capacity_bytes != 0) {
        return bench_refuse(p, "--min-capacity searches what --capacity sets: give one of them");
    }
    if (own(p)->tight && p->shared->capacity_bytes != 0) {
        return bench_refuse(p, "--tight searches what --capacity sets: give one of them");
    }
    if (own(p)->check && p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "--check works on the virtual GPU only");
    }
    const bench_pace *pace = &own(p)->pace;
    if (pace->lag > 0 && pace->schedule != DUCTILE_SCHEDULE_EAGER) {
        return bench_refuse(p, "--lag is a schedule of its own: give it or --schedule");
    }
    if ((pace->lag > 0 || pace->schedule != DUCTILE_SCHEDULE_EAGER) &&
        p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "%s works on the virtual GPU only",
                            pace->lag > 0 ? "--lag" : "--schedule");
    }
    return true;
}

static const bench_option own_options[] = {
    {.name = "--device"},
    {.name = "--contender"},
    {.name = "--capacity"},
    {"--min-capacity", NULL, parse_min_capacity,
     "also find the smallest capacity from which the replay completes"},
    {"--tight", "PERCENT", parse_tight,
     "replay twice: uncapped, and so much above the smallest capacity; first, last, all passes"},
    {"--repeat", "N", parse_repeat, "N passes through one allocator (1)"},
    {"--lag", "N", parse_lag, "virtual GPU: work completes N events after it was issued (0)"},
    {"--schedule", "eager|lazy|random[:SEED]", parse_schedule,
     "virtual GPU: work completes at once, when waited for, or by chance (eager)"},
    {"--check", NULL, parse_check,
     "virtual GPU: write every block and look for memory that is handed out too early"},
    {.name = "--set"},
    {.name = "--json", .help = "one JSON object a line instead of tables"},
    {"--gpu", "N", parse_gpu, "of a PyTorch snapshot: which GPU (the one with most events)"},
    {"--timeline", "FILE", parse_timeline,
     "write live and reserved memory over time as CSV; a folder gets timeline.csv"},
    {0},
};

static const bench_command command = {
    .name = "replay",
    .summary =
        "Replays allocation traces and says what each allocator would have needed. A TRACE is\n"
        "a text trace (bench/traces/README.md) or a PyTorch snapshot, gzipped or not:\n\n"
        "  torch.cuda.memory._record_memory_history()       # before the run\n"
        "  torch.cuda.memory._dump_snapshot(\"run.pickle\")   # after it",
    .own = own_options,
    .operand = "TRACE",
    .take_operand = take_trace,
    .check = check_combination,
    .exit_status = "0 done (running out of memory under a cap is a result), 1 something\n"
                   "failed, 2 the command line cannot be meant.",
};

/* ---- The whole ----------------------------------------------------------------------------- */

static void adopt_shared(replay_options *o, const bench_options *shared) {
    o->device = shared->device;
    o->ordinal = shared->ordinal;
    memcpy(o->contenders, shared->contenders, sizeof o->contenders);
    o->n_contenders = shared->n_contenders;
    o->capacity_bytes = shared->capacity_bytes;
    memcpy(o->settings, shared->settings, sizeof o->settings);
    o->n_settings = shared->n_settings;
    o->json = shared->json;
    o->help = shared->help;
}

bool replay_options_parse(int argc, char **argv, replay_options *out, char *message,
                          size_t message_size) {
    bench_options shared;
    *out = (replay_options){.n_passes = 1, .gpu = TRACE_BUSIEST_GPU};
    out->traces = calloc((size_t)argc + 1, sizeof *out->traces);
    if (out->traces == NULL) {
        (void)snprintf(message, message_size, "the host has no memory left");
        return false;
    }
    if (!bench_options_parse(&command, argc, argv, &shared, out, message, message_size)) {
        replay_options_drop(out);
        return false;
    }
    adopt_shared(out, &shared);
    if (out->pace.lag > 0) {
        out->pace.schedule = DUCTILE_SCHEDULE_LAGGING;
    }
    if ((out->check || out->pace.schedule != DUCTILE_SCHEDULE_EAGER) &&
        out->device == BENCH_DEVICE_AUTO) {
        out->device = BENCH_DEVICE_VIRTUAL; /* only there are schedules and checks */
    }
    return true;
}

void replay_options_drop(replay_options *o) {
    free(o->traces);
    o->traces = NULL;
    o->n_traces = 0;
}

void replay_options_print_help(void) {
    bench_options_print_help(&command);
}
