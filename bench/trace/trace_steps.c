/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_steps.h"

#include "bench/base/array.h"

#include <stdlib.h>
#include <string.h>

enum { HALF = 2, FEW = 16 }; /* the most blocks alive, over these */

/* ---- What lasts ---------------------------------------------------------------------------- */

/* Where each block is allocated and freed, by events or by steps; SIZE_MAX: never freed. */
typedef struct life {
    size_t born, freed;
} life;

typedef struct lives {
    life *of; /* by block */
    spill file;
} lives;

/* Behind event or block number i of a walk. */
static void pass(const trace_builder *b, const trace_steps *s, const lives *l, size_t i) {
    trace_build_pass(b, i);
    if (spill_is_time(i)) {
        spill_rest(&l->file);
        spill_rest(&s->born_file);
        spill_rest(&s->lasting_file);
    }
}

/* Before the steps are known: half of all events. */
static void guess_lasting(const trace_builder *b, const lives *l, trace_steps *s) {
    for (size_t i = 0; i < b->n_blocks; i++) {
        s->is_lasting[i] = l->of[i].freed - l->of[i].born >= b->n_events / 2;
        pass(b, s, l, i);
    }
}

/* With them: half of the steps, two at least. */
static void find_lasting(const trace_builder *b, const lives *l, trace_steps *s) {
    size_t half = s->n / 2 > 2 ? s->n / 2 : 2;
    for (size_t i = 0; i < b->n_blocks; i++) {
        const life *of = &l->of[i];
        s->born[i] = (uint32_t)of->born;
        s->is_lasting[i] = of->freed == SIZE_MAX || of->freed - of->born >= half;
        pass(b, s, l, i);
    }
}

static void note_life(lives *l, const trace_event *e, size_t at) {
    if (e->kind == TRACE_ALLOC) {
        l->of[e->slot] = (life){at, SIZE_MAX};
    } else if (e->kind == TRACE_FREE) {
        l->of[e->slot].freed = at;
    }
}

/* ---- Borders ------------------------------------------------------------------------------- */

/* Blocks alive behind an event, of those that do not last; what was refused never lived. */
static size_t count_alive(const trace_builder *b, const trace_steps *s, const trace_event *e,
                          size_t alive) {
    bool counts = (e->kind == TRACE_ALLOC || e->kind == TRACE_FREE) && !s->is_lasting[e->slot] &&
                  !b->blocks[e->slot].is_refused;
    return !counts ? alive : e->kind == TRACE_ALLOC ? alive + 1 : alive - 1;
}

static size_t find_most(const trace_builder *b, const trace_steps *s, const lives *l) {
    size_t most = 0;
    size_t alive = 0;
    for (size_t i = 0; i < b->n_events; i++) {
        alive = count_alive(b, s, &b->events[i], alive);
        most = alive > most ? alive : most;
        pass(b, s, l, i);
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

static bool add_end(trace_steps *s, size_t end) {
    return array_add(&s->ends, sizeof end, &s->capacity, &s->n, &end);
}

static bool find_borders(const trace_builder *b, trace_steps *s, const lives *l) {
    size_t most = find_most(b, s, l);
    size_t alive = 0;
    valley v = {0};
    for (size_t i = 0; i < b->n_events; i++) {
        alive = count_alive(b, s, &b->events[i], alive);
        if (alive > most / HALF) {
            if (v.has_any && v.alive <= most / FEW && !add_end(s, v.end)) {
                return false;
            }
            v = (valley){.is_open = true};
        } else if (v.is_open && (!v.has_any || alive <= v.alive)) {
            v = (valley){.is_open = true, .has_any = true, .end = i + 1, .alive = alive};
        }
        pass(b, s, l, i);
    }
    return true;
}

static bool take_marks(const trace_builder *b, trace_steps *s) {
    for (size_t i = 0; i < b->n_events; i++) {
        if (b->events[i].kind == TRACE_STEP && !add_end(s, i + 1)) {
            return false;
        }
        trace_build_pass(b, i);
    }
    s->n--; /* what follows the last mark belongs to the last step */
    return true;
}

static bool find_steps(const trace_builder *b, lives *l, trace_steps *s) {
    for (size_t i = 0; i < b->n_events; i++) {
        note_life(l, &b->events[i], i);
        pass(b, s, l, i);
    }
    guess_lasting(b, l, s);
    bool ok = b->n_steps > 1 ? take_marks(b, s) : find_borders(b, s, l);
    if (!ok || !add_end(s, b->n_events)) {
        return false;
    }
    for (size_t i = 0, step = 0; i < b->n_events; i++) {
        step += i == s->ends[step];
        note_life(l, &b->events[i], step);
        pass(b, s, l, i);
    }
    find_lasting(b, l, s);
    return true;
}

const char *trace_steps_find(const trace_builder *b, trace_steps *out) {
    const spill place = {.is_wanted = b->spills};
    lives l = {.file = place};
    *out = (trace_steps){.born_file = place, .lasting_file = place};
    l.of = spill_zeros(&l.file, b->n_blocks + 1, sizeof *l.of);
    out->born = spill_zeros(&out->born_file, b->n_blocks + 1, sizeof *out->born);
    out->is_lasting = spill_zeros(&out->lasting_file, b->n_blocks + 1, sizeof *out->is_lasting);
    bool ok =
        l.of != NULL && out->born != NULL && out->is_lasting != NULL && find_steps(b, &l, out);
    spill_free(&l.file, l.of);
    return ok ? NULL : "the host has no memory left";
}

void trace_steps_drop(trace_steps *steps) {
    free(steps->ends);
    spill_free(&steps->born_file, steps->born);
    spill_free(&steps->lasting_file, steps->is_lasting);
    *steps = (trace_steps){0};
}

/* In pieces, so that not all of a long step is in memory at a time. */
static void move_up(trace_builder *b, size_t from, size_t to, size_t n) {
    enum { PIECE = 1 << 16 };
    while (n > 0) {
        size_t m = n < PIECE ? n : PIECE;
        n -= m;
        memmove(&b->events[to + n], &b->events[from + n], m * sizeof *b->events);
        if (m == PIECE) {
            spill_rest(&b->events_file);
        }
    }
}

/* From the end on, so that every event moves once. */
static void spread_events(trace_builder *b, const trace_steps *steps) {
    trace_event *events = b->events;
    size_t to = b->n_events + steps->n - 1;
    for (size_t step = steps->n - 1; step > 0; step--) {
        size_t begin = steps->ends[step - 1];
        size_t n = steps->ends[step] - begin;
        to -= n;
        move_up(b, begin, to, n);
        events[--to] = (trace_event){.kind = TRACE_STEP};
    }
}

const char *trace_steps_mark(trace_builder *b, const trace_steps *steps) {
    size_t n_marks = steps->n - 1;
    if (!spill_reserve(&b->events_file, &b->events, sizeof *b->events, &b->events_capacity,
                       b->n_events + n_marks)) {
        return "the host has no memory left";
    }
    spread_events(b, steps);
    b->n_events += n_marks;
    b->n_steps += n_marks;
    return NULL;
}
