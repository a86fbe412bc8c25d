/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench export: the memory of a PyTorch snapshot as events of a Chrome trace. It prints
 * nothing unless all of the snapshot could be read.
 */
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/cli/export_events.h"
#include "vmm/base/json.h"

#include <stdio.h>
#include <string.h>

/* Of what a snapshot's objects may take in memory; entries of the history lie in a file. */
#define MEMORY_LIMIT ((uint64_t)8 << 30)

/* --base-ns was not given. */
#define NO_BASE UINT64_MAX

enum { MAX_GPUS = 1024, FEWEST_EVENTS = 100, USUAL_EVENTS = 1000000 };

typedef struct export_options {
    bench_options shared; /* operand: the snapshot */
    uint64_t base_ns;
    uint64_t max_events;
} export_options;

static bool complete(bench_parser *p) {
    return p->shared->n_operands == 1 || bench_refuse(p, "it takes one snapshot of PyTorch");
}

static const bench_option own_options[] = {
    {"--base-ns", "N", bench_parse_number,
     .help = "what times count from (the history's beginning)",
     .offset = offsetof(export_options, base_ns), .max = INT64_MAX},
    {"--max-events", "N", bench_parse_number,
     .help = "at most about N events a GPU, the peaks among them (1000000)",
     .offset = offsetof(export_options, max_events), .min = FEWEST_EVENTS},
    {0},
};

typedef struct exporter {
    const export_options *options;
    history history;
    pickle_document *document;
    const pickle_value *traces, *segments, *annotations;
    uint64_t n_bytes; /* of the snapshot */
    uint64_t first_us, last_us;
    bool has_any;
} exporter;

static const char *find_parts(exporter *x) {
    const pickle_value *root = pickle_root(x->document);
    x->traces = pickle_find(root, "device_traces");
    x->segments = pickle_find(root, "segments");
    x->annotations = pickle_find(root, "external_annotations");
    bool has_both = x->traces != NULL && x->traces->kind == PICKLE_LIST && x->segments != NULL &&
                    x->segments->kind == PICKLE_LIST;
    if (!has_both) {
        return "it is a pickle, but no snapshot of PyTorch's memory";
    }
    return pickle_count(x->traces) > MAX_GPUS ? "a history of more than 1024 GPUs" : NULL;
}

static export_gpu gpu_at(const exporter *x, size_t index) {
    uint64_t base_ns = x->options->base_ns != NO_BASE ? x->options->base_ns : x->first_us * 1000;
    return (export_gpu){.history = &x->history,
                        .trace = pickle_item(x->traces, index),
                        .annotations = x->annotations,
                        .number = index,
                        .base_ns = (int64_t)base_ns,
                        .most = x->options->max_events};
}

static const char *find_levels(const exporter *x, export_gpu *gpu) {
    return history_levels_find(&x->history, gpu->trace, x->segments, gpu->number, x->n_bytes,
                               &gpu->levels);
}

/* A trace named many times is read as often: the file bounds it. */
static const char *look_at_gpu(exporter *x, size_t index, uint64_t *n_visited) {
    export_gpu gpu = gpu_at(x, index);
    if (pickle_count(gpu.trace) == 0) {
        return NULL;
    }
    *n_visited += pickle_count(gpu.trace);
    const char *reason = *n_visited > x->n_bytes ? "more history entries than the file can hold"
                                                 : find_levels(x, &gpu);
    if (reason == NULL) {
        bool is_first = !x->has_any || gpu.levels.first_us < x->first_us;
        x->first_us = is_first ? gpu.levels.first_us : x->first_us;
        x->last_us = gpu.levels.last_us > x->last_us ? gpu.levels.last_us : x->last_us;
        x->has_any = true;
    }
    return reason;
}

static const char *look(exporter *x) {
    uint64_t n_visited = 0;
    const char *reason = find_parts(x);
    for (size_t i = 0; reason == NULL && i < pickle_count(x->traces); i++) {
        reason = look_at_gpu(x, i, &n_visited);
    }
    return reason != NULL || x->has_any
               ? reason
               : "it has no history: PyTorch was not recording when it was written";
}

static const char *print_all(const exporter *x) {
    uint64_t n_printed = 0;
    dti_json head = dti_json_begin_line(stdout);
    dti_json_number(&head, "first_us", x->first_us);
    dti_json_number(&head, "last_us", x->last_us);
    dti_json_end_line(&head);
    for (size_t i = 0; i < pickle_count(x->traces); i++) {
        export_gpu gpu = gpu_at(x, i);
        if (pickle_count(gpu.trace) == 0) {
            continue;
        }
        const char *reason = find_levels(x, &gpu);
        if (reason != NULL || !export_events(&gpu, stdout, &n_printed)) {
            return reason != NULL ? reason : "the host has no memory left";
        }
    }
    (void)putchar('\n');
    return NULL;
}

static bool open_snapshot(exporter *x, const char *path, char *reason, size_t size) {
    pickle_error error = {0};
    input in;
    bool ok = input_open(&in, path, reason, size);
    bool is_pickle = ok && input_has(&in, 2) && pickle_recognise(in.at, input_left(&in));
    if (is_pickle) {
        x->document = history_open(&x->history, &in, MEMORY_LIMIT, &error);
    }
    if (ok && x->document == NULL) {
        const char *why = in.reason != NULL      ? in.reason
                          : is_pickle            ? error.reason
                          : input_left(&in) == 0 ? "the file is empty"
                                                 : "it is no pickle of a PyTorch snapshot";
        (void)snprintf(reason, size, "%s", why);
    }
    x->n_bytes = in.n_bytes;
    input_close(&in);
    return x->document != NULL;
}

static int run(const bench_options *options) {
    exporter x = {.options = (const export_options *)options, .history.file.is_wanted = true};
    const char *path = options->operands[0];
    char reason[256];
    bool ok = open_snapshot(&x, path, reason, sizeof reason);
    const char *why = reason;
    if (ok) {
        why = look(&x);
        why = why == NULL ? print_all(&x) : why;
        ok = why == NULL;
    }
    if (!ok) {
        bench_complain_of(path, 0, why);
    }
    history_drop(&x.history);
    pickle_close(x.document);
    return ok ? BENCH_DONE : BENCH_FAILED;
}

static const export_options defaults = {.base_ns = NO_BASE, .max_events = USUAL_EVENTS};

const bench_command command_export = {
    .name = "export",
    .brief = "the memory of a PyTorch snapshot as events of a Chrome trace",
    .summary =
        "Prints when the history of FILE begins and ends, as a JSON object, and behind it the\n"
        "events of a Chrome trace, one a line, with commas between them: what was live, pending\n"
        "and free, memory from the driver, refusals, annotations and steps. `ductile-gpu export`\n"
        "makes a file of them.",
    .own = own_options,
    .operand = "FILE",
    .defaults = &defaults.shared,
    .size = sizeof defaults,
    .complete = complete,
    .runs_on = BENCH_ON_NO_DEVICE,
    .run = run,
};
