/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/view.h"

#include "vmm/base/align.h"

#include <stdlib.h>

/* ---- Memory by state ----------------------------------------------------------------------- */

typedef struct looking {
    view_memory *to;
    const replay_spec *spec;
    const replay_moment *now;
    uint16_t pool; /* whose holes count */
} looking;

static void add_free(const looking *l, const contender_span *span) {
    view_memory *memory = l->to;
    uint16_t pool = replay_pool_of(l->spec, l->now, span);
    memory->free += span->size;
    memory->free_in_pools += pool != 0 ? span->size : 0;
    if (pool == l->pool) {
        memory->holes++;
        memory->largest_hole = dti_max(memory->largest_hole, span->size);
    }
}

static void add_span(void *user, const contender_span *span) {
    const looking *l = user;
    view_memory *memory = l->to;
    switch (span->state) {
    case SPAN_LIVE:
        memory->live += span->size;
        break;
    case SPAN_PENDING:
        memory->pending += span->size;
        break;
    case SPAN_FREE:
        add_free(l, span);
        break;
    }
}

static view_memory look(const replay_spec *spec, const replay_moment *now, uint16_t pool) {
    view_memory memory = {.held = now->stats.reserved_bytes};
    looking l = {.to = &memory, .spec = spec, .now = now, .pool = pool};
    spec->plan.contender->walk(now->contender, add_span, &l);
    memory.cached = memory.held - memory.live - memory.pending - memory.free;
    return memory;
}

/* ---- The replay ---------------------------------------------------------------------------- */

/* Columns of the map are taken at samples, evenly. */
static bool is_column(const trace *t, size_t sample) {
    return t->n_samples <= MEMORY_MAP_COLUMNS ||
           sample * MEMORY_MAP_COLUMNS / t->n_samples !=
               (sample + 1) * MEMORY_MAP_COLUMNS / t->n_samples;
}

/* Blocks from before the recording were there at once: nothing is seen of how they came. */
static bool is_before_recording(const trace *t, uint64_t event) {
    return event + 1 < t->n_from_before;
}

/* The moment that a report is about. Where the request was refused it is not there yet. */
static bool is_moment(const trace *t, uint64_t event) {
    const trace_refusal *worst = trace_worst_refusal(t);
    if (worst == NULL) {
        return event == t->peak_event;
    }
    return event == (worst->event > 0 ? worst->event - 1 : 0);
}

static void take_point(void *user, const replay_spec *spec, const replay_moment *now) {
    view *v = user;
    const contender_stats *stats = &now->stats;
    if (is_moment(spec->trace, now->event)) {
        openings_look(&v->at_moment, spec, now);
    }
    if (is_before_recording(spec->trace, now->event)) {
        v->next_sample++;
        return;
    }
    v->points[v->n_points++] = (view_point){.event = now->event,
                                            .asked = now->live_bytes,
                                            .memory = look(spec, now, 0),
                                            .creates = stats->creates,
                                            .releases = stats->releases,
                                            .maps = stats->maps,
                                            .waits = stats->stream_syncs + stats->event_waits};
    if (is_column(spec->trace, v->next_sample++)) {
        memory_map_add(&v->map, spec->plan.contender, now);
    }
}

bool view_replay(const replay_spec *spec, view *out, replay_result *result) {
    replay_spec own = *spec;
    replay_watch watch = {.sample = take_point, .user = out};
    *out = (view){0};
    out->points = calloc(spec->trace->n_samples + 1, sizeof *out->points);
    if (spec->plan.contender->walk == NULL || out->points == NULL ||
        !memory_map_init(&out->map, spec->trace)) {
        return false;
    }
    own.watch = &watch;
    own.n_passes = 1;
    replay_run(&own, result);
    return memory_map_draw(&out->map);
}

/* ---- Smaller devices ----------------------------------------------------------------------- */

static void note_stop(void *user, const replay_spec *spec, const replay_moment *now) {
    view *v = user;
    view_stop *stop = &v->stops[v->n_stops - 1];
    const trace_event *event = &spec->trace->events[now->event];
    stop->request_bytes = event->kind == TRACE_ALLOC ? event->size : 0;
    stop->memory = look(spec, now, event->kind == TRACE_ALLOC ? event->pool : 0);
    if (stop->capacity_bytes >= v->at_stop_capacity) {
        v->at_stop_capacity = stop->capacity_bytes;
        openings_look(&v->at_stop, spec, now);
    }
}

void view_try(const replay_spec *spec, uint64_t capacity_bytes, view *v) {
    if (v->n_stops == VIEW_MAX_STOPS) {
        return;
    }
    view_stop *stop = &v->stops[v->n_stops++];
    replay_spec own = *spec;
    replay_watch watch = {.stop = note_stop, .user = v};
    replay_result result;
    own.watch = &watch;
    own.n_passes = 1;
    own.plan.is_untimed = true;
    own.plan.capacity_bytes = capacity_bytes;
    stop->capacity_bytes = capacity_bytes;
    replay_run(&own, &result);
    stop->completed = result.outcome == RUN_COMPLETED;
    stop->event = result.stopped_at_event;
}

void view_fini(view *v) {
    free(v->points);
    memory_map_fini(&v->map);
    openings_drop(&v->at_moment);
    openings_drop(&v->at_stop);
    *v = (view){0};
}
