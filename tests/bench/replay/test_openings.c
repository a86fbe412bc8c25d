/* SPDX-License-Identifier: Apache-2.0 */
/* Openings are those that looking at every stretch of every layout finds. */
#include "bench/replay/openings.h"
#include "tests/support/rng.h"

#include <criterion/criterion.h>

enum { MAX_SPANS = 40, N_LAYOUTS = 4000 };

/* Spans of small sizes: gaps, pending ones and beginnings among them. */
static size_t draw_layout(opening_span *spans, rng *r) {
    size_t n = (size_t)rng_below(r, MAX_SPANS + 1);
    ductile_addr at = 512;
    for (size_t i = 0; i < n; i++) {
        uint64_t kind = rng_below(r, 12);
        at += rng_below(r, 12) == 0 ? 512 : 0;
        spans[i] = (opening_span){.address = at,
                                  .size = 512 * rng_between(r, 1, 8),
                                  .block = OPENINGS_NO_BLOCK,
                                  .state = kind == 0  ? SPAN_PENDING
                                           : kind < 6 ? SPAN_FREE
                                                      : SPAN_LIVE,
                                  .is_apart = rng_below(r, 16) == 0,
                                  .begins = rng_below(r, 12) == 0};
        at += spans[i].size;
    }
    return n;
}

/* Spans first ... end - 1 as one opening. False: they are none. */
static bool measure(const opening_span *spans, size_t first, size_t end, opening *out) {
    *out = (opening){.first = first, .end = end};
    for (size_t i = first; i < end; i++) {
        const opening_span *s = &spans[i];
        bool is_apart = i > first && (s->begins || s[-1].address + s[-1].size != s->address);
        if (is_apart || s->is_apart || s->state == SPAN_PENDING) {
            return false;
        }
        out->bytes += s->size;
        out->live_bytes += s->state == SPAN_LIVE ? s->size : 0;
        out->n_blocks += s->state == SPAN_LIVE;
    }
    return true;
}

typedef bool (*better_fn)(const opening *a, const opening *b);

static bool is_wider(const opening *a, const opening *b) {
    return a->bytes > b->bytes || (a->bytes == b->bytes && a->live_bytes < b->live_bytes);
}

static bool is_cheaper(const opening *a, const opening *b) {
    return a->live_bytes < b->live_bytes;
}

/* request 0: the stretch must have a hole. */
static bool try_all(const opening_span *spans, size_t n, uint64_t request, size_t max_blocks,
                    better_fn is_better, opening *best) {
    bool found = false;
    for (size_t first = 0; first < n; first++) {
        for (size_t end = first + 1; end <= n; end++) {
            opening o;
            bool counts = measure(spans, first, end, &o) && o.n_blocks <= max_blocks &&
                          (request > 0 ? o.bytes >= request : o.bytes > o.live_bytes);
            if (counts && (!found || is_better(&o, best))) {
                *best = o;
                found = true;
            }
        }
    }
    return found;
}

Test(openings, the_widest_is_the_one_that_every_stretch_tried_gives) {
    opening_span spans[MAX_SPANS];
    rng r = rng_seeded(1);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        size_t n = draw_layout(spans, &r);
        size_t most = (size_t)rng_below(&r, 6);
        opening wanted, got;
        bool exists = try_all(spans, n, 0, most, is_wider, &wanted);
        cr_assert_eq(openings_widest(spans, n, most, &got), exists, "layout %zu", i);
        if (exists) {
            cr_assert_eq(got.bytes, wanted.bytes, "layout %zu", i);
            cr_assert_eq(got.live_bytes, wanted.live_bytes, "layout %zu", i);
            opening again;
            cr_assert(measure(spans, got.first, got.end, &again), "layout %zu", i);
            cr_assert_eq(again.bytes, got.bytes, "layout %zu", i);
            cr_assert_eq(again.n_blocks, got.n_blocks, "layout %zu", i);
            cr_assert_leq(got.n_blocks, most, "layout %zu", i);
        }
    }
}

Test(openings, the_least_is_the_one_that_every_stretch_tried_gives) {
    opening_span spans[MAX_SPANS];
    rng r = rng_seeded(2);
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        size_t n = draw_layout(spans, &r);
        size_t most = (size_t)rng_below(&r, 6);
        uint64_t request = 512 * rng_between(&r, 1, 40);
        opening wanted, got;
        bool exists = try_all(spans, n, request, most, is_cheaper, &wanted);
        cr_assert_eq(openings_least(spans, n, request, most, &got), exists, "layout %zu", i);
        if (exists) {
            cr_assert_eq(got.live_bytes, wanted.live_bytes, "layout %zu", i);
            cr_assert_geq(got.bytes, request, "layout %zu", i);
            opening again, wider;
            cr_assert(measure(spans, got.first, got.end, &again), "layout %zu", i);
            cr_assert_eq(again.bytes, got.bytes, "layout %zu", i);
            bool can_widen = (got.first > 0 && measure(spans, got.first - 1, got.end, &wider) &&
                              wider.live_bytes == got.live_bytes) ||
                             (got.end < n && measure(spans, got.first, got.end + 1, &wider) &&
                              wider.live_bytes == got.live_bytes);
            cr_assert_not(can_widen, "layout %zu", i);
        }
    }
}

/* Every order of placing would be tried without success where the bytes do not suffice; and what
 * the function places does fit, since it places it. */
Test(openings, blocks_do_not_fit_elsewhere_where_there_is_less_free) {
    opening_span spans[MAX_SPANS];
    rng r = rng_seeded(3);
    size_t n_fitting = 0;
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        size_t n = draw_layout(spans, &r);
        opening o;
        if (!openings_widest(spans, n, 3, &o)) {
            continue;
        }
        uint64_t outside = 0;
        for (size_t k = 0; k < n; k++) {
            bool is_outside = k < o.first || k >= o.end;
            outside += is_outside && spans[k].state == SPAN_FREE ? spans[k].size : 0;
        }
        bool fits = openings_fit_elsewhere(spans, n, &o);
        cr_assert(!fits || o.live_bytes <= outside, "layout %zu", i);
        n_fitting += fits;
    }
    cr_expect_gt(n_fitting, N_LAYOUTS / 10);
}

Test(openings, neighbouring_holes_of_one_range_are_one_and_of_two_are_two) {
    opening_span spans[] = {
        {.address = 0, .size = 100, .state = SPAN_LIVE},
        {.address = 100, .size = 10, .state = SPAN_FREE},
        {.address = 110, .size = 30, .state = SPAN_FREE},
        {.address = 140, .size = 30, .state = SPAN_FREE, .begins = true},
        {.address = 170, .size = 35, .state = SPAN_LIVE},
        {.address = 205, .size = 5, .state = SPAN_FREE},
    };
    opening o;
    cr_assert(openings_widest(spans, 6, 0, &o));
    cr_expect_eq(o.bytes, 40);
    cr_assert(openings_least(spans, 6, 70, 1, &o));
    cr_expect_eq(o.live_bytes, 35);
    cr_expect(openings_fit_elsewhere(spans, 6, &o));
    spans[2].begins = true;
    cr_expect_not(openings_fit_elsewhere(spans, 6, &o));
}
