/* SPDX-License-Identifier: Apache-2.0 */
/* What `ductile-bench view` prints: one JSON object a line. */
#ifndef DUCTILE_BENCH_CLI_VIEW_JSON_H
#define DUCTILE_BENCH_CLI_VIEW_JSON_H

#include "bench/replay/replay_engine.h"
#include "bench/replay/view.h"
#include "bench/trace/trace_holders.h"

#include <stdio.h>

/* A recording. */
typedef struct view_recording {
    const trace *trace;
    const trace_holders *holders;
    const trace_stream *streams; /* in the holders' order */
    const trace_stacks *stacks;
    const trace_steps *steps;
    bool marks_steps; /* else they were found */
} view_recording;

void view_json_recording(FILE *out, const view_recording *recording, const bench_device *device);

/* One contender on it. */
typedef struct view_run {
    const view_recording *recording;
    const replay_spec *spec;
    const replay_result *result;
    const view *view;
    bool has_min_capacity;
    uint64_t min_capacity_bytes; /* 0: none suffices */
} view_run;

void view_json_run(FILE *out, const view_run *run);

#endif
