/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a training run, which peak, dip and peak again with other sizes, audited at every
 * step. Orders that are hard in a simpler way are in tests/scenarios/patterns.txt.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"
#include "tests/support/world.h"

#define CAPACITY (128 * MIB)

static const char *alloc_audited(world *w, uint64_t size, size_t stream) {
    TRY(world_must_alloc(w, size, stream));
    return world_audit(w);
}

static const char *free_audited(world *w, size_t i) {
    TRY(world_verify(w, i));
    TRY(world_free(w, i));
    return world_audit(w);
}

static const struct completion {
    ductile_schedule schedule;
    uint64_t lag;
    size_t n_streams;
} completions[] = {{DUCTILE_SCHEDULE_EAGER, 0, 1},
                   {DUCTILE_SCHEDULE_LAGGING, 5, 1},
                   {DUCTILE_SCHEDULE_LAZY, 0, 1},
                   {DUCTILE_SCHEDULE_LAZY, 0, 3},
                   {DUCTILE_SCHEDULE_RANDOM, 0, 2}};
#define N_COMPLETIONS (sizeof completions / sizeof completions[0])

/* ---- Steps --------------------------------------------------------------------------------- */

#define N_STEPS 25
#define STEP_PEAK (100 * MIB) /* live bytes a step climbs to, of CAPACITY */
#define N_WEIGHTS 6           /* blocks that stay through all steps       */

/* Fills up to `bytes` live bytes with blocks of low .. high bytes. */
static const char *climb_to(world *w, rng *r, uint64_t bytes, uint64_t low, uint64_t high) {
    while (w->m.requested_bytes < bytes) {
        uint64_t left = bytes - w->m.requested_bytes;
        uint64_t size = rng_between(r, low, high);
        TRY(alloc_audited(w, size < left ? size : left, 0));
    }
    return NULL;
}

/* Small blocks, most of which go, then large ones that fit none of the holes they left: memory has
 * to move to make room for them. */
static const char *climb_step(world *w, rng *r, uint64_t unit) {
    TRY(climb_to(w, r, STEP_PEAK, unit, 3 * unit));
    size_t n_kept = w->m.n / 10 + N_WEIGHTS;
    while (w->m.n > n_kept) {
        TRY(free_audited(w, rng_below(r, w->m.n)));
    }
    return climb_to(w, r, STEP_PEAK / 10 * 7, 10 * unit, 30 * unit);
}

/* Frees all but a few blocks, wherever they lie: between them runs of free memory and gaps. */
static const char *dip(world *w, rng *r) {
    while (w->m.n > N_WEIGHTS) {
        TRY(free_audited(w, rng_below(r, w->m.n)));
    }
    return world_verify_all(w);
}

static const char *run_steps(world *w, uint64_t seed) {
    rng r = rng_seeded(seed);
    for (size_t i = 0; i < N_WEIGHTS; i++) {
        TRY(alloc_audited(w, 300000 + i * 70000, 0));
    }
    for (size_t i = 0; i < N_STEPS; i++) {
        TRY(climb_step(w, &r, 200000 + rng_below(&r, 400000)));
        TRY(dip(w, &r));
        TRY(alloc_audited(w, 100000 + i * 5000, 0)); /* the next step begins */
    }
    ductile_stats s = fixture_stats(w->f.allocator);
    NEED(s.recycled_handles > 0, "no handle was recycled: the steps are too easy");
    NEED(s.compacted_handles > 0, "no handle was moved by healing: the dips are too shallow");
    return NULL;
}

ParameterizedTestParameters(prop_patterns, steps_recycle_and_heal) {
    return numbered(0, N_COMPLETIONS);
}

ParameterizedTest(uint64_t *index, prop_patterns, steps_recycle_and_heal) {
    const struct completion *c = &completions[*index];
    fixture_setup setup = {.capacity_bytes = CAPACITY,
                           .schedule = c->schedule,
                           .lag = c->lag,
                           .seed = *index + 1,
                           .n_streams = c->n_streams};
    world w;
    assert_fine(world_open(&w, &setup, true));
    const char *why = run_steps(&w, 500 + *index);
    assert_fine(why);
    assert_fine(world_close(&w));
}

/* ---- Steps beside another stream ----------------------------------------------------------- */

/* As the steps above, but nobody waits for the first stream, so that its work is still under way
 * when healing moves the memory under it; the second stream must not get that memory. */
static const char *step_unseen(world *w, rng *r) {
    for (size_t i = 0; i < 80; i++) {
        TRY(world_alloc(w, rng_between(r, 300000, 900000), 0));
    }
    for (size_t i = 0; i < 60; i++) {
        TRY(world_free(w, rng_below(r, w->m.n)));
    }
    for (size_t i = 0; i < 5; i++) {
        TRY(world_alloc(w, rng_between(r, 3, 9) * 1000000, 0));
    }
    while (w->m.n > N_WEIGHTS) {
        TRY(world_free(w, rng_below(r, w->m.n)));
    }
    return alloc_audited(w, 100000, 0); /* heals */
}

static const char *steps_unseen(world *w, uint64_t seed) {
    rng r = rng_seeded(seed);
    for (size_t i = 0; i < 2 * N_STEPS; i++) {
        TRY(step_unseen(w, &r));
        for (size_t k = 0; k < 4; k++) {
            TRY(alloc_audited(w, 4000000 + k * 512, 1));
        }
        TRY(world_verify_all(w)); /* now all that was under way is done, on what it finds there */
        TRY(world_free_all(w));
    }
    NEED(fixture_stats(w->f.allocator).compacted_handles > 0, "nothing was healed");
    return NULL;
}

ParameterizedTestParameters(prop_patterns, healed_memory_stays_with_its_stream) {
    return numbered(0, 4);
}

ParameterizedTest(uint64_t *index, prop_patterns, healed_memory_stays_with_its_stream) {
    fixture_setup setup = {.capacity_bytes = CAPACITY,
                           .schedule =
                               *index % 2 == 0 ? DUCTILE_SCHEDULE_LAZY : DUCTILE_SCHEDULE_RANDOM,
                           .seed = *index + 1,
                           .n_streams = 2};
    world w;
    assert_fine(world_open(&w, &setup, true));
    assert_fine(steps_unseen(&w, 900 + *index));
    assert_fine(world_close(&w));
}
