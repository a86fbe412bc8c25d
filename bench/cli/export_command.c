/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile-bench export: the memory of a PyTorch snapshot as events of a Chrome trace. It prints
 * nothing unless all of the snapshot could be read.
 */
#include "bench/base/array.h"
#include "bench/cli/cli.h"
#include "bench/cli/command_line.h"
#include "bench/cli/commands.h"
#include "bench/trace/history_levels.h"
#include "bench/trace/snapshot_steps.h"
#include "vmm/base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --base-ns was not given. */
#define NO_BASE UINT64_MAX

enum { FEWEST_EVENTS = 100, USUAL_EVENTS = 1000000 };

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
    BENCH_NUMBER_OPTION("--max-events", export_options, max_events, FEWEST_EVENTS,
                        "at most about N events a GPU, the peaks among them (1000000)"),
    {0},
};

typedef struct export_gpu {
    const history *history;
    const pickle_value *trace;
    const pickle_value *annotations; /* NULL: none */
    history_levels levels;
    uint64_t number;
    int64_t base_ns; /* what times count from */
    uint64_t most;   /* events, about */
} export_gpu;

enum {
    FIRST_PID = 1900000000, /* far from process ids, and from what the profiler gives devices */
    MEMORY = 0,             /* threads */
    GROWTH,
    ANNOTATIONS,
    STEPS,
    MAX_FRAMES = 20,
    MAX_TEXT = 4096,
    EXTREMES = 5
};

typedef struct printer {
    const export_gpu *gpu;
    dti_json json; /* of the event that is being printed */
    uint64_t *n_printed;
} printer;

/* ---- Pieces -------------------------------------------------------------------------------- */

static void begin(printer *p) {
    (void)fputs((*p->n_printed)++ > 0 ? ",\n" : "", stdout);
    p->json.has_before = false;
    dti_json_open(&p->json, NULL, '{');
}

static void begin_args(printer *p) {
    dti_json_open(&p->json, "args", '{');
}

static void end_args(printer *p) {
    dti_json_close(&p->json, '}');
    dti_json_close(&p->json, '}');
}

/* Microseconds from the base, with at most three decimals and at least one. */
static void print_time(printer *p, uint64_t time_us) {
    int64_t ns = (int64_t)time_us * 1000 - p->gpu->base_ns;
    uint64_t size = ns < 0 ? (uint64_t)-ns : (uint64_t)ns;
    char text[32];
    int length = snprintf(text, sizeof text, "%s%" PRIu64 ".%03u", ns < 0 ? "-" : "", size / 1000,
                          (unsigned)(size % 1000));
    for (int i = 0; i < 2 && text[length - 1] == '0'; i++) {
        text[--length] = '\0';
    }
    dti_json_raw(&p->json, "ts", text);
}

static void begin_event(printer *p, const char *phase, const char *name, int thread,
                        uint64_t time_us) {
    begin(p);
    dti_json_text(&p->json, "ph", phase);
    dti_json_text(&p->json, "cat", "memory");
    dti_json_text(&p->json, "name", name);
    dti_json_number(&p->json, "pid", FIRST_PID + p->gpu->number);
    dti_json_signed(&p->json, "tid", thread);
    print_time(p, time_us);
}

static void copy_text(char *to, size_t size, const pickle_value *text) {
    size_t n = text != NULL && text->kind == PICKLE_STRING ? text->length : 0;
    n = n < size ? n : size - 1;
    for (size_t i = 0; i < n; i++) {
        to[i] = text->as.text[i] != '\0' ? text->as.text[i] : ' ';
    }
    to[n] = '\0';
}

static void print_frame(printer *p, const pickle_value *frame) {
    char name[MAX_TEXT];
    char file[MAX_TEXT];
    char text[2 * MAX_TEXT + 32];
    uint64_t line = 0;
    copy_text(name, sizeof name, pickle_find(frame, "name"));
    copy_text(file, sizeof file, pickle_find(frame, "filename"));
    (void)pickle_get_unsigned(pickle_find(frame, "line"), &line);
    (void)snprintf(text, sizeof text, "%s (%s:%" PRIu64 ")", name, file, line);
    dti_json_text(&p->json, NULL, text);
}

static void print_stack(printer *p, const history_entry *e) {
    const pickle_value frames = history_frames(e);
    dti_json_open(&p->json, "stack", '[');
    for (size_t i = 0; i < pickle_count(&frames) && i < MAX_FRAMES; i++) {
        print_frame(p, pickle_item(&frames, i));
    }
    dti_json_close(&p->json, ']');
}

static const history_entry *entry_at(const printer *p, size_t index) {
    return history_at(p->gpu->history, p->gpu->trace, index);
}

static size_t n_entries(const printer *p) {
    return pickle_count(p->gpu->trace);
}

/* ---- Names --------------------------------------------------------------------------------- */

static void begin_name(printer *p, int thread, const char *name) {
    begin(p);
    dti_json_text(&p->json, "ph", "M");
    dti_json_number(&p->json, "pid", FIRST_PID + p->gpu->number);
    dti_json_signed(&p->json, "tid", thread);
    dti_json_number(&p->json, "ts", 0);
    dti_json_text(&p->json, "name", name);
    begin_args(p);
}

static void print_names(printer *p) {
    static const char *const threads[] = {
        [GROWTH] = "memory from the driver", [ANNOTATIONS] = "annotations", [STEPS] = "steps"};
    char process[48];
    (void)snprintf(process, sizeof process, "GPU %" PRIu64 ": PyTorch's memory", p->gpu->number);
    begin_name(p, 0, "process_name");
    dti_json_text(&p->json, "name", process);
    end_args(p);
    begin_name(p, 0, "process_sort_index");
    dti_json_number(&p->json, "sort_index", FIRST_PID + p->gpu->number);
    end_args(p);
    for (int thread = GROWTH; thread <= STEPS; thread++) {
        begin_name(p, thread, "thread_name");
        dti_json_text(&p->json, "name", threads[thread]);
        end_args(p);
    }
}

/* ---- Counters ------------------------------------------------------------------------------ */

typedef struct moment {
    size_t index;
    uint64_t time_us;
    history_level level;
} moment;

/* Where a stretch begins and ends, and where most is held, most live and least live. */
typedef struct stretch {
    moment first, last, most_held, most_live, least_live;
} stretch;

static void print_counter(printer *p, const moment *at) {
    const history_level *l = &at->level;
    begin_event(p, "C", "memory held, bytes", MEMORY, at->time_us);
    begin_args(p);
    dti_json_signed(&p->json, "live", l->live);
    dti_json_signed(&p->json, "pending", l->pending);
    dti_json_signed(&p->json, "free", l->held - l->live - l->pending);
    end_args(p);
}

static void widen(stretch *s, const moment *now, bool is_first) {
    if (is_first) {
        *s = (stretch){*now, *now, *now, *now, *now};
        return;
    }
    s->last = *now;
    s->most_held = now->level.held > s->most_held.level.held ? *now : s->most_held;
    s->most_live = now->level.live > s->most_live.level.live ? *now : s->most_live;
    s->least_live = now->level.live < s->least_live.level.live ? *now : s->least_live;
}

static int by_index(const void *a, const void *b) {
    size_t x = ((const moment *)a)->index;
    size_t y = ((const moment *)b)->index;
    return (x > y) - (x < y);
}

static void print_stretch(printer *p, const stretch *s) {
    moment all[EXTREMES] = {s->first, s->last, s->most_held, s->most_live, s->least_live};
    qsort(all, EXTREMES, sizeof all[0], by_index);
    for (size_t i = 0; i < EXTREMES; i++) {
        if (i == 0 || all[i].index != all[i - 1].index) {
            print_counter(p, &all[i]);
        }
    }
}

/* All moments, or at most so many that no peak is lost: the extremes of equal stretches. */
static void print_counters(printer *p, size_t most) {
    size_t n = n_entries(p);
    size_t n_stretches = n <= most ? n : most < EXTREMES ? 1 : most / EXTREMES;
    moment now = {.level = p->gpu->levels.start};
    size_t begin_at = 0;
    for (size_t i = 0; i < n_stretches; i++) {
        size_t end = (i + 1) * n / n_stretches; /* n entries of 40 bytes: n * n is a number */
        stretch s = {0};
        for (size_t at = begin_at; at < end; at++) {
            const history_entry *e = entry_at(p, at);
            now = (moment){.index = at,
                           .time_us = e->time_us,
                           .level = history_level_next(&p->gpu->levels, now.level, e)};
            widen(&s, &now, at == begin_at);
        }
        print_stretch(p, &s);
        begin_at = end;
    }
}

/* ---- Memory from the driver, and refusals -------------------------------------------------- */

static bool is_growth(const history_entry *e) {
    return e->action >= HISTORY_SEGMENT_ALLOC; /* and the three behind it */
}

typedef struct growth {
    uint64_t size, time_us;
    size_t index;
} growth;

static int by_size(const void *a, const void *b) {
    const growth *x = a;
    const growth *y = b;
    if (x->size != y->size) {
        return x->size < y->size ? 1 : -1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

static int by_time(const void *a, const void *b) {
    const growth *x = a;
    const growth *y = b;
    return x->time_us != y->time_us ? (x->time_us > y->time_us ? 1 : -1) : by_size(a, b);
}

static bool find_growth(const printer *p, growth **all, size_t *n) {
    size_t capacity = 0;
    for (size_t i = 0; i < n_entries(p); i++) {
        const history_entry *e = entry_at(p, i);
        if (!is_growth(e)) {
            continue;
        }
        const growth found = {.size = e->size, .time_us = e->time_us, .index = i};
        if (!array_add(all, sizeof found, &capacity, n, &found)) {
            return false;
        }
    }
    return true;
}

/* Of too many the largest. */
static bool print_growth(printer *p, size_t most) {
    growth *all = NULL;
    size_t n = 0;
    bool ok = find_growth(p, &all, &n);
    if (ok && n > most) {
        qsort(all, n, sizeof *all, by_size);
        n = most;
        qsort(all, n, sizeof *all, by_time);
    }
    for (size_t i = 0; ok && i < n; i++) {
        const history_entry *e = entry_at(p, all[i].index);
        begin_event(p, "i", history_action_name((history_action)e->action), GROWTH, e->time_us);
        dti_json_text(&p->json, "s", "t");
        begin_args(p);
        dti_json_number(&p->json, "bytes", e->size);
        print_stack(p, e);
        end_args(p);
    }
    free(all);
    return ok;
}

static void print_refusals(printer *p) {
    for (size_t i = 0; i < n_entries(p); i++) {
        const history_entry *e = entry_at(p, i);
        if (e->action == HISTORY_REFUSAL) {
            begin_event(p, "i", "out of memory", MEMORY, e->time_us);
            dti_json_text(&p->json, "s", "g");
            begin_args(p);
            dti_json_number(&p->json, "requested_bytes", e->size);
            dti_json_number(&p->json, "device_free_bytes", e->address);
            print_stack(p, e);
            end_args(p);
        }
    }
}

/* ---- Annotations and steps ----------------------------------------------------------------- */

/* A beginning that has no end yet. */
typedef struct opening {
    uint64_t hash; /* of its name */
    uint64_t time_us;
} opening;

typedef struct marks {
    opening *open; /* the latest last */
    size_t n_open, capacity;
    uint64_t step, step_since;
    bool has_step;
} marks;

/* The latest of that name. Names nest: it is the last one or near it. */
static bool pop_opening(marks *m, uint64_t hash, uint64_t *since) {
    enum { DEPTH = 256 };
    for (size_t i = m->n_open; i > 0 && m->n_open - i < DEPTH; i--) {
        if (m->open[i - 1].hash == hash) {
            *since = m->open[i - 1].time_us;
            memmove(&m->open[i - 1], &m->open[i], (m->n_open - i) * sizeof *m->open);
            m->n_open--;
            return true;
        }
    }
    return false;
}

static void print_slice(printer *p, const char *name, int thread, uint64_t since, uint64_t end) {
    begin_event(p, "X", name, thread, since);
    dti_json_signed(&p->json, "dur", (int64_t)(end - since));
    dti_json_close(&p->json, '}');
}

static void end_mark(printer *p, marks *m, const char *name, uint64_t time_us) {
    char step[48];
    uint64_t since;
    if (!pop_opening(m, hash_map_key_of(name, strlen(name)), &since)) {
        return;
    }
    print_slice(p, name, ANNOTATIONS, since, time_us);
    if (strncmp(name, SNAPSHOT_STEP_PREFIX, strlen(SNAPSHOT_STEP_PREFIX)) != 0) {
        return;
    }
    if (m->has_step) {
        (void)snprintf(step, sizeof step, "step %" PRIu64, m->step);
        print_slice(p, step, STEPS, m->step_since, time_us);
    }
    m->step++;
    m->step_since = time_us;
    m->has_step = true;
}

static bool take_mark(printer *p, marks *m, const pickle_value *mark) {
    char name[MAX_TEXT];
    uint64_t time_us;
    if (!pickle_get_unsigned(pickle_find(mark, "time_us"), &time_us) ||
        time_us > INT64_MAX / 1000) {
        return true;
    }
    copy_text(name, sizeof name, pickle_find(mark, "name"));
    if (pickle_is_string(pickle_find(mark, "stage"), "START")) {
        const opening o = {.hash = hash_map_key_of(name, strlen(name)), .time_us = time_us};
        return array_add(&m->open, sizeof o, &m->capacity, &m->n_open, &o);
    }
    end_mark(p, m, name, time_us);
    return true;
}

/* Annotations that have both ends, and the steps that the optimizer's ends divide: of the latest.
 */
static bool print_slices(printer *p, size_t most) {
    const pickle_value *all = p->gpu->annotations;
    size_t n_own = 0;
    size_t seen = 0;
    marks m = {0};
    bool ok = true;
    for (size_t i = 0; i < pickle_count(all); i++) {
        n_own += snapshot_mark_is_of(pickle_item(all, i), p->gpu->number);
    }
    for (size_t i = 0; ok && i < pickle_count(all); i++) {
        const pickle_value *mark = pickle_item(all, i);
        if (snapshot_mark_is_of(mark, p->gpu->number) && ++seen + most > n_own) {
            ok = take_mark(p, &m, mark);
        }
    }
    free(m.open);
    return ok;
}

/* One event a line, each but the first behind a comma. *n_printed counts them, over all GPUs.
 * False: no host memory. */
static bool print_events(const export_gpu *gpu, uint64_t *n_printed) {
    printer p = {.gpu = gpu, .json = dti_json_to_file(stdout), .n_printed = n_printed};
    print_names(&p);
    print_counters(&p, gpu->most * 3 / 4);
    bool ok = print_growth(&p, gpu->most / 8);
    print_refusals(&p);
    return ok && print_slices(&p, gpu->most / 8);
}

/* ---- All GPUs of a snapshot ---------------------------------------------------------------- */

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
    return pickle_count(x->traces) > HISTORY_MAX_GPUS ? "a history of more than 1024 GPUs" : NULL;
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
        if (reason != NULL || !print_events(&gpu, &n_printed)) {
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
        x->document = history_open(&x->history, &in, &error);
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
