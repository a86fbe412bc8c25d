/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/replay_options.h"

#include "bench/cli/cli.h"
#include <string.h>

static replay_options *own(const bench_parser *p) {
    return p->own;
}

/* ---- Options ------------------------------------------------------------------------------- */

static bool parse_tight(bench_parser *p, const char *value) {
    own(p)->tight = true;
    return bench_parse_count(value, 0, 1000, &own(p)->above_min_percent) ||
           bench_refuse(p, "--tight is a percentage from 0 to 1000, not '%s'", value);
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

static bool check_combination(bench_parser *p) {
    if (own(p)->min_capacity && p->shared->capacity_bytes != 0) {
        return bench_refuse(p,
                            "--min-capacity searches what --capacity sets: give only one of them");
    }
    if (own(p)->tight && p->shared->capacity_bytes != 0) {
        return bench_refuse(p, "--tight searches what --capacity sets: give only one of them");
    }
    if (own(p)->tight && own(p)->calls) {
        return bench_refuse(p, "--tight has no columns for --calls: give only one of them");
    }
    if (own(p)->check && p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "--check works on the virtual GPU only");
    }
    const bench_pace *pace = &own(p)->pace;
    if (pace->lag > 0 && pace->schedule != DUCTILE_SCHEDULE_EAGER) {
        return bench_refuse(
            p, "--lag is a schedule of its own: give only one of --lag and --schedule");
    }
    if (pace->has_old_driver && p->shared->device == BENCH_DEVICE_CUDA) {
        return bench_refuse(p, "--old-driver works on the virtual GPU only");
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
    BENCH_FLAG_OPTION("--min-capacity", replay_options, min_capacity,
                      "also find the smallest capacity from which the replay completes"),
    {"--tight", "PERCENT", parse_tight,
     .help = "replay twice: uncapped, and PERCENT above the smallest capacity; first, last, all "
             "passes"},
    {"--repeat", "N", bench_parse_number, .help = "N passes through one allocator (1)",
     .offset = offsetof(replay_options, n_passes), .min = 1, .max = REPLAY_MAX_PASSES},
    BENCH_FLAG_OPTION(
        "--calls", replay_options, calls,
        "replay up to 3 passes once more and time each call: median, 99th percentile, worst"),
    {"--lag", "N", bench_parse_number,
     .help = "virtual GPU: work completes N events after it was issued",
     .offset = offsetof(replay_options, pace.lag), .max = UINT32_MAX},
    {"--schedule", "eager|lazy|random[:SEED]", parse_schedule,
     .help = "virtual GPU: work completes at once, when waited for, or at random times (eager)"},
    BENCH_FLAG_OPTION(
        "--old-driver", replay_options, pace.has_old_driver,
        "virtual GPU: as with a driver before CUDA 12.5, which proves less of free memory"),
    BENCH_FLAG_OPTION(
        "--check", replay_options, check,
        "virtual GPU: write every block and look for memory that is handed out too early"),
    {.name = "--set"},
    {.name = "--json",
     .help = "one JSON object a line instead of tables. loop_ns_per_op: what the replay itself "
             "costs, by a contender that does nothing; it is taken off all times"},
    {"--timeline", "FILE", bench_parse_text,
     .help = "write live and reserved memory over time as CSV; a folder gets timeline.csv",
     .offset = offsetof(replay_options, timeline)},
    {0},
};

/* ---- The whole ----------------------------------------------------------------------------- */

/* Schedules and checks are the virtual GPU's alone. */
bool replay_options_complete(bench_parser *p) {
    replay_options *o = own(p);
    if (!check_combination(p)) {
        return false;
    }
    if (o->pace.lag > 0) {
        o->pace.schedule = DUCTILE_SCHEDULE_LAGGING;
    }
    if ((o->check || o->pace.has_old_driver || o->pace.schedule != DUCTILE_SCHEDULE_EAGER) &&
        p->shared->device == BENCH_DEVICE_AUTO) {
        p->shared->device = BENCH_DEVICE_VIRTUAL;
    }
    return true;
}
