/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A study: how far does placement go that knows what is to come from what has been? Memory is kept
 * as expandable segments keep it; but the large requests of a step that began like an earlier one
 * go where a layout of that whole step has a place for them. A layout is made around what
 * is live when the step begins, and again where its next place turns out to be taken; one that
 * needs more than what is held is not used. Everything else, and every request of a step that is
 * new, is placed by best fit.
 *
 *   planned.moves=1       where memory is missing, handles of free memory go before new ones
 *   planned.foresight=1   the whole replay is known beforehand and laid out once: the bound
 *   planned.handle_mib=N  the size of handles, 20 unless told
 */
#include "bench/base/array.h"
#include "bench/contenders/contender.h"
#include "bench/contenders/plan_steps.h"
#include "bench/contenders/rival_ranges.h"
#include "bench/contenders/settings.h"
#include "vmm/base/try.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Requests between two layouts of one step. */
enum { LAYOUT_EVERY = 64, MAX_RANGES = 256 };

/* A large block that is live. */
typedef struct planned_live {
    rival_block *block; /* NULL: it is not any more */
    uint32_t request;   /* which of the step under way it is, or NONE */
    uint32_t planned;   /* which of the followed step, or NONE */
} planned_live;

/* The large blocks of one stream. */
typedef struct planned_range {
    rival_arena *arena;
    rival_segment *segment; /* NULL: it has no memory */
    bool *touched;          /* by handle: used in this pass */
} planned_range;

typedef struct planned {
    rival_ranges ranges; /* first: the policy gets a pointer to it */
    plan_steps steps;
    planned_range streams[MAX_RANGES];
    uint32_t n_streams;
    planned_live *lives; /* by age */
    size_t n_lives, lives_capacity;
    hash_map live_at; /* address to index in lives, plus 1 */
    plan_span *spans; /* of a layout under way */
    size_t spans_capacity;
    uint32_t next;        /* the request's place: a request of the followed step, or NONE */
    size_t next_layout;   /* the request from which on one may be made again */
    uint64_t live_bytes;  /* of large blocks */
    uint64_t peak_bytes;  /* since the step began, */
    uint64_t dips_below;  /* a third of it less; then the lowest since, */
    uint64_t rises_above; /* and where the next step begins */
    bool foresees;
    contender_plan_stats stats;
} planned;

static planned *planned_of(rival_cache *cache) {
    return (planned *)(void *)cache;
}

/* ---- Layouts ------------------------------------------------------------------------------- */

static bool add_span(planned *p, size_t *n, plan_span span) {
    return array_add(&p->spans, sizeof span, &p->spans_capacity, n, &span);
}

static uint64_t offset_of(const rival_block *block) {
    return block->address - block->segment->base;
}

/* What is live stays where it is, until its time in the followed step, if that is still to come. */
static bool add_lives(planned *p, size_t *n, uint32_t now) {
    const plan_step *step = p->steps.followed;
    for (size_t i = 0; i < p->n_lives; i++) {
        const planned_live *live = &p->lives[i];
        if (live->block == NULL || live->request == PLAN_NONE) {
            continue;
        }
        uint32_t dies =
            live->planned == PLAN_NONE ? PLAN_FOREVER : step->requests[live->planned].dies;
        plan_span span = {.size = live->block->size,
                          .offset = offset_of(live->block),
                          .dies = dies > now ? dies : PLAN_FOREVER,
                          .range = p->steps.now.requests[live->request].range,
                          .request = PLAN_NONE,
                          .is_fixed = true};
        if (!add_span(p, n, span)) {
            return false;
        }
    }
    return true;
}

static bool add_requests(planned *p, size_t *n, size_t from) {
    const plan_step *step = p->steps.followed;
    for (size_t i = from; i < step->n; i++) {
        const plan_request *request = &step->requests[i];
        plan_span span = {.size = request->size,
                          .born = request->born,
                          .dies = request->dies,
                          .range = request->range,
                          .request = (uint32_t)i};
        if (!add_span(p, n, span)) {
            return false;
        }
    }
    return true;
}

/* Packs the rest of the followed step. What that needs, in bytes; 0: no host memory. */
static uint64_t pack_from(planned *p, size_t from, plan_order order, size_t *n) {
    *n = 0;
    bool ok = add_lives(p, n, p->steps.followed->requests[from].born) && add_requests(p, n, from) &&
              plan_pack(p->spans, *n, order);
    return ok ? plan_bytes(p->spans, *n, p->ranges.large_handle_bytes) : 0;
}

static void keep_layout(planned *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const plan_span *span = &p->spans[i];
        if (span->request != PLAN_NONE) {
            p->steps.followed->requests[span->request].offset = span->offset;
        }
    }
}

static uint64_t held_bytes(const planned *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_streams; i++) {
        n += p->streams[i].segment != NULL ? p->streams[i].segment->n_mapped : 0;
    }
    return n * p->ranges.large_handle_bytes;
}

/* The first order whose layout needs no more than is held; with foresight the best one. */
static bool pack_best(planned *p, size_t from) {
    uint64_t best = p->foresees ? UINT64_MAX - 1 : held_bytes(p);
    bool found = false;
    for (plan_order order = 0; order < PLAN_ORDERS && (p->foresees || !found); order++) {
        size_t n = 0;
        uint64_t needed = pack_from(p, from, order, &n);
        if (needed > 0 && needed < best + !found) {
            best = needed;
            found = true;
            keep_layout(p, n);
        }
    }
    return found;
}

/* Of this thread alone: others share the machine. */
static uint64_t processor_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void lay_out(planned *p, size_t from) {
    uint64_t started = processor_ns();
    p->next_layout = from + LAYOUT_EVERY;
    p->steps.followed->is_laid_out = pack_best(p, from);
    if (!p->steps.followed->is_laid_out) {
        plan_steps_refuse(&p->steps);
        p->next = PLAN_NONE;
    }
    p->stats.layouts++;
    p->stats.host_ns += processor_ns() - started;
}

/* What was carried into the step is found again in the followed one by size and age. */
static void match_carried(planned *p, planned_live *live, size_t *cursor) {
    const plan_step *step = p->steps.followed;
    const plan_request *own = &p->steps.now.requests[live->request];
    for (size_t at = *cursor; at < step->n_carried; at++) {
        const plan_request *other = &step->requests[at];
        if (other->size == own->size && other->range == own->range) {
            live->planned = (uint32_t)at;
            *cursor = at + 1;
            return;
        }
    }
}

static void match_lives(planned *p) {
    const plan_steps *s = &p->steps;
    size_t cursor = 0;
    for (size_t i = 0; i < p->n_lives; i++) {
        planned_live *live = &p->lives[i];
        live->planned = PLAN_NONE;
        if (live->block == NULL || live->request == PLAN_NONE) {
            continue;
        }
        if (live->request < s->now.n_carried) {
            match_carried(p, live, &cursor);
        } else {
            live->planned = live->request - (uint32_t)(s->now.n_carried - s->followed->n_carried);
        }
    }
}

/* A layout of the whole step is kept, until one of its places is taken. */
static void adopt(planned *p, size_t from) {
    const plan_step *step = p->steps.followed;
    match_lives(p);
    p->next_layout = from;
    if (from > step->n_carried || !step->is_laid_out) {
        lay_out(p, from);
    }
}

/* ---- Placing ------------------------------------------------------------------------------- */

static planned_range *range_of(planned *p, const rival_arena *arena) {
    for (uint32_t i = 0; i < p->n_streams; i++) {
        if (p->streams[i].arena == arena) {
            return &p->streams[i];
        }
    }
    return NULL;
}

static uint64_t followed_offset(const planned *p) {
    return p->steps.followed->requests[p->next].offset;
}

static rival_block *open_planned(planned *p, rival_arena *arena, uint64_t size) {
    const rival_segment *segment =
        p->next != PLAN_NONE ? rival_ranges_reserve(&p->ranges, arena) : NULL;
    return segment == NULL
               ? NULL
               : rival_ranges_open(&p->ranges, arena, segment->base + followed_offset(p), size);
}

static bool may_lay_out_again(const planned *p) {
    return !p->foresees && p->next != PLAN_NONE && p->next >= p->next_layout;
}

static rival_block *find_planned(rival_cache *cache, rival_arena *arena, uint64_t size) {
    planned *p = planned_of(cache);
    if (arena->is_small) {
        return rival_ranges_find(cache, arena, size);
    }
    rival_block *block = open_planned(p, arena, size);
    if (block == NULL && may_lay_out_again(p)) {
        lay_out(p, p->next);
        block = open_planned(p, arena, size);
    }
    p->stats.placed += block != NULL;
    return block != NULL ? block : rival_ranges_find(cache, arena, size);
}

/* Ranges may be gone, and others come at other addresses. */
static ductile_status release_free(rival_cache *cache) {
    planned *p = planned_of(cache);
    ductile_status status = rival_ranges_release_free(cache);
    p->steps.followed = NULL;
    p->next = PLAN_NONE;
    for (size_t i = 0; i < p->steps.n_kept; i++) {
        p->steps.kept[i].is_laid_out = false;
    }
    for (uint32_t i = 0; i < p->n_streams; i++) {
        p->streams[i].segment = NULL;
    }
    return status;
}

static const rival_policy planned_policy = {
    .find = find_planned,
    .grow = rival_ranges_grow,
    .min_remainder = rival_ranges_min_remainder,
    .take_back = rival_cache_keep,
    .release_free = release_free,
};

/* ---- Steps --------------------------------------------------------------------------------- */

static void carry_lives(planned *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_lives; i++) {
        planned_live live = p->lives[i];
        if (live.block != NULL) {
            uint32_t range = (uint32_t)(range_of(p, live.block->arena) - p->streams);
            live.request = plan_steps_carry(&p->steps, live.block->size, range);
            p->lives[n++] = live;
            hash_map_set(&p->live_at, live.block->address, n);
        }
    }
    p->n_lives = n;
}

static void expect_dip(planned *p) {
    p->peak_bytes = p->live_bytes;
    p->rises_above = p->peak_bytes;
    p->dips_below = p->peak_bytes / 3 * 2;
}

/* As in the library: a step begins where live memory rises again that fell by a third. With
 * foresight, where all that was foreseen has come. */
static bool begins_step(const planned *p, uint64_t live_bytes) {
    const plan_step *now = &p->steps.now;
    if (p->foresees) {
        return now->n - now->n_carried >= p->steps.kept[0].n;
    }
    bool dip_is_over = p->live_bytes == 0 || live_bytes <= p->peak_bytes;
    bool was_large = p->peak_bytes - p->dips_below > p->ranges.cache.reserved_bytes / 8;
    return dip_is_over && was_large;
}

static void note_rise(planned *p, uint64_t size) {
    uint64_t live_bytes = p->live_bytes + size;
    if (live_bytes > p->rises_above) {
        if (begins_step(p, live_bytes)) {
            plan_steps_begin(&p->steps);
            carry_lives(p);
        }
        p->live_bytes = live_bytes;
        expect_dip(p);
    }
    p->live_bytes = live_bytes;
}

static void note_fall(planned *p, uint64_t size) {
    p->live_bytes -= size;
    if (p->live_bytes < p->dips_below) {
        bool is_deep = p->live_bytes < p->peak_bytes / 10 * 3;
        p->dips_below = p->live_bytes;
        p->rises_above = p->live_bytes + (is_deep ? 0 : (p->peak_bytes - p->live_bytes) / 8);
    }
}

/* ---- Allocate and free --------------------------------------------------------------------- */

static uint32_t number_range(planned *p, rival_arena *arena) {
    planned_range *range = range_of(p, arena);
    if (range == NULL && p->n_streams < MAX_RANGES) {
        range = &p->streams[p->n_streams++];
        range->arena = arena;
    }
    return range != NULL ? (uint32_t)(range - p->streams) : PLAN_NONE;
}

static void forget_touched(planned *p) {
    for (uint32_t i = 0; i < p->n_streams; i++) {
        free(p->streams[i].touched);
        p->streams[i].touched = NULL;
    }
}

static void follow(planned *p, uint64_t size, uint32_t range) {
    bool is_new = false;
    if (p->live_bytes == 0) {
        forget_touched(p);
    }
    note_rise(p, size);
    p->next = plan_steps_follow(&p->steps, size, range, &is_new);
    if (is_new) {
        adopt(p, p->next);
    }
}

static void touch(planned_range *range, const rival_block *block) {
    const rival_segment *segment = block->segment;
    if (range->segment != segment || range->touched == NULL) {
        free(range->touched);
        range->touched = calloc(segment->n_slots, sizeof *range->touched);
        range->segment = block->segment;
    }
    size_t first = (size_t)(offset_of(block) / segment->handle_bytes);
    size_t last = (size_t)((offset_of(block) + block->size - 1) / segment->handle_bytes);
    for (size_t slot = first; range->touched != NULL && slot <= last; slot++) {
        range->touched[slot] = true;
    }
}

static ductile_status record(planned *p, ductile_addr address, uint32_t range) {
    rival_block *block = (rival_block *)hash_map_find(&p->ranges.cache.live, address);
    planned_live live = {.block = block,
                         .request = plan_steps_add(&p->steps, block->size, range),
                         .planned = p->next};
    p->stats.requests++;
    touch(&p->streams[range], block);
    bool ok = hash_map_put(&p->live_at, address, p->n_lives + 1) &&
              array_add(&p->lives, sizeof live, &p->lives_capacity, &p->n_lives, &live);
    return ok ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

static ductile_status planned_alloc(void *self, uint64_t size, ductile_stream stream,
                                    ductile_addr *out) {
    planned *p = self;
    rival_cache *cache = &p->ranges.cache;
    uint64_t rounded = dti_round_up(size, RIVAL_UNIT);
    if (size <= RIVAL_SMALL_MAX || size > RIVAL_REQUEST_MAX) {
        return rival_cache_alloc(cache, size, stream, out);
    }
    rival_arena *arena = rival_store_arena(&cache->store, stream, false);
    uint32_t range = arena != NULL ? number_range(p, arena) : PLAN_NONE;
    if (range == PLAN_NONE) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    follow(p, rounded, range);
    ductile_status status = rival_cache_alloc(cache, size, stream, out);
    if (status != DUCTILE_OK) {
        note_fall(p, rounded);
        return status;
    }
    return record(p, *out, range);
}

static ductile_status planned_free(void *self, ductile_addr address) {
    planned *p = self;
    uintptr_t index = hash_map_find(&p->live_at, address);
    if (index != 0) {
        planned_live *live = &p->lives[index - 1];
        note_fall(p, live->block->size);
        if (live->request != PLAN_NONE) {
            plan_steps_end_request(&p->steps, live->request);
        }
        live->block = NULL;
        hash_map_remove(&p->live_at, address);
    }
    return rival_cache_free(&p->ranges.cache, address);
}

/* ---- The contender's table ----------------------------------------------------------------- */

/* All that is to come becomes a step that was kept. Ranges are numbered as they are met, as they
 * will be again. */
static bool foresee(planned *p, const contender_future *future) {
    uint32_t *requests = calloc((size_t)future->n_slots + 1, sizeof *requests); /* plus 1 */
    uint32_t *ranges = calloc((size_t)future->n_streams + 1, sizeof *ranges);   /* plus 1 */
    uint32_t n_ranges = 0;
    for (size_t i = 0; requests != NULL && ranges != NULL && i < future->n_events; i++) {
        contender_event event = future->read(future->user, i);
        if (event.size > RIVAL_SMALL_MAX) {
            uint32_t *range = &ranges[event.stream];
            *range = *range == 0 ? ++n_ranges : *range;
            uint64_t size = dti_round_up(event.size, RIVAL_UNIT);
            requests[event.slot] = plan_steps_add(&p->steps, size, *range - 1) + 1;
        } else if (event.is_free && requests[event.slot] != 0) {
            plan_steps_end_request(&p->steps, requests[event.slot] - 1);
            requests[event.slot] = 0;
        }
    }
    plan_steps_begin(&p->steps);
    p->foresees = true;
    free(ranges);
    free(requests);
    return p->steps.n_kept == 1;
}

static bool set_all(planned *p, const contender_env *env, const settings_planned *said) {
    p->ranges.moves = said->moves;
    if (said->handle_mib > 0) {
        p->ranges.large_handle_bytes = said->handle_mib * DTI_MIB;
    }
    return !said->foresight || (env->future != NULL && foresee(p, env->future));
}

static void planned_fini(void *self) {
    planned *p = self;
    plan_steps_fini(&p->steps);
    forget_touched(p);
    hash_map_drop(&p->live_at);
    free(p->lives);
    free(p->spans);
    rival_ranges_destroy(p);
}

static ductile_status planned_init(const contender_env *env, void **self, char *message,
                                   size_t size) {
    DTI_TRY(rival_ranges_create(&planned_policy, sizeof(planned), env, self, message, size));
    planned *p = *self;
    p->next = PLAN_NONE;
    settings_planned said;
    const char *why = NULL;
    if (!settings_read_planned(&said, env->settings, env->n_settings)) {
        why = SETTINGS_PLANNED_TAKES;
    } else if (!set_all(p, env, &said)) {
        why = "foresight=1 is for a replay of 1 to 65,535 requests above 1 MiB";
    }
    if (why != NULL) {
        planned_fini(p);
        *self = NULL;
        return rival_refuse(DUCTILE_ERR_INVALID_ARGUMENT, why, message, size);
    }
    return DUCTILE_OK;
}

/* Handles that no large block of this pass lay in. */
static uint64_t count_untouched(const planned_range *range) {
    uint64_t n = 0;
    for (size_t slot = 0; range->segment != NULL && slot < range->segment->end_slot; slot++) {
        bool is_touched = range->touched != NULL && range->touched[slot];
        n += range->segment->handles[slot] != 0 && !is_touched;
    }
    return n;
}

static void planned_stats(void *self, contender_stats *out) {
    const planned *p = self;
    rival_ranges_stats(self, out);
    out->plan = p->stats;
    out->plan.touched_bytes = out->reserved_bytes;
    for (uint32_t i = 0; i < p->n_streams; i++) {
        uint64_t untouched = count_untouched(&p->streams[i]);
        out->plan.touched_bytes -= untouched * p->ranges.large_handle_bytes;
    }
}

const contender_ops contender_planned = {
    .name = "planned",
    .summary =
        "a study: expandable segments that plan a step from those before it; only where named",
    .is_study = true,
    .init = planned_init,
    .fini = planned_fini,
    .alloc = planned_alloc,
    .free = planned_free,
    .record_stream = rival_cache_record_stream,
    .trim = rival_cache_trim,
    .stats = planned_stats,
    .walk = rival_cache_walk,
};
