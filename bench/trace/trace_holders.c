/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_holders.h"

#include "bench/base/array.h"
#include "bench/base/hash_map.h"

#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "the host has no memory left";

/* What a holder has at the event that the walk has come to. */
typedef struct level {
    uint64_t blocks, bytes, freed;
} level;

typedef struct holders_walk {
    const trace_builder *from;
    const trace_steps *steps;
    trace_holders *to;
    uint32_t capacity;
    hash_map by_key;    /* to the holder's index + 1 */
    uint32_t *of_block; /* its holder */
    spill of_block_file;
    level *now; /* of each holder */
    uint64_t live;
} holders_walk;

/* ---- Which holder a block has -------------------------------------------------------------- */

/* Behind event or block number i of a walk. */
static void pass(const holders_walk *w, size_t i) {
    trace_build_pass(w->from, i);
    if (spill_is_time(i)) {
        spill_rest(&w->of_block_file);
        spill_rest(&w->steps->lasting_file);
        spill_rest(&w->from->stacks.of_block_file);
    }
}

static uint8_t size_class_of(uint64_t size) {
    return (uint8_t)(63 - __builtin_clzll(size));
}

static trace_holder describe(const holders_walk *w, size_t block) {
    const build_block *of = &w->from->blocks[block];
    return (trace_holder){.stack = trace_stacks_of(&w->from->stacks, (uint32_t)block),
                          .stream = of->stream,
                          .size_class = size_class_of(of->size),
                          .is_from_before = block < w->from->n_from_before,
                          .is_lasting = w->steps->is_lasting[block],
                          .is_refused = of->is_refused};
}

static uint64_t key_of(const trace_holder *h) {
    uint64_t flags =
        (uint64_t)h->is_refused << 2 | (uint64_t)h->is_from_before << 1 | (uint64_t)h->is_lasting;
    return (uint64_t)h->stack << 32 | (uint64_t)h->stream << 16 | (uint64_t)h->size_class << 8 |
           flags << 1 | 1;
}

static bool assign(holders_walk *w, size_t block) {
    trace_holder holder = describe(w, block);
    uint64_t key = key_of(&holder);
    uintptr_t known = hash_map_find(&w->by_key, key);
    if (known == 0) {
        if (!hash_map_put(&w->by_key, key, w->to->n + 1) ||
            !array_add(&w->to->all, sizeof holder, &w->capacity, &w->to->n, &holder)) {
            return false;
        }
        known = w->to->n;
    }
    w->of_block[block] = (uint32_t)(known - 1);
    return true;
}

static bool assign_all(holders_walk *w) {
    for (size_t i = 0; i < w->from->n_blocks; i++) {
        if (!assign(w, i)) {
            return false;
        }
        pass(w, i);
    }
    w->now = calloc(w->to->n + 1, sizeof *w->now);
    return w->now != NULL;
}

/* ---- The walk ------------------------------------------------------------------------------ */

static void note_moment_of_report(holders_walk *w) {
    for (size_t i = 0; i < w->to->n; i++) {
        trace_holder *h = &w->to->all[i];
        h->blocks = w->now[i].blocks;
        h->bytes = w->now[i].bytes;
        h->freed = w->now[i].freed;
    }
}

static void end_block(holders_walk *w, const build_block *block, level *now) {
    now->blocks--;
    now->bytes -= block->size;
    now->freed -= block->state == BUILD_FREED ? 0 : block->size;
    w->live -= block->size;
}

/* As trace_finish counts: a block that another stream uses lives until that use ends. */
static void play(holders_walk *w, const trace_event *event) {
    if (event->kind != TRACE_ALLOC && event->kind != TRACE_FREE && event->kind != TRACE_OPEN) {
        return;
    }
    const build_block *block = &w->from->blocks[event->slot];
    level *now = &w->now[w->of_block[event->slot]];
    if (event->kind == TRACE_ALLOC) {
        now->blocks++;
        now->bytes += block->size;
        w->live += block->size;
    } else if (event->kind == TRACE_OPEN || block->state == BUILD_FREED) {
        end_block(w, block, now);
    } else {
        now->freed += block->size;
    }
}

/* The event is a request that was refused: behind it memory is as it would have been. */
static bool is_refusal(const holders_walk *w, size_t event) {
    const trace_event *e = &w->from->events[event];
    return e->kind == TRACE_ALLOC && w->from->blocks[e->slot].is_refused;
}

/* The moment of the report so far. */
static void note_fullest(holders_walk *w, size_t event, size_t *end) {
    trace_holders *to = w->to;
    bool refuses = is_refusal(w, event);
    if (refuses > to->is_refusal || (refuses == to->is_refusal && w->live > to->moment_bytes)) {
        to->is_refusal = refuses;
        to->moment_bytes = w->live;
        *end = event + 1;
    }
}

static size_t find_peaks(holders_walk *w) {
    size_t end = 0;
    size_t step = 0;
    for (size_t i = 0; i < w->from->n_events; i++) {
        step += i == w->steps->ends[step];
        play(w, &w->from->events[i]);
        uint64_t *peak = &w->to->step_peaks[step];
        *peak = w->live > *peak ? w->live : *peak;
        note_fullest(w, i, &end);
        pass(w, i);
    }
    return end;
}

/* The fullest moment of a part so far. Blocks from before the recording were there at once. */
typedef struct moment {
    uint64_t live;
    size_t part, n_marks;
    bool has_any, is_of_report;
} moment;

static void put_moment(trace_holders *to, size_t event, size_t n_marks) {
    to->moment_ends[to->n_moments - 1] = event + 1;
    to->moment_events[to->n_moments - 1] = event - n_marks;
}

static void note_moment(holders_walk *w, moment *m, size_t event, bool is_of_report) {
    size_t first = w->from->n_from_before > 0 ? w->from->n_from_before - 1 : 0;
    m->n_marks += w->from->events[event].kind == TRACE_STEP;
    if (event < first) {
        return;
    }
    size_t part = (event - first) * TRACE_HOLDERS_STRETCHES / (w->from->n_events - first);
    bool is_new = !m->has_any || part != m->part;
    if (!is_new && !is_of_report && (m->is_of_report || w->live <= m->live)) {
        return;
    }
    w->to->n_moments += is_new;
    put_moment(w->to, event, m->n_marks);
    m->live = w->live;
    m->part = part;
    m->has_any = true;
    m->is_of_report = is_of_report;
}

static void choose_levels(holders_walk *w) {
    size_t n = w->steps->n;
    w->to->n_levels = n < TRACE_HOLDERS_LEVELS ? n : TRACE_HOLDERS_LEVELS;
    for (size_t i = 0; i < w->to->n_levels; i++) {
        w->to->level_steps[i] = (i + 1) * n / w->to->n_levels - 1;
    }
}

/* At the first event again. */
static size_t start_over(holders_walk *w) {
    memset(w->now, 0, w->to->n * sizeof *w->now);
    w->live = 0;
    return 0;
}

/* Up to the moment of the report, whose holders are noted, and on to the end. */
static void find_moments(holders_walk *w, size_t end_of_moment) {
    size_t n = w->from->n_events;
    moment fullest = {0};
    (void)start_over(w);
    for (size_t i = 0; i < n; i++) {
        play(w, &w->from->events[i]);
        note_moment(w, &fullest, i, i + 1 == end_of_moment);
        if (i + 1 == end_of_moment) {
            note_moment_of_report(w);
        }
        pass(w, i);
    }
    if (fullest.has_any && w->to->moment_ends[w->to->n_moments - 1] < n) {
        w->to->n_moments++;
        put_moment(w->to, n - 1, fullest.n_marks);
    }
}

static void play_on(holders_walk *w, size_t *at, size_t end) {
    for (; *at < end; ++*at) {
        play(w, &w->from->events[*at]);
        pass(w, *at);
    }
}

static void note_levels(holders_walk *w) {
    size_t at = start_over(w);
    for (size_t i = 0; i < w->to->n_levels; i++) {
        play_on(w, &at, w->steps->ends[w->to->level_steps[i]]);
        for (size_t k = 0; k < w->to->n; k++) {
            w->to->all[k].levels[i] = w->now[k].bytes;
        }
    }
}

static void note_moments(holders_walk *w) {
    size_t at = start_over(w);
    for (size_t i = 0; i < w->to->n_moments; i++) {
        play_on(w, &at, w->to->moment_ends[i]);
        for (size_t k = 0; k < w->to->n; k++) {
            w->to->all[k].moments[i] = w->now[k].bytes;
        }
    }
}

static void walk(holders_walk *w) {
    find_moments(w, find_peaks(w));
    choose_levels(w);
    note_levels(w);
    note_moments(w);
}

const char *trace_holders_find(const trace_builder *b, const trace_steps *steps,
                               trace_holders *out) {
    holders_walk w = {.from = b, .steps = steps, .to = out};
    *out = (trace_holders){0};
    w.of_block_file.is_wanted = b->spills;
    w.of_block = spill_zeros(&w.of_block_file, b->n_blocks + 1, sizeof *w.of_block);
    out->step_peaks = calloc(steps->n, sizeof *out->step_peaks);
    out->n_steps = steps->n;
    bool ok = w.of_block != NULL && out->step_peaks != NULL && assign_all(&w);
    if (ok) {
        walk(&w);
    }
    spill_free(&w.of_block_file, w.of_block);
    free(w.now);
    hash_map_drop(&w.by_key);
    return ok ? NULL : no_memory;
}

void trace_holders_drop(trace_holders *holders) {
    free(holders->all);
    free(holders->step_peaks);
    *holders = (trace_holders){0};
}
