/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/orders/explore.h"

#include <stdio.h>
#include <stdlib.h>

static bool is_enabled(unsigned enabled, unsigned thread) {
    return thread < MOST_THREADS && (enabled >> thread & 1) != 0;
}

/* The option after `skipped` others: first the thread that runs, then those behind it in turn. */
static unsigned option(unsigned enabled, unsigned running, unsigned skipped) {
    unsigned thread = running < MOST_THREADS ? running : 0;
    for (;; thread = (thread + 1) % MOST_THREADS) {
        if (is_enabled(enabled, thread) && skipped-- == 0) {
            return thread;
        }
    }
}

/* ---- Systematically ------------------------------------------------------------------------ */

void explorer_begin(explorer *e, unsigned bound) {
    e->n_fixed = 0;
    e->bound = bound;
}

static unsigned stops_at(const branch *b) {
    return b->taken > 0 && is_enabled(b->enabled, b->before);
}

unsigned explorer_choose(void *user, const step *now, size_t n) {
    explorer *e = user;
    branch *b = &e->path[n];
    if (n >= e->n_fixed) {
        const branch *last = n > 0 ? b - 1 : NULL;
        unsigned n_stops = last != NULL ? last->n_stops + stops_at(last) : 0;
        *b = (branch){now->before, now->enabled, 0, (uint8_t)n_stops};
    } else if (b->before != now->before || b->enabled != now->enabled) {
        scheduler_found("wrong", "the same order of threads does not do the same twice");
    }
    return option(b->enabled, b->before, b->taken);
}

static unsigned n_options(const explorer *e, const branch *b) {
    bool may_stop = !is_enabled(b->enabled, b->before) || b->n_stops < e->bound;
    return may_stop ? (unsigned)__builtin_popcount(b->enabled) : 1;
}

bool explorer_next(explorer *e) {
    size_t n = 0;
    (void)scheduler_steps(&n);
    while (n > 0 && e->path[n - 1].taken + 1u >= n_options(e, &e->path[n - 1])) {
        n--;
    }
    if (n > 0) {
        e->path[n - 1].taken++;
    }
    e->n_fixed = n;
    return n > 0;
}

/* ---- At random ----------------------------------------------------------------------------- */

void pct_begin(pct *p, rng *r, unsigned n_threads, size_t n_steps) {
    for (unsigned i = 0; i < n_threads; i++) {
        unsigned j = (unsigned)rng_below(r, i + 1);
        p->priority[i] = p->priority[j];
        p->priority[j] = (int)i;
    }
    p->lowest = 0;
    p->n_changes = (unsigned)rng_between(r, 1, MOST_CHANGES);
    for (unsigned i = 0; i < p->n_changes; i++) {
        p->changes[i] = (size_t)rng_below(r, n_steps + 1);
    }
}

static unsigned highest(const pct *p, unsigned enabled) {
    unsigned best = NOBODY;
    for (unsigned i = 0; i < MOST_THREADS; i++) {
        if (is_enabled(enabled, i) && (best == NOBODY || p->priority[i] > p->priority[best])) {
            best = i;
        }
    }
    return best;
}

unsigned pct_choose(void *user, const step *now, size_t n) {
    pct *p = user;
    bool falls = now->rests; /* so that those that ask again and again do not keep the others out */
    for (unsigned i = 0; i < p->n_changes; i++) {
        falls |= p->changes[i] == n;
    }
    if (falls && now->before < MOST_THREADS) {
        p->priority[now->before] = --p->lowest;
    }
    return highest(p, now->enabled);
}

/* ---- As written ---------------------------------------------------------------------------- */

void script_begin(script *s, const char *order) {
    *s = (script){.at = order};
}

static void read_turn(script *s) {
    char *end;
    s->thread = (unsigned)strtoul(s->at, &end, 10) - 1;
    s->left = *end == 'x' ? (size_t)strtoull(end + 1, &end, 10) : 0;
    s->at = *end == ',' ? end + 1 : "";
}

unsigned script_choose(void *user, const step *now, size_t n) {
    script *s = user;
    (void)n;
    if (s->left == 0 && *s->at != '\0') {
        read_turn(s);
    }
    if (s->left > 0 && is_enabled(now->enabled, s->thread)) {
        s->left--;
        return s->thread;
    }
    return option(now->enabled, now->before, 0);
}

void print_order(const step *steps, size_t n) {
    enum { MOST_TURNS = 2000 }; /* of a livelock there are more */
    size_t n_turns = 0;
    for (size_t i = 0, end; i < n && n_turns++ < MOST_TURNS; i = end) {
        for (end = i; end < n && steps[end].chosen == steps[i].chosen; end++) {
        }
        (void)printf("%s%ux%zu", i > 0 ? "," : "", steps[i].chosen + 1u, end - i);
    }
}
