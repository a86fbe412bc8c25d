/* SPDX-License-Identifier: Apache-2.0 */
#include "extras/lab/peers/peer.h"

#include "bench/base/stopwatch.h"
#include "bench/cli/cli.h"
#include "bench/cli/report.h"
#include "bench/trace/trace_read.h"
#include "vmm/base/align.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Capacities are told apart to this. */
#define STEP (2 * DTI_MIB)

/* ---- Measuring ----------------------------------------------------------------------------- */

typedef struct server {
    const peer_ops *peer;
    const peer_options *options;
    bench_device device;
    trace **traces;
    int n_traces;
    char reason[512]; /* why a line has no row */
} server;

static bool fail(server *s, const char *reason) {
    (void)snprintf(s->reason, sizeof s->reason, "%s", reason);
    return false;
}

/* Into `streams` go those of the trace. */
static bool make_spec(server *s, const trace *t, uint64_t n_passes, ductile_stream *streams,
                      replay_spec *out) {
    uint64_t numbers[TRACE_MAX_STREAMS];
    double seconds = s->options->seconds < 1e9 ? s->options->seconds : 1e9;
    for (size_t i = 0; i < t->n_streams; i++) {
        numbers[i] = t->streams[i].number;
    }
    /* An allocator that has waited once, as at its cap, waits often. */
    *out = (replay_spec){
        .trace = t,
        .plan = {.device = &s->device, .contender = &s->peer->contender, .streams = streams},
        .n_passes = n_passes,
        .until_ns = host_now_ns() + (uint64_t)(seconds * 1e9),
        .patience = {.again_ns = 10000000, .most_forced = s->peer->most_forced}};
    return s->peer->find_streams(numbers, t->n_streams, streams) == DUCTILE_OK ||
           fail(s, s->peer->fault());
}

/* False: it gave no figures. */
static bool run(server *s, const replay_spec *spec, replay_result *result) {
    replay_run(spec, result);
    if (result->outcome != RUN_FAILED && result->outcome != RUN_ABSENT) {
        return true;
    }
    const char *fault = s->peer->fault();
    return fail(s, fault[0] != '\0' ? fault : result->message);
}

/* From an empty cache: the passes, then, from another one, those in which each call is timed. */
static bool measure(server *s, const trace *t) {
    ductile_stream streams[TRACE_MAX_STREAMS];
    replay_spec spec;
    replay_result result;
    replay_result calls;
    if (!make_spec(s, t, s->options->repeat, streams, &spec) || !run(s, &spec, &result)) {
        return false;
    }
    report_row row = {.spec = &spec, .result = &result};
    if (result.outcome == RUN_COMPLETED) {
        replay_spec timed;
        if (!make_spec(s, t, s->options->repeat > 1 ? 3 : 1, streams, &timed)) {
            return false;
        }
        timed.times_calls = true;
        if (!run(s, &timed, &calls)) {
            return false;
        }
        row.calls = &calls;
    }
    spec.n_passes = result.n_passes;
    report_json(&row);
    return true;
}

static bool completes_within(server *s, const replay_spec *uncapped, uint64_t cap, bool *ok) {
    replay_spec spec = *uncapped;
    replay_result result = {0};
    spec.plan.capacity_bytes = cap;
    *ok = *ok && run(s, &spec, &result);
    return *ok && result.outcome == RUN_COMPLETED;
}

/* The least cap under which one pass completes, to 2 MiB; completion above it is presumed, unlike
 * in mincap.h: on a GPU each try takes seconds. Raised until it suffices: what was held without a
 * cap may have been luck. */
static uint64_t find_min_capacity(server *s, const replay_spec *spec, uint64_t reserved, bool *ok) {
    uint64_t total = dti_round_down(s->device.caps.total_bytes, STEP);
    uint64_t too_little = dti_round_down(spec->trace->live_peak_bytes - 1, STEP);
    uint64_t enough = dti_max(dti_round_up(reserved, STEP), too_little + STEP);
    while (enough < total && !completes_within(s, spec, enough, ok) && *ok) {
        too_little = enough;
        enough = dti_min(total, enough + dti_round_down(enough / 8, STEP) + STEP);
    }
    while (*ok && enough - too_little > STEP) {
        uint64_t middle = too_little + dti_round_down((enough - too_little) / 2, STEP);
        if (completes_within(s, spec, middle, ok)) {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    return enough;
}

static bool measure_capacity(server *s, const trace *t) {
    ductile_stream streams[TRACE_MAX_STREAMS];
    replay_spec spec;
    replay_result result;
    bool ok = make_spec(s, t, 1, streams, &spec) && run(s, &spec, &result);
    if (!ok) {
        return false;
    }
    report_row row = {
        .spec = &spec, .result = &result, .has_min_capacity = result.outcome == RUN_COMPLETED};
    if (row.has_min_capacity) {
        uint64_t reserved = result.total.reserved_peak_bytes;
        row.min_capacity_bytes = find_min_capacity(s, &spec, reserved, &ok);
    }
    if (ok) {
        report_json(&row);
    }
    return ok;
}

static bool write_timeline(server *s, const trace *t, const char *path) {
    ductile_stream streams[TRACE_MAX_STREAMS];
    replay_spec spec;
    replay_result result;
    timeline to = {0};
    if (!timeline_open(&to, path, &s->device, s->reason, sizeof s->reason)) {
        return false;
    }
    bool ok = make_spec(s, t, 1, streams, &spec);
    spec.watch = &to.watch;
    ok = ok && run(s, &spec, &result);
    if (!timeline_close(&to)) {
        ok = fail(s, "the timeline cannot be written");
    }
    if (ok) {
        report_json(&(report_row){.spec = &spec, .result = &result});
    }
    return ok;
}

/* ---- Lines --------------------------------------------------------------------------------- */

static bool answer(server *s, const char *line) {
    char verb[16] = "";
    unsigned n = 0;
    int path_at = 0;
    if (sscanf(line, "%15s %u %n", verb, &n, &path_at) < 2 || n >= (unsigned)s->n_traces) {
        return fail(s, "there is no such trace");
    }
    if (strcmp(verb, "measure") == 0) {
        return measure(s, s->traces[n]);
    }
    if (strcmp(verb, "capacity") == 0) {
        return measure_capacity(s, s->traces[n]);
    }
    return strcmp(verb, "timeline") == 0 ? write_timeline(s, s->traces[n], line + path_at)
                                         : fail(s, "it knows no such verb");
}

static void answer_all(server *s) {
    char line[4096];
    dti_json ready = dti_json_begin_line(stdout);
    dti_json_number(&ready, "ready", (uint64_t)s->n_traces);
    dti_json_end_line(&ready);
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (!answer(s, line)) {
            dti_json row = dti_json_begin_line(stdout);
            dti_json_text(&row, "failed", s->reason);
            dti_json_end_line(&row);
        }
        (void)fflush(stdout);
    }
}

static bool load_traces(server *s) {
    trace_error error = {0};
    s->traces = calloc((size_t)s->options->n_paths, sizeof *s->traces);
    while (s->traces != NULL && s->n_traces < s->options->n_paths) {
        const char *path = s->options->paths[s->n_traces];
        s->traces[s->n_traces] = trace_load(path, TRACE_FULLEST_GPU, &error);
        if (s->traces[s->n_traces] == NULL) {
            bench_complain_of(path, error.line, error.reason);
            return false;
        }
        s->n_traces++;
    }
    return s->traces != NULL;
}

int peer_serve(const peer_ops *peer, const peer_options *options) {
    server s = {.peer = peer, .options = options};
    bool ok = bench_device_find(BENCH_DEVICE_CUDA, 0, &s.device, s.reason, sizeof s.reason);
    if (!ok) {
        bench_complain("%s", s.reason);
    }
    ok = ok && load_traces(&s);
    if (ok) {
        answer_all(&s);
    }
    for (int i = 0; i < s.n_traces; i++) {
        trace_free(s.traces[i]);
    }
    free(s.traces);
    return ok ? BENCH_DONE : BENCH_FAILED;
}

/* ---- Command line -------------------------------------------------------------------------- */

int peer_main(int argc, char **argv, const char *own, int (*run_peer)(const peer_options *)) {
    peer_options options = {.repeat = 2, .seconds = 1e9};
    int i = 1;
    bench_set_program(argv[0]);
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--repeat") == 0) {
            options.repeat = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            options.seconds = strtod(argv[i + 1], NULL);
        } else if (strcmp(argv[i], own) == 0) {
            options.given = argv[i + 1];
        } else {
            break;
        }
    }
    options.paths = argv + i;
    options.n_paths = argc - i;
    if (options.repeat == 0 || options.n_paths == 0 || options.paths[0][0] == '-') {
        (void)fprintf(stderr, "usage: %s %s VALUE [--repeat N] [--seconds S] TRACE...\n", argv[0],
                      own);
        return BENCH_MISUSED;
    }
    return run_peer(&options);
}
