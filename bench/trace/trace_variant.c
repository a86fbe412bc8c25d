/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_variant.h"

#include "bench/base/array.h"
#include "bench/base/random.h"
#include "bench/trace/trace_finish.h"
#include "bench/trace/trace_read.h"

#include "vmm/base/align.h"

#include <math.h>
#include <stdlib.h>

enum {
    SMALL = 64 << 10, /* bytes; below, sizes do not vary */
    UNIT = 512,       /* bytes that a varied size is a multiple of */
    LEAST_PERCENT = 70,
    MOST_PERCENT = 110
};

static const char no_memory[] = "the host has no memory left";

/* ---- What varies --------------------------------------------------------------------------- */

/* All blocks of one size. */
typedef struct size_group {
    uint64_t size;
    uint64_t bytes;   /* of those that do not last */
    uint64_t n_steps; /* that allocate it */
    bool lasts;       /* one of them does */
} size_group;

typedef struct size_groups {
    size_group *all; /* by size */
    size_t n;
    uint64_t n_steps; /* of the run */
} size_groups;

/* For qsort. */
typedef struct sized_block {
    uint64_t size;
    uint32_t step;
    bool lasts;
} sized_block;

static int by_size_and_step(const void *a, const void *b) {
    const sized_block *x = a;
    const sized_block *y = b;
    if (x->size != y->size) {
        return x->size > y->size ? 1 : -1;
    }
    return (x->step > y->step) - (x->step < y->step);
}

static void add_to_groups(size_groups *g, const sized_block *block, bool is_new_step) {
    if (g->n == 0 || g->all[g->n - 1].size != block->size) {
        g->all[g->n++] = (size_group){.size = block->size};
        is_new_step = true;
    }
    size_group *last = &g->all[g->n - 1];
    last->n_steps += is_new_step;
    last->bytes += block->lasts ? 0 : block->size;
    last->lasts = last->lasts || block->lasts;
}

static bool group_sizes(const trace_varier *v, size_groups *g) {
    const trace_builder *from = v->from;
    sized_block *blocks = calloc(from->n_blocks + 1, sizeof *blocks);
    g->all = calloc(from->n_blocks + 1, sizeof *g->all);
    if (blocks == NULL || g->all == NULL) {
        free(blocks);
        return false;
    }
    for (size_t i = 0; i < from->n_blocks; i++) {
        blocks[i] = (sized_block){from->blocks[i].size, v->steps.born[i], v->steps.is_lasting[i]};
    }
    qsort(blocks, from->n_blocks, sizeof *blocks, by_size_and_step);
    for (size_t i = 0; i < from->n_blocks; i++) {
        add_to_groups(g, &blocks[i], i == 0 || blocks[i - 1].step != blocks[i].step);
    }
    free(blocks);
    return true;
}

static const size_group *find_group(const size_groups *g, uint64_t size) {
    return bsearch(&size, g->all, g->n, sizeof *g->all, array_by_number);
}

static bool is_rare(const size_groups *g, const size_group *group) {
    return group->size >= SMALL && 5 * group->n_steps < 4 * g->n_steps;
}

static bool lasts(const size_groups *g, uint64_t size) {
    const size_group *group = find_group(g, size);
    return group != NULL && group->lasts;
}

/* Not a weight's, and not that of its copy in another precision. */
static bool is_activation(const size_groups *g, const size_group *group) {
    return group->size >= SMALL && !group->lasts && !lasts(g, group->size / 2) &&
           !lasts(g, 2 * group->size);
}

typedef bool (*size_rule)(const size_groups *g, const size_group *group);

static size_rule choose_rule(const size_groups *g) {
    uint64_t all = 0;
    uint64_t rare = 0;
    for (size_t i = 0; i < g->n; i++) {
        all += g->all[i].bytes;
        rare += is_rare(g, &g->all[i]) ? g->all[i].bytes : 0;
    }
    return rare >= all / 4 ? is_rare : is_activation;
}

static bool find_varying(trace_varier *v) {
    size_groups g = {.n_steps = v->steps.n};
    v->varies = calloc(v->from->n_blocks + 1, sizeof *v->varies);
    bool ok = v->varies != NULL && group_sizes(v, &g);
    size_rule rule = ok ? choose_rule(&g) : NULL;
    for (size_t i = 0; ok && i < v->from->n_blocks; i++) {
        v->varies[i] = !v->steps.is_lasting[i] && rule(&g, find_group(&g, v->from->blocks[i].size));
    }
    free(g.all);
    return ok;
}

const char *trace_varier_init(trace_varier *v, const trace_builder *from) {
    *v = (trace_varier){.from = from};
    const char *reason = trace_steps_find(from, &v->steps);
    if (reason == NULL && !find_varying(v)) {
        reason = no_memory;
    }
    return reason;
}

void trace_varier_drop(trace_varier *v) {
    trace_steps_drop(&v->steps);
    free(v->varies);
    *v = (trace_varier){0};
}

/* ---- One variant --------------------------------------------------------------------------- */

/* An event in another step than its block's allocation. */
typedef struct late_event {
    size_t at;     /* the place, in the new order, of the step that it comes in */
    size_t offset; /* events into that step */
    size_t event;
} late_event;

typedef struct variant {
    const trace_varier *v;
    trace_builder *out;
    uint64_t random;
    size_t *order;     /* of the steps */
    double *factors;   /* of the steps */
    uint32_t *numbers; /* of the blocks in `out`, from 1; 0: not allocated yet */
    late_event *late;  /* by place */
    size_t n_late;
    size_t next_late;
} variant;

static void shuffle(variant *w) {
    size_t n = w->v->steps.n;
    for (size_t i = 0; i < n; i++) {
        w->order[i] = i;
    }
    for (size_t i = n; i-- > 2;) {
        size_t other = (size_t)random_between(&w->random, 1, i);
        size_t step = w->order[i];
        w->order[i] = w->order[other];
        w->order[other] = step;
    }
}

static void draw_factors(variant *w) {
    for (size_t i = 0; i < w->v->steps.n; i++) {
        uint64_t parts = random_between(&w->random, LEAST_PERCENT * 1000, MOST_PERCENT * 1000);
        w->factors[i] = (double)parts / 100000;
    }
}

static int by_place(const void *a, const void *b) {
    const late_event *x = a;
    const late_event *y = b;
    if (x->at != y->at) {
        return x->at > y->at ? 1 : -1;
    }
    if (x->offset != y->offset) {
        return x->offset > y->offset ? 1 : -1;
    }
    return (x->event > y->event) - (x->event < y->event);
}

static bool has_block(const trace_event *e) {
    return e->kind != TRACE_STEP && e->kind != TRACE_STREAM_END && e->kind != TRACE_POOL_END;
}

static bool is_late(const trace_varier *v, const trace_event *e, size_t step) {
    return has_block(e) && !v->steps.is_lasting[e->slot] && v->steps.born[e->slot] != step;
}

/* place[step]: where it comes in the new order. */
static void gather_late(variant *w, const size_t *place) {
    const trace_varier *v = w->v;
    for (size_t step = 0; step < v->steps.n; step++) {
        size_t begin = trace_step_begin(&v->steps, step);
        for (size_t i = begin; i < v->steps.ends[step]; i++) {
            const trace_event *e = &v->from->events[i];
            if (is_late(v, e, step)) {
                size_t born = v->steps.born[e->slot];
                w->late[w->n_late++] = (late_event){place[born] + step - born, i - begin, i};
            }
        }
    }
    qsort(w->late, w->n_late, sizeof *w->late, by_place);
}

static uint64_t size_in(const variant *w, uint32_t block, size_t step) {
    uint64_t size = w->v->from->blocks[block].size;
    if (!w->v->varies[block]) {
        return size;
    }
    uint64_t units = (uint64_t)llround((double)size * w->factors[step] / UNIT);
    return units * UNIT;
}

static const char *put_alloc(variant *w, const trace_event *e, size_t step) {
    uint32_t block = 0;
    const char *reason = trace_build_alloc(w->out, size_in(w, e->slot, step),
                                           w->v->from->streams[e->stream].number, &block);
    w->numbers[e->slot] = block + 1;
    if (reason == NULL) {
        w->out->blocks[block].pool = w->v->from->blocks[e->slot].pool;
    }
    return reason;
}

/* Of a block that the new order has not allocated yet, nothing is said. */
static const char *put_block_event(variant *w, const trace_event *e) {
    const build_block *block = &w->v->from->blocks[e->slot];
    uint32_t number = w->numbers[e->slot] - 1;
    if (w->numbers[e->slot] == 0) {
        return NULL;
    }
    switch ((trace_kind)e->kind) {
    case TRACE_USE:
        return trace_build_use(w->out, number, w->v->from->streams[e->stream].number);
    case TRACE_FREE:
        if (w->v->steps.is_lasting[e->slot]) {
            return NULL;
        }
        return block->state == BUILD_PENDING ? trace_build_free_in_use(w->out, number)
                                             : trace_build_free(w->out, number);
    case TRACE_OPEN:
        return w->v->steps.is_lasting[e->slot] ? NULL : trace_build_complete(w->out, number);
    case TRACE_ALLOC:
    case TRACE_FREE_GATED:
    case TRACE_STEP:
    case TRACE_STREAM_END:
    case TRACE_POOL_END:
        break;
    }
    return NULL;
}

static const char *put_event(variant *w, const trace_event *e, size_t step) {
    switch ((trace_kind)e->kind) {
    case TRACE_ALLOC:
        return put_alloc(w, e, step);
    case TRACE_STREAM_END:
        return trace_build_end_stream(w->out, w->v->from->streams[e->stream].number, e->size != 0);
    case TRACE_POOL_END:
        return trace_build_end_pool(w->out, w->v->from->pools.ids[e->pool - 1]);
    case TRACE_STEP:
        return NULL; /* said at the end of each */
    case TRACE_USE:
    case TRACE_FREE:
    case TRACE_FREE_GATED:
    case TRACE_OPEN:
        break;
    }
    return put_block_event(w, e);
}

/* What is due in the step at that place, up to so many events into it. */
static const char *put_late(variant *w, size_t at, size_t offset) {
    const char *reason = NULL;
    while (reason == NULL && w->next_late < w->n_late) {
        const late_event *late = &w->late[w->next_late];
        if (late->at != at || late->offset > offset) {
            break;
        }
        w->next_late++;
        reason = put_block_event(w, &w->v->from->events[late->event]);
    }
    return reason;
}

static const char *put_step(variant *w, size_t at) {
    const trace_varier *v = w->v;
    size_t step = w->order[at];
    size_t begin = trace_step_begin(&v->steps, step);
    const char *reason = NULL;
    for (size_t i = begin; reason == NULL && i < v->steps.ends[step]; i++) {
        const trace_event *e = &v->from->events[i];
        reason = put_late(w, at, i - begin);
        if (reason == NULL && !is_late(v, e, step)) {
            reason = put_event(w, e, step);
        }
    }
    if (reason == NULL) {
        reason = put_late(w, at, SIZE_MAX);
    }
    return reason == NULL ? trace_build_step(w->out) : reason;
}

static const char *take_kept(variant *w) {
    const trace_builder *from = w->v->from;
    const char *reason = NULL;
    for (size_t i = 0; reason == NULL && i < from->n_kept; i++) {
        const trace_kept *kept = &from->kept[i];
        reason = trace_build_kept(w->out, kept->size, from->streams[kept->stream].number,
                                  from->pools.ids[kept->pool - 1]);
    }
    return reason;
}

/* The same streams and pools, so that all variants know them by the same indexes. */
static const char *take_streams(variant *w) {
    const trace_builder *from = w->v->from;
    trace_builder *out = w->out;
    *out = (trace_builder){.names_uses = from->names_uses,
                           .is_snapshot = from->is_snapshot,
                           .gpu = from->gpu,
                           .uses_pools = from->uses_pools,
                           .n_streams = from->n_streams};
    for (size_t i = 0; i < from->n_streams; i++) {
        out->streams[i] = (trace_stream){.number = from->streams[i].number};
    }
    const char *reason = trace_pools_copy(&out->pools, &from->pools);
    return reason == NULL ? take_kept(w) : reason;
}

static const char *make(variant *w, size_t *place) {
    const char *reason = take_streams(w);
    size_t n = w->v->steps.n;
    shuffle(w);
    draw_factors(w);
    for (size_t i = 0; i < n; i++) {
        place[w->order[i]] = i;
    }
    gather_late(w, place);
    for (size_t at = 0; reason == NULL && at < n; at++) {
        reason = put_step(w, at);
    }
    return reason;
}

const char *trace_vary(const trace_varier *v, uint64_t seed, trace_builder *out) {
    size_t n = v->steps.n;
    size_t *place = calloc(n, sizeof *place);
    variant w = {.v = v, .out = out, .random = seed};
    const char *reason = no_memory;
    *out = (trace_builder){0};
    w.order = calloc(n, sizeof *w.order);
    w.factors = calloc(n, sizeof *w.factors);
    w.numbers = calloc(v->from->n_blocks + 1, sizeof *w.numbers);
    w.late = calloc(v->from->n_events + 1, sizeof *w.late);
    if (place != NULL && w.order != NULL && w.factors != NULL && w.numbers != NULL &&
        w.late != NULL) {
        reason = make(&w, place);
    }
    free(place);
    free(w.order);
    free(w.factors);
    free(w.numbers);
    free(w.late);
    if (reason != NULL) {
        trace_build_drop(out);
    }
    return reason;
}

/* ---- A chain of them ----------------------------------------------------------------------- */

/* What a replay prepares once has to do for all passes; what it reports is of all. */
static void raise_bounds(trace *to, const trace *from) {
    to->n_slots = (uint32_t)dti_max(to->n_slots, from->n_slots);
    to->live_peak_bytes = dti_max(to->live_peak_bytes, from->live_peak_bytes);
    for (size_t i = 0; i < to->n_streams; i++) {
        trace_stream *stream = &to->streams[i];
        const trace_stream *other = &from->streams[i];
        stream->n_gates = dti_max(stream->n_gates, other->n_gates);
        stream->max_closed_gates = dti_max(stream->max_closed_gates, other->max_closed_gates);
    }
}

static void share_bounds(trace *first) {
    for (const trace *t = first; t != NULL; t = t->next_pass) {
        raise_bounds(first, t);
    }
    for (trace *t = first; t != NULL; t = t->next_pass) {
        raise_bounds(t, first);
    }
}

static trace *make_pass(const trace_varier *v, const char *path, uint64_t seed,
                        const char **reason) {
    trace_builder b;
    *reason = trace_vary(v, seed, &b);
    trace *t = *reason == NULL ? trace_make(&b, path, reason) : NULL;
    if (t != NULL) {
        t->is_varied = true;
    }
    return t;
}

static trace *make_passes(const trace_varier *v, const char *path, uint64_t seed, uint64_t n_passes,
                          const char **reason) {
    trace *first = NULL;
    trace **next = &first;
    uint64_t random = seed;
    for (uint64_t i = 0; *reason == NULL && i < n_passes; i++) {
        *next = make_pass(v, path, random_next(&random), reason);
        if (*next != NULL) {
            (*next)->vary_seed = seed;
            next = &(*next)->next_pass;
        }
    }
    if (*reason == NULL) {
        share_bounds(first);
        return first;
    }
    trace_free(first);
    return NULL;
}

trace *trace_load_varied(const char *path, int gpu, uint64_t seed, uint64_t n_passes,
                         trace_error *error) {
    trace_builder b = {0};
    trace_varier v;
    if (!trace_gather(path, gpu, &b, error)) {
        return NULL;
    }
    const char *reason = trace_varier_init(&v, &b);
    trace *t = make_passes(&v, path, seed, n_passes, &reason);
    trace_varier_drop(&v);
    trace_build_drop(&b);
    if (t == NULL) {
        (void)trace_refuse(error, 0, "%s", reason);
    }
    return t;
}
