/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/plan_steps.h"

#include "bench/base/array.h"

/* How far a step may skip ahead, how many strange requests end the following, and what is worth
 * keeping. */
enum { LOOK_AHEAD = 64, MAX_STRANGE = 64, MIN_REQUESTS = 4 };

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

/* ---- Recording ----------------------------------------------------------------------------- */

static uint64_t prefix_with(const plan_step *step, uint64_t size, uint32_t range) {
    uint64_t before = step->n > step->n_carried ? step->requests[step->n - 1].prefix : 1;
    return mix(mix(before, size), range);
}

static uint32_t append(plan_step *step, plan_request request) {
    bool ok = step->n < PLAN_MAX_REQUESTS &&
              array_add(&step->requests, sizeof request, &step->capacity, &step->n, &request);
    return ok ? (uint32_t)step->n - 1 : PLAN_NONE;
}

uint32_t plan_steps_carry(plan_steps *s, uint64_t size, uint32_t range) {
    uint32_t index =
        append(&s->now, (plan_request){.size = size, .range = range, .dies = PLAN_FOREVER});
    s->now.n_carried += index != PLAN_NONE;
    return index;
}

uint32_t plan_steps_add(plan_steps *s, uint64_t size, uint32_t range) {
    return append(&s->now, (plan_request){.size = size,
                                          .range = range,
                                          .prefix = prefix_with(&s->now, size, range),
                                          .born = s->now.clock++,
                                          .dies = PLAN_FOREVER});
}

void plan_steps_end_request(plan_steps *s, uint32_t request) {
    s->now.requests[request].dies = s->now.clock++;
}

/* ---- Keeping ------------------------------------------------------------------------------- */

static bool is_same(const plan_step *a, const plan_step *b) {
    return a->n - a->n_carried == b->n - b->n_carried &&
           a->requests[a->n - 1].prefix == b->requests[b->n - 1].prefix;
}

/* The one to replace: the same, a new one, or the one not used for longest. */
static plan_step *choose_room(plan_steps *s) {
    plan_step *oldest = &s->kept[0];
    for (size_t i = 0; i < s->n_kept; i++) {
        if (is_same(&s->kept[i], &s->now)) {
            return &s->kept[i];
        }
        oldest = s->kept[i].used < oldest->used ? &s->kept[i] : oldest;
    }
    return s->n_kept < PLAN_MAX_STEPS ? &s->kept[s->n_kept++] : oldest;
}

void plan_steps_begin(plan_steps *s) {
    plan_step *step = &s->now;
    s->n_begun++;
    bool was_followed = s->is_exact && s->followed != NULL && s->at == s->followed->n;
    if (was_followed) {
        s->followed->used = s->n_begun;
    } else if (step->n >= step->n_carried + MIN_REQUESTS && step->n < PLAN_MAX_REQUESTS) {
        plan_step *room = choose_room(s);
        plan_step old = *room;
        *room = *step;
        room->used = s->n_begun;
        *step = old;
    }
    *step = (plan_step){.requests = step->requests, .capacity = step->capacity, .clock = 1};
    s->followed = NULL;
    s->n_strange = 0;
    s->is_exact = true;
}

void plan_steps_fini(plan_steps *s) {
    free(s->now.requests);
    for (size_t i = 0; i < s->n_kept; i++) {
        free(s->kept[i].requests);
    }
}

/* ---- Following ----------------------------------------------------------------------------- */

/* Of the steps that agree up to and with this request, the one followed last. */
static plan_step *find_step(plan_steps *s, uint64_t prefix) {
    plan_step *found = NULL;
    size_t n = s->now.n - s->now.n_carried;
    for (size_t i = 0; i < s->n_kept; i++) {
        plan_step *step = &s->kept[i];
        size_t at = step->n_carried + n;
        if (at < step->n && step->requests[at].prefix == prefix && step->refused != s->n_begun &&
            (found == NULL || step->used > found->used)) {
            found = step;
        }
    }
    return found;
}

static bool is_at(const plan_step *step, size_t at, uint64_t size, uint32_t range) {
    return at < step->n && step->requests[at].size == size && step->requests[at].range == range;
}

static uint32_t skip_to(plan_steps *s, uint64_t size, uint32_t range) {
    for (size_t at = s->at; at < s->at + LOOK_AHEAD; at++) {
        if (is_at(s->followed, at, size, range)) {
            s->at = at + 1;
            s->n_strange = 0;
            return (uint32_t)at;
        }
    }
    if (++s->n_strange == MAX_STRANGE) {
        s->followed = NULL;
    }
    return PLAN_NONE;
}

uint32_t plan_steps_follow(plan_steps *s, uint64_t size, uint32_t range, bool *is_new) {
    *is_new = false;
    if (s->followed != NULL && is_at(s->followed, s->at, size, range)) {
        return (uint32_t)s->at++;
    }
    plan_step *other = find_step(s, prefix_with(&s->now, size, range));
    if (other != NULL) {
        *is_new = true;
        s->followed = other;
        s->is_exact = true;
        s->at = other->n_carried + s->now.n - s->now.n_carried + 1;
        return (uint32_t)s->at - 1;
    }
    s->is_exact = false;
    return s->followed != NULL ? skip_to(s, size, range) : PLAN_NONE;
}

void plan_steps_refuse(plan_steps *s) {
    s->followed->refused = s->n_begun;
    s->followed = NULL;
    s->is_exact = false;
}
