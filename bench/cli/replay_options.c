/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/replay_options.h"

#include "bench/cli/cli.h"
#include "bench/trace/trace_read.h"

#include <limits.h>
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

static bool check_combination(bench_parser *p) {
    if (p->shared->n_operands == 0) {
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
        return bench_refuse(
            p, "--lag is a schedule of its own: give only one of --lag and --schedule");
    }
    if ((pace->lag > 0 || pace->schedule != DUCTILE_SCHEDULE_EAGER) &&
        p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "%s works on the virtual GPU only",
                            pace->lag > 0 ? "--lag" : "--schedule");
    }
    return true;
}

const bench_option replay_option_table[] = {
    {.name = "--device"},
    {.name = "--contender"},
    {.name = "--capacity"},
    {"--min-capacity", NULL, parse_min_capacity,
     "also find the smallest capacity from which the replay completes"},
    {"--tight", "PERCENT", parse_tight,
     "replay twice: uncapped, and PERCENT above the smallest capacity; first, last, all passes"},
    {"--repeat", "N", parse_repeat, "N passes through one allocator (1)"},
    {"--lag", "N", parse_lag, "virtual GPU: work completes N events after it was issued (0)"},
    {"--schedule", "eager|lazy|random[:SEED]", parse_schedule,
     "virtual GPU: work completes at once, when waited for, or at random times (eager)"},
    {"--check", NULL, parse_check,
     "virtual GPU: write every block and look for memory that is handed out too early"},
    {.name = "--set"},
    {.name = "--json", .help = "one JSON object a line instead of tables"},
    {"--gpu", "N", parse_gpu, "which GPU of a PyTorch snapshot (the one with the most events)"},
    {"--timeline", "FILE", parse_timeline,
     "write live and reserved memory over time as CSV; a folder gets timeline.csv"},
    {0},
};

/* ---- The whole ----------------------------------------------------------------------------- */

const replay_options replay_defaults = {.n_passes = 1, .gpu = TRACE_BUSIEST_GPU};

/* Schedules and checks are the virtual GPU's alone. */
bool replay_options_complete(bench_parser *p) {
    replay_options *o = own(p);
    if (!check_combination(p)) {
        return false;
    }
    if (o->pace.lag > 0) {
        o->pace.schedule = DUCTILE_SCHEDULE_LAGGING;
    }
    if ((o->check || o->pace.schedule != DUCTILE_SCHEDULE_EAGER) &&
        p->shared->device == BENCH_DEVICE_AUTO) {
        p->shared->device = BENCH_DEVICE_VIRTUAL;
    }
    return true;
}
