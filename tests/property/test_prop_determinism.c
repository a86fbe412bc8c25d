/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With record_stream:wait, memory held is a function of the calls: the same operations on devices
 * that complete their work at once, late, only when waited for and at random hold the same bytes at
 * every step. Between streams it holds where memory does not cross (reuse:stream).
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"
#include "tests/support/world.h"

enum { N_OPS = 3000, MOST_LIVE = 150, N_SAMPLES = N_OPS / 10 };

typedef struct history {
    uint64_t reserved[N_SAMPLES];
    uint64_t waits; /* on the GPU: those may differ */
} history;

static const struct completion {
    ductile_schedule schedule;
    uint64_t lag;
} completions[] = {{DUCTILE_SCHEDULE_EAGER, 0},     {DUCTILE_SCHEDULE_LAGGING, 7},
                   {DUCTILE_SCHEDULE_LAGGING, 500}, {DUCTILE_SCHEDULE_LAZY, 0},
                   {DUCTILE_SCHEDULE_RANDOM, 0},    {DUCTILE_SCHEDULE_RANDOM, 0}};
#define N_COMPLETIONS (sizeof completions / sizeof completions[0])

#define N_SEEDS 8

static uint64_t any_size(rng *r) {
    uint64_t dice = rng_below(r, 100);
    if (dice < 40) {
        return rng_between(r, 1, 65536);
    }
    return rng_between(r, 1, (dice < 85 ? 2 : 12) * MIB);
}

static const char *step(world *w, rng *r, uint64_t target) {
    size_t stream = (size_t)rng_below(r, w->f.n_streams);
    uint64_t dice = rng_below(r, 100);
    if (w->m.n == 0 || (w->m.n < target && dice < 70)) {
        return world_must_alloc(w, any_size(r), stream);
    }
    size_t i = (size_t)rng_below(r, w->m.n);
    if (dice % 2 == 0) {
        TRY(world_use_on(w, i, stream));
    }
    return world_free(w, i);
}

/* Live memory swings, so that handles move and healing is due. The larger device gets large
 * handles. */
static const char *run(const struct completion *c, uint64_t seed, history *h) {
    fixture_setup setup = {.capacity_bytes = seed % 2 == 0 ? 4 * GIB : 64 * GIB,
                           .schedule = c->schedule,
                           .lag = c->lag,
                           .seed = seed + c->lag,
                           .n_streams = 3,
                           .conf = "record_stream:wait,reuse:stream"};
    world w;
    rng r = rng_seeded(seed);
    TRY(world_open(&w, &setup, true));
    for (uint64_t i = 0; i < N_OPS; i++) {
        uint64_t target = i / 300 % 2 == 0 ? MOST_LIVE : MOST_LIVE / 6;
        const char *why = step(&w, &r, target);
        NEED(why == NULL, "step %llu: %s", (unsigned long long)i, why);
        ductile_virtual_advance(w.f.gpu, 1);
        if (i % 10 == 0) {
            h->reserved[i / 10] = fixture_stats(w.f.allocator).reserved_bytes;
        }
    }
    h->waits = fixture_stats(w.f.allocator).event_waits;
    TRY(world_verify_all(&w));
    return world_close(&w);
}

static const char *compare(const history *h, const history *first, size_t completion) {
    for (size_t i = 0; i < N_SAMPLES; i++) {
        NEED(h->reserved[i] == first->reserved[i],
             "completion %zu holds %llu bytes at step %zu, completion 0 %llu", completion,
             (unsigned long long)h->reserved[i], 10 * i, (unsigned long long)first->reserved[i]);
    }
    return NULL;
}

ParameterizedTestParameters(prop_determinism, equal_calls_hold_equal_memory) {
    return numbered(300, N_SEEDS);
}

ParameterizedTest(uint64_t *seed, prop_determinism, equal_calls_hold_equal_memory) {
    static history first;
    static history other;
    assert_fine(run(&completions[0], *seed, &first));
    for (size_t i = 1; i < N_COMPLETIONS; i++) {
        assert_fine(run(&completions[i], *seed, &other));
        assert_fine(compare(&other, &first, i));
        cr_assert(other.waits > 0, "completion %zu waited for nothing", i);
    }
}
