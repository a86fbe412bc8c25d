/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/view_json.h"

#include "bench/base/provenance.h"

#include <inttypes.h>

static void print_number(FILE *out, const char *name, uint64_t value) {
    (void)fprintf(out, ",\"%s\":%" PRIu64, name, value);
}

static void print_bool(FILE *out, const char *name, bool value) {
    (void)fprintf(out, ",\"%s\":%s", name, value ? "true" : "false");
}

static void print_text(FILE *out, const char *name, const char *text) {
    (void)fprintf(out, ",\"%s\":", name);
    print_json_string(out, text);
}

static const char *comma(size_t index) {
    return index > 0 ? "," : "";
}

/* ---- The recording ------------------------------------------------------------------------- */

static void print_streams(FILE *out, const trace *t) {
    (void)fputs(",\"streams\":[", out);
    for (size_t i = 0; i < t->n_streams; i++) {
        (void)fprintf(out, "%s%" PRIu64, comma(i), t->streams[i].number);
    }
    (void)putc(']', out);
}

static void print_steps(FILE *out, const trace *t) {
    (void)fputs(",\"step_ends\":[", out);
    for (size_t i = 0; i < t->n_step_ends; i++) {
        (void)fprintf(out, "%s%zu", comma(i), t->step_ends[i]);
    }
    (void)putc(']', out);
}

static void print_list(FILE *out, const char *name, const uint64_t *all, size_t n) {
    (void)fprintf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(out, "%s%" PRIu64, comma(i), all[i]);
    }
    (void)putc(']', out);
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

static void print_holder(FILE *out, const view_recording *r, const trace_holder *h) {
    (void)fprintf(out, "{\"stack\":%" PRIu32, h->stack);
    print_number(out, "stream", r->streams[h->stream].number);
    print_number(out, "size_from", UINT64_C(1) << h->size_class);
    print_bool(out, "before_recording", h->is_elder);
    print_bool(out, "lasting", h->is_lasting);
    print_bool(out, "refused", h->is_refused);
    print_number(out, "blocks", h->blocks);
    print_number(out, "bytes", h->bytes);
    print_number(out, "freed_bytes", h->freed);
    print_list(out, "levels", h->levels, r->holders->n_levels);
    if (has_any(h->moments, r->holders->n_moments)) {
        print_list(out, "moments", h->moments, r->holders->n_moments);
    }
    (void)putc('}', out);
}

static void print_holders(FILE *out, const view_recording *r) {
    const trace_holders *holders = r->holders;
    size_t n_printed = 0;
    (void)fputs(",\"level_steps\":[", out);
    for (size_t i = 0; i < holders->n_levels; i++) {
        (void)fprintf(out, "%s%zu", comma(i), holders->level_steps[i]);
    }
    (void)fputs("],\"moment_events\":[", out);
    for (size_t i = 0; i < holders->n_moments; i++) {
        (void)fprintf(out, "%s%zu", comma(i), holders->moment_events[i]);
    }
    (void)fputs("],\"holders\":[", out);
    for (size_t i = 0; i < holders->n; i++) {
        if (ever_holds(&holders->all[i], holders)) {
            (void)fputs(comma(n_printed++), out);
            print_holder(out, r, &holders->all[i]);
        }
    }
    (void)putc(']', out);
}

static void print_step_peaks(FILE *out, const trace_holders *holders) {
    (void)fputs(",\"step_peaks\":[", out);
    for (size_t i = 0; i < holders->n_steps; i++) {
        (void)fprintf(out, "%s%" PRIu64, comma(i), holders->step_peaks[i]);
    }
    (void)putc(']', out);
}

static void print_profiles(FILE *out, const trace_holders *holders) {
    (void)fputs(",\"step_profiles\":[", out);
    for (size_t i = 0; i < holders->n_profiles; i++) {
        for (size_t k = 0; k < TRACE_HOLDERS_PARTS; k++) {
            const char *before = k > 0 ? "," : i > 0 ? "],[" : "[";
            (void)fprintf(out, "%s%" PRIu64, before, holders->profiles[i][k]);
        }
    }
    (void)fputs(holders->n_profiles > 0 ? "]]" : "]", out);
}

/* ---- Maps ----------------------------------------------------------------------------------- */

/* Equal cells that follow each other: how many, and which. */
static void print_column(FILE *out, const uint32_t *cells) {
    for (size_t from = 0; from < MEMORY_MAP_ROWS;) {
        size_t to = from + 1;
        while (to < MEMORY_MAP_ROWS && cells[to] == cells[from]) {
            to++;
        }
        (void)fprintf(out, "%s%zu,%" PRIu32, comma(from), to - from, cells[from]);
        from = to;
    }
}

static void print_columns(FILE *out, const char *name, const memory_map *map,
                          const uint32_t *cells) {
    (void)fprintf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < map->n_columns; i++) {
        (void)fprintf(out, "%s[", comma(i));
        print_column(out, &cells[i * MEMORY_MAP_ROWS]);
        (void)putc(']', out);
    }
    (void)putc(']', out);
}

/* From numbers of blocks to those of their stacks. */
static void name_stacks(const memory_map *map, const trace_stacks *stacks) {
    for (size_t i = 0; i < map->n_columns * MEMORY_MAP_ROWS; i++) {
        uint32_t block = map->blocks_shown[i];
        map->blocks_shown[i] = block != 0 ? trace_stacks_of(stacks, block - 1) : 0;
    }
}

/* stacks: NULL where blocks have no numbers. */
static void print_map(FILE *out, const memory_map *map, const trace_stacks *stacks) {
    (void)fprintf(out, ",\"map\":{\"rows\":%d,\"row_bytes\":%" PRIu64 ",\"events\":[",
                  MEMORY_MAP_ROWS, map->row_bytes);
    for (size_t i = 0; i < map->n_columns; i++) {
        (void)fprintf(out, "%s%" PRIu64, comma(i), map->columns[i].event);
    }
    (void)putc(']', out);
    print_columns(out, "columns", map, map->cells);
    if (stacks != NULL && stacks->n > 0) {
        name_stacks(map, stacks);
        print_columns(out, "stacks", map, map->blocks_shown);
    }
    (void)putc('}', out);
}

/* ---- What the recorded program's own allocator held ---------------------------------------- */

/* At most so many, each the highest of a stretch. */
static void print_held(FILE *out, const recorded_memory *m) {
    enum { MOST = 2000 };
    size_t stretch = m->n_changes / MOST + 1;
    (void)fputs(",\"recorded_held\":[", out);
    for (size_t from = 0; from < m->n_changes; from += stretch) {
        const recorded_change *highest = &m->changes[from];
        for (size_t i = from; i < m->n_changes && i < from + stretch; i++) {
            highest = m->changes[i].held_bytes > highest->held_bytes ? &m->changes[i] : highest;
        }
        (void)fprintf(out, "%s[%zu,%" PRIu64 "]", comma(from), highest->event, highest->held_bytes);
    }
    (void)putc(']', out);
}

/* What was held just before an event, in parts and where each block lay. */
static void print_layout(FILE *out, const trace *t, const recorded_layout *l, uint64_t event) {
    memory_map map;
    (void)fprintf(out, "\"held_bytes\":%" PRIu64, l->held);
    print_number(out, "live_bytes", l->live);
    print_number(out, "pending_bytes", l->pending);
    print_number(out, "free_bytes", l->free);
    print_number(out, "holes", l->holes);
    print_number(out, "largest_hole", l->largest_hole);
    if (memory_map_of_recorded(&map, t, l, event)) {
        print_map(out, &map, NULL);
    }
    memory_map_fini(&map);
}

/* With all that was held then where that is known. */
static void print_refusal(FILE *out, const trace *t, size_t index) {
    const trace_refusal *of = &t->refusals[index];
    (void)fprintf(out, "{\"event\":%zu", of->event);
    print_number(out, "request_bytes", of->size);
    print_number(out, "live_bytes", of->live_bytes);
    print_number(out, "held_bytes", of->held_bytes);
    print_number(out, "device_free_bytes", of->device_free_bytes);
    print_number(out, "stack", of->stack);
    print_bool(out, "replayed", of->is_replayed);
    if (index == t->recorded.refusal && t->recorded.refused.is_known) {
        (void)fputs(",\"recorded\":{", out);
        print_layout(out, t, &t->recorded.refused, of->event);
        (void)putc('}', out);
    }
    (void)putc('}', out);
}

static uint64_t need_of(const trace_refusal *of) {
    return of->live_bytes + of->size;
}

/* Of too many the first ones, and the one that needs most. */
static void print_refusals(FILE *out, const trace *t) {
    enum { MOST = 64 };
    size_t most = 0;
    size_t n = 0;
    for (size_t i = 1; i < t->n_refusals; i++) {
        most = need_of(&t->refusals[i]) > need_of(&t->refusals[most]) ? i : most;
    }
    (void)fputs(",\"refusals\":[", out);
    for (size_t i = 0; i < t->n_refusals; i++) {
        if (i < MOST || i == most) {
            (void)fputs(comma(n++), out);
            print_refusal(out, t, i);
        }
    }
    (void)putc(']', out);
    print_number(out, "n_refusals", t->n_refusals);
}

static void print_recorded(FILE *out, const trace *t) {
    const recorded_memory *m = &t->recorded;
    (void)fputs(",\"recorded\":{", out);
    print_layout(out, t, &m->end, t->n_events - 1);
    print_number(out, "segments", m->n_segments);
    print_number(out, "held_peak_bytes", m->held_peak);
    print_number(out, "device_bytes", m->device_bytes);
    print_number(out, "device_free_bytes", m->device_free_bytes);
    print_bool(out, "expandable", m->is_expandable);
    (void)putc('}', out);
    print_held(out, m);
}

static void print_stacks(FILE *out, const view_recording *r) {
    (void)fputs(",\"stacks\":[", out);
    for (size_t i = 0; i < r->stacks->n; i++) {
        (void)fputs(comma(i), out);
        print_json_string(out, r->stacks->texts[i]);
    }
    (void)putc(']', out);
}

void view_json_recording(FILE *out, const view_recording *recording, const bench_device *device) {
    const trace *t = recording->trace;
    (void)putc('{', out);
    provenance_print_json(out, device);
    (void)fputs("\"kind\":\"recording\"", out);
    print_text(out, "trace", t->name);
    print_text(out, "file", t->path);
    print_bool(out, "snapshot", t->is_snapshot);
    print_number(out, "gpu", t->is_snapshot ? (uint64_t)t->gpu : 0);
    print_number(out, "events", t->n_file_events);
    print_number(out, "replay_events", t->n_events);
    print_number(out, "live_peak_bytes", t->live_peak_bytes);
    print_number(out, "peak_event", t->peak_event);
    print_number(out, "elders", t->n_elders);
    print_number(out, "granule_bytes", device->caps.granule_bytes);
    print_bool(out, "marks_steps", recording->marks_steps);
    print_streams(out, t);
    print_steps(out, t);
    print_step_peaks(out, recording->holders);
    print_profiles(out, recording->holders);
    print_refusals(out, t);
    if (t->recorded.end.is_known) {
        print_recorded(out, t);
    }
    print_holders(out, recording);
    print_stacks(out, recording);
    (void)fputs("}\n", out);
}

/* ---- A contender --------------------------------------------------------------------------- */

static void print_memory(FILE *out, const view_memory *m) {
    (void)fprintf(out,
                  "\"held\":%" PRIu64 ",\"live\":%" PRIu64 ",\"pending\":%" PRIu64
                  ",\"free\":%" PRIu64 ",\"cached\":%" PRIu64 ",\"holes\":%" PRIu64
                  ",\"largest_hole\":%" PRIu64,
                  m->held, m->live, m->pending, m->free, m->cached, m->holes, m->largest_hole);
}

static void print_points(FILE *out, const view *v) {
    (void)fputs(",\"point_fields\":[\"event\",\"asked\",\"held\",\"live\",\"pending\",\"free\","
                "\"cached\",\"holes\",\"creates\",\"releases\",\"maps\",\"waits\"],\"points\":[",
                out);
    for (size_t i = 0; i < v->n_points; i++) {
        const view_point *p = &v->points[i];
        const view_memory *m = &p->memory;
        const uint64_t fields[] = {p->event,   p->asked,    m->held,   m->live,
                                   m->pending, m->free,     m->cached, m->holes,
                                   p->creates, p->releases, p->maps,   p->waits};
        for (size_t k = 0; k < sizeof fields / sizeof fields[0]; k++) {
            (void)fprintf(out, "%s%" PRIu64, k > 0 ? "," : i > 0 ? ",[" : "[", fields[k]);
        }
        (void)putc(']', out);
    }
    (void)putc(']', out);
}

static void print_stops(FILE *out, const view *v) {
    (void)fputs(",\"stops\":[", out);
    for (size_t i = 0; i < v->n_stops; i++) {
        const view_stop *stop = &v->stops[i];
        (void)fprintf(out, "%s{\"capacity_bytes\":%" PRIu64, comma(i), stop->capacity_bytes);
        print_bool(out, "completed", stop->completed);
        if (!stop->completed) {
            print_number(out, "event", stop->event);
            print_number(out, "request_bytes", stop->request_bytes);
            (void)putc(',', out);
            print_memory(out, &stop->memory);
        }
        (void)putc('}', out);
    }
    (void)putc(']', out);
}

/* ---- What keeps free memory apart ---------------------------------------------------------- */

static void print_member(FILE *out, const view_run *run, const opening_span *span) {
    const view_recording *r = run->recording;
    bool is_known = span->block != OPENINGS_NO_BLOCK;
    uint32_t stack = is_known ? trace_stacks_of(r->stacks, span->block) : 0;
    bool is_elder = is_known && span->block < r->trace->n_elders;
    bool is_lasting = is_known && r->steps->is_lasting[span->block];
    (void)fprintf(out, "[%" PRIu64 ",%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%s,%s]", span->size, stack,
                  run->spec->trace->streams[span->stream].number, span->born,
                  is_elder ? "true" : "false", is_lasting ? "true" : "false");
}

static void print_opening(FILE *out, const view_run *run, const openings *o, const opening *of) {
    size_t n = 0;
    (void)fprintf(out, "{\"blocks\":%zu", of->n_blocks);
    print_number(out, "bytes", of->bytes);
    print_number(out, "live_bytes", of->live_bytes);
    print_bool(out, "moves", of->moves);
    (void)fputs(",\"members\":[", out);
    for (size_t i = of->first; i < of->end; i++) {
        if (o->spans[i].state == SPAN_LIVE) {
            (void)fputs(comma(n++), out);
            print_member(out, run, &o->spans[i]);
        }
    }
    (void)fputs("]}", out);
}

static void print_moment(FILE *out, const view_run *run, const char *name, const openings *o,
                         uint64_t capacity_bytes) {
    (void)fprintf(out, ",\"%s\":", name);
    if (!o->is_known) {
        (void)fputs("null", out);
        return;
    }
    (void)fprintf(out, "{\"event\":%" PRIu64, o->event);
    if (o->request_bytes > 0) {
        print_number(out, "request_bytes", o->request_bytes);
        print_number(out, "capacity_bytes", capacity_bytes);
    }
    print_number(out, "largest_hole", o->largest_hole);
    (void)fputs(",\"least\":", out);
    if (o->has_least) {
        print_opening(out, run, o, &o->least);
    } else {
        (void)fputs("null", out);
    }
    (void)fputs(",\"widest\":[", out);
    for (size_t i = 0; i < o->n_widest; i++) {
        (void)fputs(comma(i), out);
        print_opening(out, run, o, &o->widest[i]);
    }
    (void)fputs("]}", out);
}

static void print_openings(FILE *out, const view_run *run) {
    (void)fputs(",\"openings\":{\"member_fields\":[\"bytes\",\"stack\",\"stream\",\"born\","
                "\"before_recording\",\"lasting\"]",
                out);
    print_moment(out, run, "peak", &run->view->at_peak, 0);
    print_moment(out, run, "refusal", &run->view->at_stop, run->view->at_stop_capacity);
    (void)putc('}', out);
}

static void print_settings(FILE *out, const replay_spec *spec) {
    (void)fputs(",\"settings\":[", out);
    for (size_t i = 0; spec->contender == &contender_ductile && i < spec->n_settings; i++) {
        (void)fputs(comma(i), out);
        print_json_string(out, spec->settings[i]);
    }
    (void)putc(']', out);
}

static void print_outcome(FILE *out, const view_run *run) {
    const replay_result *result = run->result;
    bool completed = result->outcome == RUN_COMPLETED;
    print_number(out, "reserved_peak_bytes", result->total.reserved_peak_bytes);
    print_bool(out, "completed", completed);
    if (!completed) {
        print_text(out, "reason",
                   result->outcome == RUN_OUT_OF_MEMORY ? "out of memory" : result->message);
        print_number(out, "stopped_at_event", result->stopped_at_event);
    }
    if (run->min_capacity_bytes > 0) {
        print_number(out, "min_capacity_bytes", run->min_capacity_bytes);
    } else if (run->has_min_capacity) {
        (void)fputs(",\"min_capacity_bytes\":null", out);
    }
    print_number(out, "driver_time_ns", result->total.driver_time_ns);
}

void view_json_run(FILE *out, const view_run *run) {
    const replay_spec *spec = run->spec;
    (void)fputs("{\"kind\":\"run\"", out);
    print_text(out, "file", spec->trace->path);
    print_text(out, "contender", spec->contender->name);
    print_settings(out, spec);
    print_number(out, "capacity_bytes",
                 spec->capacity_bytes != 0 ? spec->capacity_bytes : spec->device->caps.total_bytes);
    print_outcome(out, run);
    print_points(out, run->view);
    print_stops(out, run->view);
    print_openings(out, run);
    print_map(out, &run->view->map, run->recording->stacks);
    (void)fputs("}\n", out);
}
