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
    trace_stream streams[TRACE_MAX_STREAMS]; /* in the holders' order */
    trace_stacks stacks;
    bool marks_steps;      /* else they were found */
    uint64_t before_bytes; /* live when the recording began */
    trace *trace;
} view_job;

/* One contender on it. */
typedef struct view_run {
    const view_job *recording;
    const replay_spec *spec;
    const replay_result *result;
    const view *view;
    bool has_min_capacity;
    uint64_t min_capacity_bytes; /* 0: none suffices */
} view_run;

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
    BENCH_FLAG_OPTION("--quick", view_options, quick,
                      "neither search the smallest capacity nor try smaller devices"),
    BENCH_FLAG_OPTION(
        "--full", view_options, full,
        "do both also for recordings of more than 2000000 events, which are quick otherwise"),
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
    for (size_t i = 0; i < b->n_from_before; i++) {
        j->before_bytes += b->blocks[i].size;
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
    j->builder = (trace_builder){.spills = true, .takes_held = true};
    if (!trace_gather(path, o->gpu, &j->builder, &error)) {
        bench_complain_of(path, error.line, error.reason);
        return false;
    }
    if (o->gpu != TRACE_FULLEST_GPU && !j->builder.is_snapshot) {
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

/* ---- The recording as JSON ----------------------------------------------------------------- */

static void print_streams(dti_json *j, const trace *t) {
    dti_json_open(j, "streams", '[');
    for (size_t i = 0; i < t->n_streams; i++) {
        dti_json_number(j, NULL, t->streams[i].number);
    }
    dti_json_close(j, ']');
}

static bool has_any(const uint64_t *all, size_t n) {
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        found = found || all[i] > 0;
    }
    return found;
}

static bool ever_holds(const trace_holder *h, const trace_holders *all) {
    return h->bytes > 0 || has_any(h->levels, all->n_levels) || has_any(h->moments, all->n_moments);
}

static void print_holder(dti_json *j, const view_job *r, const trace_holder *h) {
    dti_json_open(j, NULL, '{');
    dti_json_number(j, "stack", h->stack);
    dti_json_number(j, "stream", r->streams[h->stream].number);
    dti_json_number(j, "size_from", UINT64_C(1) << h->size_class);
    dti_json_bool(j, "before_recording", h->is_from_before);
    dti_json_bool(j, "lasting", h->is_lasting);
    dti_json_bool(j, "refused", h->is_refused);
    dti_json_number(j, "blocks", h->blocks);
    dti_json_number(j, "bytes", h->bytes);
    dti_json_number(j, "freed_bytes", h->freed);
    dti_json_numbers(j, "levels", h->levels, r->holders.n_levels);
    if (has_any(h->moments, r->holders.n_moments)) {
        dti_json_numbers(j, "moments", h->moments, r->holders.n_moments);
    }
    dti_json_close(j, '}');
}

static void print_holders(dti_json *j, const view_job *r) {
    const trace_holders *holders = &r->holders;
    dti_json_numbers(j, "level_steps", holders->level_steps, holders->n_levels);
    dti_json_numbers(j, "moment_events", holders->moment_events, holders->n_moments);
    dti_json_open(j, "holders", '[');
    for (size_t i = 0; i < holders->n; i++) {
        if (ever_holds(&holders->all[i], holders)) {
            print_holder(j, r, &holders->all[i]);
        }
    }
    dti_json_close(j, ']');
}

/* ---- Maps ----------------------------------------------------------------------------------- */

/* Equal cells that follow each other: how many, and which. */
static void print_column(dti_json *j, const uint32_t *cells) {
    dti_json_open(j, NULL, '[');
    for (size_t from = 0; from < MEMORY_MAP_ROWS;) {
        size_t to = from + 1;
        while (to < MEMORY_MAP_ROWS && cells[to] == cells[from]) {
            to++;
        }
        dti_json_number(j, NULL, to - from);
        dti_json_number(j, NULL, cells[from]);
        from = to;
    }
    dti_json_close(j, ']');
}

static void print_columns(dti_json *j, const char *name, const memory_map *map,
                          const uint32_t *cells) {
    dti_json_open(j, name, '[');
    for (size_t i = 0; i < map->n_columns; i++) {
        print_column(j, &cells[i * MEMORY_MAP_ROWS]);
    }
    dti_json_close(j, ']');
}

/* From numbers of blocks to those of their stacks. */
static void name_stacks(const memory_map *map, const trace_stacks *stacks) {
    for (size_t i = 0; i < map->n_columns * MEMORY_MAP_ROWS; i++) {
        uint32_t block = map->blocks_shown[i];
        map->blocks_shown[i] = block != 0 ? trace_stacks_of(stacks, block - 1) : 0;
    }
}

/* stacks: NULL where blocks have no numbers. */
static void print_map(dti_json *j, const memory_map *map, const trace_stacks *stacks) {
    dti_json_open(j, "map", '{');
    dti_json_number(j, "rows", MEMORY_MAP_ROWS);
    dti_json_number(j, "row_bytes", map->row_bytes);
    dti_json_open(j, "events", '[');
    for (size_t i = 0; i < map->n_columns; i++) {
        dti_json_number(j, NULL, map->columns[i].event);
    }
    dti_json_close(j, ']');
    print_columns(j, "columns", map, map->cells);
    if (stacks != NULL && stacks->n > 0) {
        name_stacks(map, stacks);
        print_columns(j, "stacks", map, map->blocks_shown);
    }
    dti_json_close(j, '}');
}

/* ---- Pools --------------------------------------------------------------------------------- */

static void print_terms(dti_json *j, const recorded_layout *l) {
    dti_json_number(j, "held_bytes", l->held);
    dti_json_number(j, "live_bytes", l->live);
    dti_json_number(j, "pending_bytes", l->pending);
    dti_json_number(j, "free_bytes", l->free);
    dti_json_number(j, "holes", l->holes);
    dti_json_number(j, "largest_hole", l->largest_hole);
}

/* What pools of a trace hold, by number; of those that hold nothing, nothing. */
typedef struct pool_sums {
    const trace_pools *pools;
    recorded_layout *of; /* NULL: the host has no memory, or there are no pools */
} pool_sums;

static pool_sums make_sums(const trace *t) {
    return (pool_sums){&t->pools,
                       t->pools.n > 0 ? calloc(t->pools.n + 1, sizeof(recorded_layout)) : NULL};
}

static void print_sums(dti_json *j, pool_sums *sums) {
    dti_json_open(j, "pools", '[');
    for (size_t i = 1; sums->of != NULL && i <= sums->pools->n; i++) {
        const uint64_t id[] = {sums->pools->ids[i - 1].first, sums->pools->ids[i - 1].second};
        if (sums->of[i].held > 0) {
            dti_json_open(j, NULL, '{');
            dti_json_numbers(j, "id", id, 2);
            print_terms(j, &sums->of[i]);
            dti_json_close(j, '}');
        }
    }
    dti_json_close(j, ']');
    free(sums->of);
}

static void print_pools_of_openings(dti_json *j, const trace *t, const openings *o) {
    static const recorded_state states[] = {[SPAN_LIVE] = RECORDED_LIVE,
                                            [SPAN_PENDING] = RECORDED_PENDING,
                                            [SPAN_FREE] = RECORDED_FREE};
    pool_sums sums = make_sums(t);
    for (size_t i = 0; sums.of != NULL && i < o->n; i++) {
        const recorded_span span = {.size = o->spans[i].size, .state = states[o->spans[i].state]};
        recorded_count_span(&sums.of[o->spans[i].pool], &span);
    }
    print_sums(j, &sums);
}

/* ---- What keeps free memory apart ---------------------------------------------------------- */

static void print_member(dti_json *j, const view_job *r, const opening_span *span) {
    bool is_known = span->block != OPENINGS_NO_BLOCK;
    dti_json_open(j, NULL, '[');
    dti_json_number(j, NULL, span->size);
    dti_json_number(j, NULL, is_known ? trace_stacks_of(&r->stacks, span->block) : 0);
    dti_json_number(j, NULL, r->trace->streams[span->stream].number);
    dti_json_number(j, NULL, span->born);
    dti_json_bool(j, NULL, is_known && span->block < r->trace->n_from_before);
    dti_json_bool(j, NULL, is_known && r->steps.is_lasting[span->block]);
    dti_json_close(j, ']');
}

static void print_opening(dti_json *j, const char *name, const view_job *r, const openings *o,
                          const opening *of) {
    dti_json_open(j, name, '{');
    dti_json_number(j, "blocks", of->n_blocks);
    dti_json_number(j, "bytes", of->bytes);
    dti_json_number(j, "live_bytes", of->live_bytes);
    dti_json_bool(j, "moves", of->moves);
    dti_json_open(j, "members", '[');
    for (size_t i = of->first; i < of->end; i++) {
        if (o->spans[i].state == SPAN_LIVE) {
            print_member(j, r, &o->spans[i]);
        }
    }
    dti_json_close(j, ']');
    dti_json_close(j, '}');
}

static void print_moment(dti_json *j, const view_job *r, const char *name, const openings *o,
                         uint64_t capacity_bytes) {
    if (!o->is_known) {
        dti_json_null(j, name);
        return;
    }
    dti_json_open(j, name, '{');
    dti_json_number(j, "event", o->event);
    if (o->request_bytes > 0) {
        dti_json_number(j, "request_bytes", o->request_bytes);
        dti_json_number(j, "capacity_bytes", capacity_bytes);
    }
    dti_json_number(j, "largest_hole", o->largest_hole);
    if (o->has_least) {
        print_opening(j, "least", r, o, &o->least);
    } else {
        dti_json_null(j, "least");
    }
    dti_json_open(j, "widest", '[');
    for (size_t i = 0; i < o->n_widest; i++) {
        print_opening(j, NULL, r, o, &o->widest[i]);
    }
    dti_json_close(j, ']');
    print_pools_of_openings(j, r->trace, o);
    dti_json_close(j, '}');
}

static void print_member_fields(dti_json *j) {
    static const char *const names[] = {"bytes",  "stack", "stream", "born", "before_recording",
                                        "lasting"};
    dti_json_texts(j, "member_fields", names, sizeof names / sizeof names[0]);
}

static void print_openings(dti_json *j, const view_run *run) {
    const view *v = run->view;
    dti_json_open(j, "openings", '{');
    print_member_fields(j);
    print_moment(j, run->recording, "moment", &v->at_moment, 0);
    print_moment(j, run->recording, "refusal", &v->at_stop, v->at_stop_capacity);
    dti_json_close(j, '}');
}

/* Of what the recorded program's own allocator held at the refusal. */
static void print_recorded_openings(dti_json *j, const view_job *r, const trace_refusal *of) {
    openings found = {0};
    openings_look_at_recorded(&found, r->trace, of);
    dti_json_open(j, "openings", '{');
    print_member_fields(j);
    print_moment(j, r, "refusal", &found, of->held_bytes + of->device_free_bytes);
    dti_json_close(j, '}');
    openings_drop(&found);
}

/* ---- What the recorded program's own allocator held ---------------------------------------- */

/* At most so many, each the highest of a stretch. */
static void print_held(dti_json *j, const recorded_memory *m) {
    enum { MOST = 2000 };
    size_t stretch = m->n_changes / MOST + 1;
    dti_json_open(j, "recorded_held", '[');
    for (size_t from = 0; from < m->n_changes; from += stretch) {
        const recorded_change *highest = &m->changes[from];
        for (size_t i = from; i < m->n_changes && i < from + stretch; i++) {
            highest = m->changes[i].held_bytes > highest->held_bytes ? &m->changes[i] : highest;
        }
        const uint64_t point[] = {highest->event, highest->held_bytes};
        dti_json_numbers(j, NULL, point, 2);
    }
    dti_json_close(j, ']');
}

static void print_pools_of_layout(dti_json *j, const trace *t, const recorded_layout *l) {
    pool_sums sums = make_sums(t);
    for (size_t i = 0; sums.of != NULL && i < l->n_spans; i++) {
        recorded_count_span(&sums.of[l->spans[i].pool], &l->spans[i]);
    }
    print_sums(j, &sums);
}

/* What was held just before an event, in parts and where each block lay. */
static void print_layout(dti_json *j, const view_job *r, const recorded_layout *l, uint64_t event) {
    const trace *t = r->trace;
    memory_map map;
    print_terms(j, l);
    if (memory_map_of_recorded(&map, t, l, event)) {
        print_map(j, &map, &r->stacks);
    }
    memory_map_fini(&map);
    print_pools_of_layout(j, t, l);
}

/* With all that was held then where that is known. */
static void print_refusal(dti_json *j, const view_job *r, size_t index) {
    const trace *t = r->trace;
    const trace_refusal *of = &t->refusals[index];
    dti_json_open(j, NULL, '{');
    dti_json_number(j, "event", of->event);
    dti_json_number(j, "request_bytes", of->size);
    dti_json_number(j, "live_bytes", of->live_bytes);
    dti_json_number(j, "held_bytes", of->held_bytes);
    dti_json_number(j, "device_free_bytes", of->device_free_bytes);
    dti_json_number(j, "stack", of->stack);
    dti_json_bool(j, "replayed", of->is_replayed);
    if (index == t->recorded.refusal && t->recorded.refused.is_known) {
        dti_json_open(j, "recorded", '{');
        print_layout(j, r, &t->recorded.refused, of->event);
        print_recorded_openings(j, r, of);
        dti_json_close(j, '}');
    }
    dti_json_close(j, '}');
}

/* Of too many the first ones, and the one that needs most. */
static void print_refusals(dti_json *j, const view_job *r) {
    const trace *t = r->trace;
    enum { MOST = 64 };
    const trace_refusal *worst = trace_worst_refusal(t);
    dti_json_open(j, "refusals", '[');
    for (size_t i = 0; i < t->n_refusals; i++) {
        if (i < MOST || &t->refusals[i] == worst) {
            print_refusal(j, r, i);
        }
    }
    dti_json_close(j, ']');
    dti_json_number(j, "n_refusals", t->n_refusals);
}

static void print_recorded(dti_json *j, const view_job *r) {
    const trace *t = r->trace;
    const recorded_memory *m = &t->recorded;
    dti_json_open(j, "recorded", '{');
    print_layout(j, r, &m->end, t->n_events - 1);
    dti_json_number(j, "segments", m->n_segments);
    dti_json_number(j, "held_peak_bytes", m->held_peak);
    dti_json_number(j, "device_bytes", m->device_bytes);
    dti_json_number(j, "device_free_bytes", m->device_free_bytes);
    dti_json_number(j, "spills", m->spills);
    dti_json_number(j, "spilled_peak_bytes", m->spilled_peak);
    dti_json_bool(j, "expandable", m->is_expandable);
    dti_json_close(j, '}');
    print_held(j, m);
}

/* All of the snapshot. */
static void print_gpus(dti_json *j, const recorded_memory *m) {
    dti_json_open(j, "gpus", '[');
    for (size_t i = 0; i < m->n_gpus; i++) {
        const recorded_gpu *g = &m->gpus[i];
        dti_json_open(j, NULL, '{');
        dti_json_number(j, "gpu", i);
        dti_json_number(j, "events", g->n_events);
        dti_json_number(j, "refusals", g->n_refusals);
        dti_json_number(j, "held_bytes", g->held_bytes);
        dti_json_number(j, "held_peak_bytes", g->held_peak);
        dti_json_number(j, "live_bytes", g->live_bytes);
        dti_json_number(j, "live_peak_bytes", g->live_peak);
        dti_json_close(j, '}');
    }
    dti_json_close(j, ']');
}

static void print_stacks(dti_json *j, const view_job *r) {
    dti_json_texts(j, "stacks", (const char *const *)r->stacks.texts, r->stacks.n);
}

static void print_recording(const view_job *recording) {
    const trace *t = recording->trace;
    const trace_refusal *worst = trace_worst_refusal(t);
    dti_json line = provenance_begin_row(stdout);
    dti_json *j = &line;
    provenance_json(j, &recording->device);
    dti_json_text(j, "kind", "recording");
    dti_json_text(j, "trace", t->name);
    dti_json_text(j, "file", t->path);
    dti_json_bool(j, "snapshot", t->is_snapshot);
    dti_json_number(j, "gpu", t->is_snapshot ? (uint64_t)t->gpu : 0);
    dti_json_number(j, "events", t->n_file_events);
    dti_json_number(j, "replay_events", t->n_events);
    dti_json_number(j, "live_peak_bytes", t->live_peak_bytes);
    dti_json_number(j, "peak_event", t->peak_event);
    dti_json_open(j, "moment", '{');
    dti_json_bool(j, "is_refusal", recording->holders.is_refusal);
    dti_json_number(j, "event", worst != NULL ? worst->event : t->peak_event);
    dti_json_number(j, "bytes", recording->holders.moment_bytes);
    dti_json_close(j, '}');
    dti_json_number(j, "blocks_before", t->n_from_before);
    dti_json_number(j, "blocks_of_unknown_pool", t->n_poolless);
    dti_json_number(j, "before_bytes", recording->before_bytes);
    dti_json_number(j, "granule_bytes", recording->device.caps.granule_bytes);
    dti_json_bool(j, "replays_pools", t->pools.n > 0);
    dti_json_bool(j, "marks_steps", recording->marks_steps);
    print_gpus(j, &t->recorded);
    print_streams(j, t);
    dti_json_numbers(j, "step_ends", t->step_ends, t->n_step_ends);
    dti_json_numbers(j, "step_peaks", recording->holders.step_peaks, recording->holders.n_steps);
    print_refusals(j, recording);
    if (t->recorded.end.is_known) {
        print_recorded(j, recording);
    }
    print_holders(j, recording);
    print_stacks(j, recording);
    dti_json_end_line(j);
}

/* ---- A contender as JSON ------------------------------------------------------------------- */

static void print_memory(dti_json *j, const view_memory *m) {
    dti_json_number(j, "held", m->held);
    dti_json_number(j, "live", m->live);
    dti_json_number(j, "pending", m->pending);
    dti_json_number(j, "free", m->free);
    dti_json_number(j, "cached", m->cached);
    dti_json_number(j, "free_in_pools", m->free_in_pools);
    dti_json_number(j, "holes", m->holes);
    dti_json_number(j, "largest_hole", m->largest_hole);
}

static void print_points(dti_json *j, const view *v) {
    static const char *const names[] = {"event", "asked",  "held",         "live",    "pending",
                                        "free",  "cached", "holes",        "creates", "releases",
                                        "maps",  "waits",  "free_in_pools"};
    enum { N = sizeof names / sizeof names[0] };
    dti_json_texts(j, "point_fields", names, N);
    dti_json_open(j, "points", '[');
    for (size_t i = 0; i < v->n_points; i++) {
        const view_point *p = &v->points[i];
        const view_memory *m = &p->memory;
        const uint64_t fields[N] = {p->event, p->asked,  m->held,         m->live,    m->pending,
                                    m->free,  m->cached, m->holes,        p->creates, p->releases,
                                    p->maps,  p->waits,  m->free_in_pools};
        dti_json_numbers(j, NULL, fields, N);
    }
    dti_json_close(j, ']');
}

static void print_stops(dti_json *j, const view *v) {
    dti_json_open(j, "stops", '[');
    for (size_t i = 0; i < v->n_stops; i++) {
        const view_stop *stop = &v->stops[i];
        dti_json_open(j, NULL, '{');
        dti_json_number(j, "capacity_bytes", stop->capacity_bytes);
        dti_json_bool(j, "completed", stop->completed);
        if (!stop->completed) {
            dti_json_number(j, "event", stop->event);
            dti_json_number(j, "request_bytes", stop->request_bytes);
            print_memory(j, &stop->memory);
        }
        dti_json_close(j, '}');
    }
    dti_json_close(j, ']');
}

/* ---- A contender's outcome ------------------------------------------------------------------ */

static void print_outcome(dti_json *j, const view_run *run) {
    const replay_result *result = run->result;
    bool completed = result->outcome == RUN_COMPLETED;
    dti_json_number(j, "reserved_peak_bytes", result->total.reserved_peak_bytes);
    dti_json_bool(j, "completed", completed);
    if (!completed) {
        dti_json_text(j, "reason",
                      result->outcome == RUN_OUT_OF_MEMORY ? "out of memory" : result->message);
        dti_json_number(j, "stopped_at_event", result->stopped_at_event);
    }
    if (run->min_capacity_bytes > 0) {
        dti_json_number(j, "min_capacity_bytes", run->min_capacity_bytes);
    } else if (run->has_min_capacity) {
        dti_json_null(j, "min_capacity_bytes");
    }
    dti_json_number(j, "driver_time_ns", result->total.driver_time_ns);
}

static void print_run(FILE *out, const view_run *run) {
    const replay_spec *spec = run->spec;
    bool is_ductile = spec->plan.contender == &contender_ductile;
    dti_json line = provenance_begin_row(out);
    dti_json *j = &line;
    dti_json_text(j, "kind", "run");
    dti_json_text(j, "file", spec->trace->path);
    dti_json_text(j, "contender", spec->plan.contender->name);
    dti_json_texts(j, "settings", spec->plan.settings, is_ductile ? spec->plan.n_settings : 0);
    dti_json_number(j, "capacity_bytes", testbed_capacity(&spec->plan));
    print_outcome(j, run);
    print_points(j, run->view);
    print_stops(j, run->view);
    print_openings(j, run);
    print_map(j, &run->view->map, &run->recording->stacks);
    dti_json_end_line(j);
}

/* ---- Contenders ---------------------------------------------------------------------------- */

/* What the recorded program's allocator could have where it was refused most; 0: not known. */
static uint64_t recorded_device(const trace *t) {
    const trace_refusal *worst = trace_worst_refusal(t);
    bool is_known = worst != NULL && worst->held_bytes > 0;
    return is_known ? worst->held_bytes + worst->device_free_bytes : 0;
}

/* The devices that people have, and others evenly between them: as far as they are too small. */
static void try_smaller(const replay_spec *spec, uint64_t suffices, view *v) {
    for (size_t i = 0; i < sizeof usual_devices / sizeof usual_devices[0]; i++) {
        if (usual_devices[i] * DTI_GIB < suffices) {
            view_try(spec, usual_devices[i] * DTI_GIB, v);
        }
    }
    uint64_t granule = spec->plan.device->caps.granule_bytes;
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

static uint64_t kept_bytes(const trace *t) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->n_kept; i++) {
        bytes += t->kept[i].size;
    }
    return bytes;
}

/* A run that needs more than the virtual GPU has is replayed on one that has enough, if there can
 * be one. */
static uint64_t roomy(const view_job *j) {
    const uint64_t largest = (uint64_t)1 << 43; /* more than ten times what any GPU has */
    uint64_t live = j->trace->live_peak_bytes + kept_bytes(j->trace);
    bool is_large = live > j->device.caps.total_bytes / 2 && live < largest;
    return is_large ? dti_min(4 * live, largest) : 0;
}

/* What was given may be too little: then the search begins with as much as there can be. */
static void search(const view_job *j, view_run *run) {
    replay_spec spec = *run->spec;
    replay_result result = *run->result;
    if (result.outcome == RUN_OUT_OF_MEMORY && j->options->shared.capacity_bytes != 0) {
        spec.plan.capacity_bytes = roomy(j);
        replay_run(&spec, &result);
    }
    run->has_min_capacity = result.outcome == RUN_COMPLETED;
    if (run->has_min_capacity) {
        run->min_capacity_bytes = mincap_find(&spec, &result);
    }
}

static void find_what_suffices(const view_job *j, view_run *run, view *v) {
    if (searches(j)) {
        search(j, run);
    }
    if (run->min_capacity_bytes > 0) {
        try_smaller(run->spec, run->min_capacity_bytes, v);
    }
    if (run->result->outcome == RUN_OUT_OF_MEMORY) {
        v->at_stop_capacity = 0; /* this one is what was asked about */
        view_try(run->spec, testbed_capacity(&run->spec->plan), v);
    }
}

static replay_spec make_spec(const view_job *j, const contender_ops *contender) {
    const bench_options *o = &j->options->shared;
    replay_spec spec = {
        .trace = j->trace, .plan = bench_plan_of(o, &j->device, contender), .n_passes = 1};
    spec.plan.capacity_bytes = o->capacity_bytes != 0 ? o->capacity_bytes : roomy(j);
    return spec;
}

static bool view_contender(void *user, size_t index, FILE *out) {
    view_job *j = user;
    const contender_ops *contender = j->options->shared.contenders[index];
    replay_spec spec = make_spec(j, contender);
    replay_result result = {0};
    view v;
    view_run run = {.recording = j, .spec = &spec, .result = &result, .view = &v};
    bool ok =
        view_replay(&spec, &v, &result) || complain(j->trace->path, "the host has no memory left");
    if (ok && (result.outcome == RUN_FAILED || result.outcome == RUN_ABSENT)) {
        bench_complain("%s: %s: %s", j->trace->path, contender->name, result.message);
        ok = false;
    }
    if (ok) {
        find_what_suffices(j, &run, &v);
        print_run(out, &run);
    }
    view_fini(&v);
    return ok;
}

/* ---- The whole ----------------------------------------------------------------------------- */

static bool view_recording_of(view_job *j, const char *path) {
    if (!load(j, path)) {
        return false;
    }
    print_recording(j);
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
                                      .gpu = TRACE_FULLEST_GPU};

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
