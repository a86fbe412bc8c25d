/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders of allocation and freeing that are hard for an allocator in a known way, audited at every
 * step: in order, reversed, sawtooth, one long-lived block in every granule, and the steps of a
 * training run, which peak, dip and peak again with other sizes. Noise rarely makes these.
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

/* Frees the block at `address`, wherever it stands in the model by now. */
static const char *free_address(world *w, ductile_addr address) {
    return free_audited(w, model_find(&w->m, address));
}

static size_t newest_of(const world *w, const ductile_addr *known, size_t n_known) {
    for (size_t i = 0; i < w->m.n; i++) {
        size_t k = 0;
        while (k < n_known && known[k] != w->m.blocks[i].address) {
            k++;
        }
        if (k == n_known) {
            return i;
        }
    }
    return w->m.n;
}

#define N_LADDER 60

/* Allocates N_LADDER blocks of growing size and writes down their addresses in order. */
static const char *climb(world *w, ductile_addr *addresses) {
    for (size_t i = 0; i < N_LADDER; i++) {
        TRY(alloc_audited(w, 512 + i * 40000, i % w->f.n_streams));
        addresses[i] = w->m.blocks[newest_of(w, addresses, i)].address;
    }
    return NULL;
}

static const char *freed_in_order(world *w) {
    ductile_addr addresses[N_LADDER];
    TRY(climb(w, addresses));
    for (size_t i = 0; i < N_LADDER; i++) {
        TRY(free_address(w, addresses[i]));
    }
    return NULL;
}

static const char *freed_in_reverse(world *w) {
    ductile_addr addresses[N_LADDER];
    TRY(climb(w, addresses));
    for (size_t i = N_LADDER; i-- > 0;) {
        TRY(free_address(w, addresses[i]));
    }
    return NULL;
}

/* Two steps forward, one back, and each tooth larger than the one before. */
static const char *sawtooth(world *w) {
    for (size_t tooth = 1; tooth <= 20; tooth++) {
        for (size_t i = 0; i < 6; i++) {
            TRY(alloc_audited(w, tooth * 30000 + i * 512, i % w->f.n_streams));
        }
        for (size_t i = 0; i < 3; i++) {
            TRY(free_audited(w, w->m.n / 2));
        }
        while (tooth % 5 == 0 && w->m.n > 4) {
            TRY(free_audited(w, w->m.n - 1));
        }
    }
    return NULL;
}

/* A block that stays in each granule leaves no granule to recycle: what is free can only be used
 * where it is, and the request that does not fit is refused while all the rest keeps working. */
static const char *pin_in_every_granule(world *w) {
    uint64_t granules = CAPACITY / FIXTURE_GRANULE;
    for (uint64_t i = 0; i < granules; i++) {
        TRY(alloc_audited(w, DUCTILE_ALIGNMENT, 0));
        TRY(alloc_audited(w, FIXTURE_GRANULE - DUCTILE_ALIGNMENT, 0));
    }
    for (size_t i = w->m.n; i-- > 0;) {
        if (w->m.blocks[i].size > DUCTILE_ALIGNMENT) {
            TRY(free_audited(w, i));
        }
    }
    TRY(world_alloc(w, 2 * FIXTURE_GRANULE, 0));
    NEED(w->status == DUCTILE_ERR_OUT_OF_MEMORY, "two granules: %s",
         ductile_status_name(w->status));
    for (uint64_t i = 0; i < granules; i++) {
        TRY(alloc_audited(w, FIXTURE_GRANULE - DUCTILE_ALIGNMENT, 0));
    }
    return world_verify_all(w);
}

/* The whole device in one block, then in granules, then in one block: nothing may stick. */
static const char *whole_and_pieces(world *w) {
    for (size_t round = 0; round < 4; round++) {
        size_t stream = round % w->f.n_streams;
        TRY(alloc_audited(w, CAPACITY, stream));
        TRY(free_audited(w, 0));
        for (uint64_t i = 0; i < CAPACITY / FIXTURE_GRANULE; i++) {
            TRY(alloc_audited(w, FIXTURE_GRANULE, (stream + i) % w->f.n_streams));
        }
        while (w->m.n > 0) {
            TRY(free_audited(w, (w->m.n - 1) / 2));
        }
    }
    return NULL;
}

static const struct pattern {
    const char *name;
    const char *(*run)(world *w);
} patterns[] = {
    {"freed in order", freed_in_order},
    {"freed in reverse", freed_in_reverse},
    {"sawtooth", sawtooth},
    {"one long-lived block per granule", pin_in_every_granule},
    {"the whole device and its pieces", whole_and_pieces},
};
#define N_PATTERNS (sizeof patterns / sizeof patterns[0])

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

static const char *run_pattern(size_t index) {
    const struct pattern *p = &patterns[index / N_COMPLETIONS];
    const struct completion *c = &completions[index % N_COMPLETIONS];
    fixture_setup setup = {.capacity_bytes = CAPACITY,
                           .schedule = c->schedule,
                           .lag = c->lag,
                           .seed = index + 1,
                           .n_streams = c->n_streams};
    world w;
    TRY(world_open(&w, &setup, true));
    const char *why = p->run(&w);
    const char *left = world_close(&w);
    why = why != NULL ? why : left;
    NEED(why == NULL, "%s, completion %zu: %s", p->name, index % N_COMPLETIONS, why);
    return NULL;
}

ParameterizedTestParameters(prop_patterns, pattern_is_served_and_leaves_nothing) {
    return numbered(0, N_PATTERNS * N_COMPLETIONS);
}

ParameterizedTest(uint64_t *index, prop_patterns, pattern_is_served_and_leaves_nothing) {
    assert_fine(run_pattern(*index));
}

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
