/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench view: what a report draws of a recorded run. For each file one line for the
 * recording, and one for each contender.
 */
#include "bench/base/provenance.h"
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/cli/in_children.h"
#include "bench/cli/view_json.h"
#include "bench/replay/mincap.h"
#include "bench/replay/replay_engine.h"
#include "bench/replay/view.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_holders.h"
#include "bench/trace/trace_read.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

enum { EVEN_STOPS = 24, MOST_SEARCHED_EVENTS = 2000000 };

/* Devices that people have, in GiB. */
static const uint64_t usual_devices[] = {8, 12, 16, 24, 32, 40, 48, 80, 96, 141, 180, 192};

typedef struct view_options {
    bench_options shared; /* operands: the recordings */
    int gpu;
    bool quick;
    bool full;
} view_options;

/* One recording. */
typedef struct view_job {
    const view_options *options;
    bench_device device;
    trace_builder builder;
    trace_steps steps;
    trace_holders holders;
    trace_stream streams[TRACE_MAX_STREAMS];
    trace_stacks stacks;
    bool marks_steps;
    trace *trace;
} view_job;

/* ---- Options ------------------------------------------------------------------------------- */

static void drop_blind_contenders(bench_options *o) {
    size_t n = 0;
    for (size_t i = 0; i < o->n_contenders; i++) {
        if (o->contenders[i]->walk != NULL) {
            o->contenders[n++] = o->contenders[i];
        }
    }
    o->n_contenders = n;
}

static bool complete(bench_parser *p) {
    drop_blind_contenders(p->shared);
    if (p->shared->n_operands == 0) {
        return bench_refuse(p, "it needs a recording: ductile-bench view FILE...");
    }
    return p->shared->n_contenders > 0 ||
           bench_refuse(p, "--contender: none of these knows its own memory");
}

static const bench_option own_options[] = {
    {.name = "--contender"},
    {.name = "--capacity"},
    {.name = "--set"},
    BENCH_GPU_OPTION(view_options),
    {"--quick", NULL, bench_parse_flag,
     .help = "neither search the smallest capacity nor try smaller devices",
     .offset = offsetof(view_options, quick)},
    {"--full", NULL, bench_parse_flag,
     .help = "do both also for recordings of more than 2000000 events, which are quick otherwise",
     .offset = offsetof(view_options, full)},
    {0},
};

/* ---- The recording ------------------------------------------------------------------------- */

static bool complain(const char *path, const char *reason) {
    bench_complain_of(path, 0, reason);
    return false;
}

static const char *study(view_job *j) {
    trace_builder *b = &j->builder;
    j->marks_steps = b->n_steps > 0;
    for (size_t i = 0; i < b->n_streams; i++) {
        j->streams[i] = b->streams[i];
    }
    const char *reason = trace_steps_find(b, &j->steps);
    if (reason == NULL) {
        reason = trace_holders_find(b, &j->steps, &j->holders);
    }
    if (reason == NULL && !j->marks_steps) {
        reason = trace_steps_mark(b, &j->steps);
    }
    j->stacks = b->stacks;
    b->stacks = (trace_stacks){0};
    return reason;
}

static bool load(view_job *j, const char *path) {
    trace_error error;
    const view_options *o = j->options;
    if (!trace_gather_held(path, o->gpu, &j->builder, &error)) {
        bench_complain_of(path, error.line, error.reason);
        return false;
    }
    if (o->gpu != TRACE_BUSIEST_GPU && !j->builder.is_snapshot) {
        return complain(path, "--gpu needs a PyTorch snapshot, and this is not one");
    }
    const char *reason = study(j);
    if (reason == NULL) {
        j->trace = trace_make(&j->builder, path, &reason);
    }
    return j->trace != NULL || complain(path, reason);
}

static void drop(view_job *j) {
    trace_build_drop(&j->builder);
    trace_steps_drop(&j->steps);
    trace_holders_drop(&j->holders);
    trace_stacks_drop(&j->stacks);
    trace_free(j->trace);
    *j = (view_job){.options = j->options, .device = j->device};
}

/* ---- Contenders ---------------------------------------------------------------------------- */

/* What the recorded program's allocator could have where it was refused most; 0: not known. */
static uint64_t recorded_device(const trace *t) {
    uint64_t most = 0;
    uint64_t device = 0;
    for (size_t i = 0; i < t->n_refusals; i++) {
        const trace_refusal *of = &t->refusals[i];
        if (of->is_replayed && of->held_bytes > 0 && of->live_bytes + of->size > most) {
            most = of->live_bytes + of->size;
            device = of->held_bytes + of->device_free_bytes;
        }
    }
    return device;
}

/* The devices that people have, and others evenly between them: as far as they are too small. */
static void try_smaller(const replay_spec *spec, uint64_t suffices, view *v) {
    for (size_t i = 0; i < sizeof usual_devices / sizeof usual_devices[0]; i++) {
        if (usual_devices[i] * DTI_GIB < suffices) {
            view_try(spec, usual_devices[i] * DTI_GIB, v);
        }
    }
    uint64_t granule = spec->device->caps.granule_bytes;
    for (uint64_t i = 1; i <= EVEN_STOPS; i++) {
        uint64_t capacity = suffices / granule * i / EVEN_STOPS * granule;
        if (capacity > 0 && capacity < suffices) {
            view_try(spec, capacity, v);
        }
    }
    if (suffices > granule) { /* what one granule less brings */
        view_try(spec, suffices - granule, v);
    }
    uint64_t recorded = recorded_device(spec->trace);
    if (recorded > 0 && recorded < suffices) {
        view_try(spec, recorded, v);
    }
}

static bool searches(const view_job *j) {
    return !j->options->quick && (j->options->full || j->trace->n_events <= MOST_SEARCHED_EVENTS);
}

static void find_what_suffices(const view_job *j, view_run *run, view *v) {
    const replay_result *result = run->result;
    run->has_min_capacity = searches(j) && result->outcome == RUN_COMPLETED;
    if (run->has_min_capacity) {
        run->min_capacity_bytes = mincap_find(run->spec, result);
    }
    if (run->min_capacity_bytes > 0) {
        try_smaller(run->spec, run->min_capacity_bytes, v);
    } else if (result->outcome == RUN_OUT_OF_MEMORY) {
        uint64_t capped = run->spec->capacity_bytes;
        view_try(run->spec, capped != 0 ? capped : j->device.caps.total_bytes, v);
    }
}

/* A run that needs more than the virtual GPU has is replayed on one that has enough, if there can
 * be one. */
static uint64_t roomy(const view_job *j) {
    const uint64_t largest = (uint64_t)1 << 43; /* more than ten times what any GPU has */
    uint64_t live = j->trace->live_peak_bytes;
    bool is_large = live > j->device.caps.total_bytes / 2 && live < largest;
    return is_large ? dti_min(4 * live, largest) : 0;
}

static replay_spec make_spec(const view_job *j, const contender_ops *contender) {
    const bench_options *o = &j->options->shared;
    return (replay_spec){.trace = j->trace,
                         .device = &j->device,
                         .contender = contender,
                         .settings = o->settings,
                         .n_settings = o->n_settings,
                         .capacity_bytes = o->capacity_bytes != 0 ? o->capacity_bytes : roomy(j),
                         .n_passes = 1};
}

static view_recording describe(const view_job *j) {
    return (view_recording){.trace = j->trace,
                            .holders = &j->holders,
                            .streams = j->streams,
                            .stacks = &j->stacks,
                            .steps = &j->steps,
                            .marks_steps = j->marks_steps};
}

static bool view_contender(void *user, size_t index, FILE *out) {
    view_job *j = user;
    const contender_ops *contender = j->options->shared.contenders[index];
    replay_spec spec = make_spec(j, contender);
    replay_result result = {0};
    view v;
    const view_recording recording = describe(j);
    view_run run = {.recording = &recording, .spec = &spec, .result = &result, .view = &v};
    bool ok =
        view_replay(&spec, &v, &result) || complain(j->trace->path, "the host has no memory left");
    if (ok && (result.outcome == RUN_FAILED || result.outcome == RUN_ABSENT)) {
        bench_complain("%s: %s: %s", j->trace->path, contender->name, result.message);
        ok = false;
    }
    if (ok) {
        find_what_suffices(j, &run, &v);
        view_json_run(out, &run);
    }
    view_fini(&v);
    return ok;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool view_recording_of(view_job *j, const char *path) {
    if (!load(j, path)) {
        return false;
    }
    const view_recording recording = describe(j);
    view_json_recording(stdout, &recording, &j->device);
    return in_children(view_contender, j, j->options->shared.n_contenders, stdout);
}

static int run(const bench_options *options) {
    view_job j = {.options = (const view_options *)options};
    if (!bench_find_device(options, &j.device)) {
        return BENCH_FAILED;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < options->n_operands; i++) {
        ok = view_recording_of(&j, options->operands[i]);
        drop(&j);
    }
    return ok ? BENCH_DONE : BENCH_FAILED;
}

static const view_options defaults = {.shared.device = BENCH_DEVICE_VIRTUAL,
                                      .gpu = TRACE_BUSIEST_GPU};

const bench_command command_view = {
    .name = "view",
    .brief = "what a report draws of a recorded run, as JSON",
    .summary =
        "Replays recordings on the virtual GPU and prints, one JSON object a line, for each of "
        "them\n"
        "who holds the memory at the peak, and for each contender its memory over time and by\n"
        "address, the smallest capacity, and where it stops on smaller devices. `ductile-gpu "
        "report`\n"
        "draws it. Contenders that do not know their own memory are left out.",
    .own = own_options,
    .operand = "FILE...",
    .runs_on = BENCH_ON_VIRTUAL_GPU,
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .run = run,
};
