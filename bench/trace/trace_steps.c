/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_steps.h"

#include <stdlib.h>
#include <string.h>

enum { HALF = 2, FEW = 16 }; /* the most blocks alive, over these */

/* ---- What lasts ---------------------------------------------------------------------------- */

/* Where each block is allocated and freed, by events or by steps; SIZE_MAX: never freed. */
typedef struct life {
    size_t born, freed;
} life;

/* Before the steps are known: half of all events. */
static void guess_lasting(const trace_builder *b, const life *lives, trace_steps *s) {
    for (size_t i = 0; i < b->n_blocks; i++) {
        s->is_lasting[i] = lives[i].freed - lives[i].born >= b->n_events / 2;
    }
}

/* With them: half of the steps, two at least. */
static void find_lasting(const trace_builder *b, const life *lives, trace_steps *s) {
    size_t half = s->n / 2 > 2 ? s->n / 2 : 2;
    for (size_t i = 0; i < b->n_blocks; i++) {
        s->born[i] = (uint32_t)lives[i].born;
        s->is_lasting[i] = lives[i].freed == SIZE_MAX || lives[i].freed - lives[i].born >= half;
    }
}

static void note_life(life *lives, const trace_event *e, size_t at) {
    if (e->kind == TRACE_ALLOC) {
        lives[e->slot] = (life){at, SIZE_MAX};
    } else if (e->kind == TRACE_FREE) {
        lives[e->slot].freed = at;
    }
}

/* ---- Borders ------------------------------------------------------------------------------- */

/* Blocks alive behind an event, of those that do not last. */
static size_t count_alive(const trace_steps *s, const trace_event *e, size_t alive) {
    bool counts = (e->kind == TRACE_ALLOC || e->kind == TRACE_FREE) && !s->is_lasting[e->slot];
    return !counts ? alive : e->kind == TRACE_ALLOC ? alive + 1 : alive - 1;
}

static size_t find_most(const trace_builder *b, const trace_steps *s) {
    size_t most = 0;
    size_t alive = 0;
    for (size_t i = 0; i < b->n_events; i++) {
        alive = count_alive(s, &b->events[i], alive);
        most = alive > most ? alive : most;
    }
    return most;
}

/* The lowest point since memory was last half full; the latest of equals. */
typedef struct valley {
    bool is_open; /* memory has been half full */
    bool has_any;
    size_t end; /* behind its event */
    size_t alive;
} valley;

static void add_end(trace_steps *s, size_t end) {
    s->ends[s->n++] = end;
}

static void find_borders(const trace_builder *b, trace_steps *s) {
    size_t most = find_most(b, s);
    size_t alive = 0;
    valley v = {0};
    for (size_t i = 0; i < b->n_events; i++) {
        alive = count_alive(s, &b->events[i], alive);
        if (alive > most / HALF) {
            if (v.has_any && v.alive <= most / FEW) {
                add_end(s, v.end);
            }
            v = (valley){.is_open = true};
        } else if (v.is_open && (!v.has_any || alive <= v.alive)) {
            v = (valley){.is_open = true, .has_any = true, .end = i + 1, .alive = alive};
        }
    }
}

static void take_marks(const trace_builder *b, trace_steps *s) {
    for (size_t i = 0; i < b->n_events; i++) {
        if (b->events[i].kind == TRACE_STEP) {
            add_end(s, i + 1);
        }
    }
    s->n--; /* what follows the last mark belongs to the last step */
}

static void find_steps(const trace_builder *b, life *lives, trace_steps *s) {
    for (size_t i = 0; i < b->n_events; i++) {
        note_life(lives, &b->events[i], i);
    }
    guess_lasting(b, lives, s);
    if (b->n_steps > 1) {
        take_marks(b, s);
    } else {
        find_borders(b, s);
    }
    add_end(s, b->n_events);
    for (size_t i = 0, step = 0; i < b->n_events; i++) {
        step += i == s->ends[step];
        note_life(lives, &b->events[i], step);
    }
    find_lasting(b, lives, s);
}

const char *trace_steps_find(const trace_builder *b, trace_steps *out) {
    *out = (trace_steps){0};
    life *lives = calloc(b->n_blocks + 1, sizeof *lives);
    out->ends = calloc(b->n_events + 1, sizeof *out->ends);
    out->born = calloc(b->n_blocks + 1, sizeof *out->born);
    out->is_lasting = calloc(b->n_blocks + 1, sizeof *out->is_lasting);
    bool ok = lives != NULL && out->ends != NULL && out->born != NULL && out->is_lasting != NULL;
    if (ok) {
        find_steps(b, lives, out);
    }
    free(lives);
    return ok ? NULL : "the host has no memory left";
}

void trace_steps_drop(trace_steps *steps) {
    free(steps->ends);
    free(steps->born);
    free(steps->is_lasting);
    *steps = (trace_steps){0};
}

/* From the end on, so that every event moves once. */
static void spread_events(trace_builder *b, const trace_steps *steps) {
    trace_event *events = b->events;
    size_t to = b->n_events + steps->n - 1;
    for (size_t step = steps->n - 1; step > 0; step--) {
        size_t begin = steps->ends[step - 1];
        size_t n = steps->ends[step] - begin;
        to -= n;
        memmove(&events[to], &events[begin], n * sizeof *events);
        events[--to] = (trace_event){.kind = TRACE_STEP};
    }
}

const char *trace_steps_mark(trace_builder *b, const trace_steps *steps) {
    size_t n_marks = steps->n - 1;
    trace_event *grown = reallocarray(b->events, b->n_events + n_marks + 1, sizeof *grown);
    if (grown == NULL) {
        return "the host has no memory left";
    }
    b->events = grown;
    spread_events(b, steps);
    b->n_events += n_marks;
    b->events_capacity = b->n_events + 1;
    b->n_steps += n_marks;
    return NULL;
}
