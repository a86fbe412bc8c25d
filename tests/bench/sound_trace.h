/* SPDX-License-Identifier: Apache-2.0 */
/* What a trace must hold, however it came about, so that a replay of it is safe. */
#ifndef TESTS_BENCH_SOUND_TRACE_H
#define TESTS_BENCH_SOUND_TRACE_H

#include "bench/trace/trace.h"

#include <stdlib.h>

typedef struct walk {
    bool *is_live; /* of each slot */
    uint64_t n_closed[TRACE_MAX_STREAMS];
    uint64_t n_opened[TRACE_MAX_STREAMS];
} walk;

static inline const char *check_gate(walk *w, const trace *t, size_t index, bool closes) {
    const trace_gate *gate = &t->gates[index];
    if (gate->stream >= t->n_streams) {
        return "a gate of no stream";
    }
    uint64_t *n_closed = &w->n_closed[gate->stream];
    uint64_t *n_opened = &w->n_opened[gate->stream];
    if (closes) {
        if (gate->number != ++*n_closed) {
            return "gates are not numbered in order";
        }
        return *n_closed - *n_opened > t->streams[gate->stream].max_closed_gates
                   ? "more gates are closed than said"
                   : NULL;
    }
    if (gate->number < *n_opened || gate->number > *n_closed) {
        return "a gate opens that is not closed";
    }
    *n_opened = gate->number;
    return NULL;
}

static inline const char *check_gates(walk *w, const trace *t, const trace_event *e, bool closes) {
    if (e->stream == 0 || e->size > t->n_gates || e->stream > t->n_gates - e->size) {
        return "gates that are not there";
    }
    const char *reason = NULL;
    for (size_t i = 0; reason == NULL && i < e->stream; i++) {
        reason = check_gate(w, t, e->size + i, closes);
    }
    return reason;
}

static inline const char *check_event(walk *w, const trace *t, const trace_event *e) {
    bool has_gates = e->kind == TRACE_FREE_GATED || e->kind == TRACE_OPEN;
    if (e->pool > t->pools.n || (e->kind == TRACE_POOL_END && e->pool == 0) ||
        e->slot >= t->n_slots || (!has_gates && e->stream >= t->n_streams)) {
        return "an index is out of range";
    }
    const char *reason = has_gates ? check_gates(w, t, e, e->kind == TRACE_FREE_GATED) : NULL;
    if (reason != NULL) {
        return reason;
    }
    switch ((trace_kind)e->kind) {
    case TRACE_ALLOC:
        if (w->is_live[e->slot] || e->size == 0 || e->size > TRACE_MAX_SIZE) {
            return "a bad allocation";
        }
        w->is_live[e->slot] = true;
        return NULL;
    case TRACE_USE:
        return w->is_live[e->slot] && e->size > 0 ? NULL : "a use of what is not live";
    case TRACE_FREE_GATED:
    case TRACE_FREE:
        if (!w->is_live[e->slot]) {
            return "a slot is freed that is not live";
        }
        w->is_live[e->slot] = false;
        return NULL;
    case TRACE_OPEN:
    case TRACE_STREAM_END:
    case TRACE_POOL_END:
        return NULL;
    case TRACE_STEP:
        break;
    }
    return "an unknown kind";
}

static inline const char *check_events(walk *w, const trace *t) {
    const char *reason = NULL;
    for (size_t i = 0; i < t->n_events && reason == NULL; i++) {
        reason = check_event(w, t, &t->events[i]);
    }
    for (size_t i = 0; i < t->n_streams && reason == NULL; i++) {
        reason =
            t->streams[i].n_gates != w->n_closed[i] ? "the gates of a stream are miscounted" : NULL;
    }
    return reason;
}

static inline const char *check_kept(const trace *t) {
    for (size_t i = 0; i < t->n_kept; i++) {
        const trace_kept *kept = &t->kept[i];
        if (kept->pool == 0 || kept->pool > t->pools.n || kept->stream >= t->n_streams ||
            kept->size == 0 || kept->size > TRACE_MAX_SIZE) {
            return "memory of no pool or stream was kept";
        }
    }
    return NULL;
}

/* NULL, or what is wrong with it. */
static inline const char *unsound_trace(const trace *t) {
    walk w = {.is_live = calloc((size_t)t->n_slots + 1, 1)};
    const char *reason = w.is_live != NULL ? check_events(&w, t) : "no host memory for the test";
    reason = reason == NULL ? check_kept(t) : reason;
    free(w.is_live);
    return reason;
}

#endif
