/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/openings.h"

#include "bench/base/array.h"
#include "bench/base/hash_map.h"

#include <stdlib.h>
#include <string.h>

/* ---- A window that slides over spans -------------------------------------------------------- */

/* No opening reaches over it. */
static bool is_wall(const opening_span *span) {
    return span->state == SPAN_PENDING || span->is_apart;
}

static bool follows(const opening_span *before, const opening_span *span) {
    return !span->begins && before->address + before->size == span->address && !is_wall(before);
}

static void push(opening *w, const opening_span *spans, size_t index) {
    const opening_span *span = &spans[index];
    bool is_live = span->state == SPAN_LIVE;
    if (is_wall(span) || index == 0 || !follows(&spans[index - 1], span)) {
        *w = (opening){.first = index};
    }
    w->end = index + 1;
    if (is_wall(span)) {
        w->first = index + 1;
        return;
    }
    w->bytes += span->size;
    w->live_bytes += is_live ? span->size : 0;
    w->n_blocks += is_live;
}

static void pop(opening *w, const opening_span *spans) {
    const opening_span *span = &spans[w->first++];
    bool is_live = span->state == SPAN_LIVE;
    w->bytes -= span->size;
    w->live_bytes -= is_live ? span->size : 0;
    w->n_blocks -= is_live;
}

static bool has_hole(const opening *w) {
    return w->bytes > w->live_bytes;
}

/* The largest window that ends at each span has no more live blocks than it may, and there is none
 * larger: taking spans from its beginning is all that can be done. */
bool openings_widest(const opening_span *spans, size_t n, size_t max_blocks, opening *out) {
    opening w = {0};
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        push(&w, spans, i);
        while (w.n_blocks > max_blocks) {
            pop(&w, spans);
        }
        bool is_better = !found || w.bytes > out->bytes ||
                         (w.bytes == out->bytes && w.live_bytes < out->live_bytes);
        if (w.first < w.end && has_hole(&w) && is_better) {
            *out = w;
            found = true;
        }
    }
    return found;
}

/* Free memory beside it is a part of the hole. */
static void add_free_sides(opening *o, const opening_span *spans, size_t n) {
    while (o->first > 0 && spans[o->first - 1].state == SPAN_FREE &&
           !spans[o->first - 1].is_apart && follows(&spans[o->first - 1], &spans[o->first])) {
        o->bytes += spans[--o->first].size;
    }
    while (o->end < n && spans[o->end].state == SPAN_FREE && !spans[o->end].is_apart &&
           follows(&spans[o->end - 1], &spans[o->end])) {
        o->bytes += spans[o->end++].size;
    }
}

bool openings_least(const opening_span *spans, size_t n, uint64_t request, size_t max_blocks,
                    opening *out) {
    opening w = {0};
    bool found = false;
    for (size_t i = 0; i < n; i++) {
        push(&w, spans, i);
        while (w.first < w.end &&
               (w.n_blocks > max_blocks || w.bytes - spans[w.first].size >= request)) {
            pop(&w, spans);
        }
        if (w.first < w.end && w.bytes >= request && (!found || w.live_bytes < out->live_bytes)) {
            *out = w;
            found = true;
        }
    }
    if (found) {
        add_free_sides(out, spans, n);
    }
    return found;
}

/* ---- Elsewhere ------------------------------------------------------------------------------ */

/* Sizes of the holes outside an opening. */
typedef struct holes {
    uint64_t *sizes;
    size_t n;
    uint32_t capacity;
} holes;

static bool find_holes(holes *h, const opening_span *spans, size_t n, const opening *o) {
    for (size_t i = 0; i < n; i++) {
        bool is_outside = i < o->first || i >= o->end;
        bool is_hole = spans[i].state == SPAN_FREE && spans[i].kind == spans[o->first].kind &&
                       spans[i].pool == spans[o->first].pool;
        if (!is_hole || !is_outside) {
            continue;
        }
        bool widens = h->n > 0 && i > 0 && i != o->end && spans[i - 1].state == SPAN_FREE &&
                      follows(&spans[i - 1], &spans[i]);
        if (widens) {
            h->sizes[h->n - 1] += spans[i].size;
        } else if (!array_add(&h->sizes, sizeof *h->sizes, &h->capacity, &h->n, &spans[i].size)) {
            return false;
        }
    }
    return true;
}

static bool take_best(holes *h, uint64_t size) {
    size_t best = h->n;
    for (size_t i = 0; i < h->n; i++) {
        if (h->sizes[i] >= size && (best == h->n || h->sizes[i] < h->sizes[best])) {
            best = i;
        }
    }
    if (best < h->n) {
        h->sizes[best] -= size;
    }
    return best < h->n;
}

static int by_falling_size(const void *a, const void *b) {
    return array_by_number(b, a);
}

bool openings_fit_elsewhere(const opening_span *spans, size_t n, const opening *o) {
    uint64_t sizes[OPENINGS_MAX_BLOCKS];
    size_t n_sizes = 0;
    holes h = {0};
    for (size_t i = o->first; i < o->end && n_sizes < OPENINGS_MAX_BLOCKS; i++) {
        if (spans[i].state == SPAN_LIVE) {
            sizes[n_sizes++] = spans[i].size;
        }
    }
    bool fits = n_sizes == o->n_blocks && find_holes(&h, spans, n, o);
    qsort(sizes, n_sizes, sizeof sizes[0], by_falling_size);
    for (size_t i = 0; fits && i < n_sizes; i++) {
        fits = take_best(&h, sizes[i]);
    }
    free(h.sizes);
    return fits;
}

/* ---- The spans of a moment ------------------------------------------------------------------ */

typedef struct gathering {
    openings *to;
    const replay_spec *spec;
    const replay_moment *now;
    ductile_stream stream; /* of the request, if there is one */
    uint16_t pool;         /* of it */
    bool has_failed;
} gathering;

static bool serves(const gathering *g, const contender_span *span, uint16_t pool) {
    uint64_t request = g->to->request_bytes;
    bool is_of_size = span->stream == g->stream && request >= span->least && request <= span->most;
    return pool == g->pool && (request == 0 || is_of_size);
}

static void add_span(void *user, const contender_span *span) {
    gathering *g = user;
    openings *o = g->to;
    uint16_t pool = replay_pool_of(g->spec, g->now, span);
    const opening_span found = {.address = span->address,
                                .size = span->size,
                                .block = OPENINGS_NO_BLOCK,
                                .state = (uint8_t)span->state,
                                .is_apart = !serves(g, span, pool),
                                .pool = pool,
                                .kind = (uint64_t)(uintptr_t)span->stream * 2 +
                                        (span->most != UINT64_MAX),
                                .begins = span->begins};
    bool ok = array_add(&o->spans, sizeof found, &o->capacity, &o->n, &found);
    g->has_failed = g->has_failed || !ok;
}

/* Only memory of the request's stream and pool may serve it. */
static bool add_recorded(openings *o, const recorded_memory *m, const recorded_span *span) {
    static const uint8_t states[] = {[RECORDED_LIVE] = SPAN_LIVE,
                                     [RECORDED_PENDING] = SPAN_PENDING,
                                     [RECORDED_FREE] = SPAN_FREE};
    const opening_span found = {.address = span->address,
                                .size = span->size,
                                .block = span->block != 0 ? span->block - 1 : OPENINGS_NO_BLOCK,
                                .state = states[span->state],
                                .is_apart = span->stream != m->refused_stream ||
                                            span->pool != m->refused_pool,
                                .kind = span->stream,
                                .pool = (uint16_t)span->pool,
                                .begins = span->begins};
    return array_add(&o->spans, sizeof found, &o->capacity, &o->n, &found);
}

/* When each block was allocated, and on which stream. */
static bool date_blocks(openings *o, const trace *t) {
    hash_map slots = {0};
    trace_blocks blocks;
    bool ok = trace_blocks_init(&blocks, t);
    if (ok) {
        trace_blocks_follow(&blocks, t, o->event);
    }
    for (uint32_t slot = 0; ok && slot < t->n_slots; slot++) {
        ok = blocks.at[slot].size == 0 || hash_map_put(&slots, blocks.at[slot].number, slot + 1u);
    }
    for (size_t i = 0; ok && i < o->n; i++) {
        opening_span *span = &o->spans[i];
        bool is_known = span->state == SPAN_LIVE && span->block != OPENINGS_NO_BLOCK;
        uintptr_t slot = is_known ? hash_map_find(&slots, (uint64_t)span->block + 1) : 0;
        if (slot != 0) {
            span->born = blocks.at[slot - 1].born;
            span->stream = blocks.at[slot - 1].stream;
        }
    }
    hash_map_drop(&slots);
    free(blocks.at);
    return ok;
}

static bool put_addresses(hash_map *slots, const trace *t, const replay_moment *now) {
    for (uint32_t slot = 0; slot < t->n_slots; slot++) {
        if (now->addresses[slot] != 0 && !hash_map_put(slots, now->addresses[slot], slot + 1u)) {
            return false;
        }
    }
    return true;
}

/* A refused allocation has no address. */
static bool name_blocks(openings *o, const trace *t, const replay_moment *now) {
    hash_map slots = {0};
    trace_blocks blocks;
    bool ok = trace_blocks_init(&blocks, t) && put_addresses(&slots, t, now);
    if (ok) {
        trace_blocks_follow(&blocks, t, o->event + 1);
    }
    for (size_t i = 0; ok && i < o->n; i++) {
        opening_span *span = &o->spans[i];
        uintptr_t slot = span->state == SPAN_LIVE ? hash_map_find(&slots, span->address) : 0;
        if (slot != 0) {
            span->born = blocks.at[slot - 1].born;
            span->block = blocks.at[slot - 1].number - 1;
            span->stream = blocks.at[slot - 1].stream;
        }
    }
    hash_map_drop(&slots);
    free(blocks.at);
    return ok;
}

/* ---- The whole ------------------------------------------------------------------------------ */

static void find_widest(openings *o) {
    opening found;
    if (openings_widest(o->spans, o->n, 0, &found)) {
        o->largest_hole = found.bytes;
    }
    uint64_t most = o->largest_hole;
    for (size_t n = 1; n <= OPENINGS_MAX_BLOCKS; n *= 2) {
        if (openings_widest(o->spans, o->n, n, &found) && found.bytes > most) {
            found.moves = openings_fit_elsewhere(o->spans, o->n, &found);
            o->widest[o->n_widest++] = found;
            most = found.bytes;
        }
    }
}

static void find_least(openings *o) {
    o->has_least = o->request_bytes > 0 &&
                   openings_least(o->spans, o->n, o->request_bytes, OPENINGS_MAX_BLOCKS, &o->least);
    if (o->has_least) {
        o->least.moves = openings_fit_elsewhere(o->spans, o->n, &o->least);
    }
}

void openings_look(openings *o, const replay_spec *spec, const replay_moment *now) {
    const trace_event *event = &spec->trace->events[now->event];
    gathering g = {.to = o, .spec = spec, .now = now};
    openings_drop(o);
    o->event = now->event;
    bool is_refused = event->kind == TRACE_ALLOC && now->addresses[event->slot] == 0;
    o->request_bytes = is_refused ? event->size : 0;
    g.stream = is_refused ? now->streams[event->stream] : NULL;
    g.pool = is_refused ? event->pool : 0;
    spec->plan.contender->walk(now->contender, add_span, &g);
    if (o->n > 0) {
        qsort(o->spans, o->n, sizeof *o->spans, array_by_number);
    }
    o->is_known = !g.has_failed && name_blocks(o, spec->trace, now);
    if (o->is_known) {
        find_widest(o);
        find_least(o);
    }
}

void openings_look_at_recorded(openings *o, const trace *t, const trace_refusal *of) {
    const recorded_layout *l = &t->recorded.refused;
    openings_drop(o);
    o->event = of->event;
    o->request_bytes = of->size;
    bool ok = l->is_known;
    for (size_t i = 0; ok && i < l->n_spans; i++) {
        ok = add_recorded(o, &t->recorded, &l->spans[i]);
    }
    if (o->n > 0) {
        qsort(o->spans, o->n, sizeof *o->spans, array_by_number);
    }
    o->is_known = ok && date_blocks(o, t);
    if (o->is_known) {
        find_widest(o);
        find_least(o);
    }
}

void openings_drop(openings *o) {
    free(o->spans);
    *o = (openings){0};
}
