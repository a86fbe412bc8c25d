/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of weeks is the same step again and again, never quite the same. What is lost a little in
 * each pass is lost in the end: forty passes of a step whose sizes vary must stay as tight
 * as the first, in memory, in addresses and in bookkeeping.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/numbered.h"
#include "tests/support/rng.h"

#define N_PASSES 40
#define WARMED_UP 4 /* after a tenth of the passes nothing may grow any more */
#define N_LAYERS 24
#define N_KEPT 72 /* weights: three a layer */
#define N_SAVED (4 * N_LAYERS)

#define LEAST_EFFICIENCY 0.985

/* A training step on one stream. Owner: one test. */
typedef struct training {
    fixture f;
    rng r;
    ductile_addr kept[N_KEPT];
    ductile_addr saved[N_SAVED];
    size_t n_saved;
    uint64_t live_bytes, live_peak_bytes; /* of sizes rounded as they must be */
    const char *why;
} training;

static ductile_addr take(training *t, uint64_t size, uint64_t *taken) {
    ductile_addr address = 0;
    ductile_status status = ductile_alloc(t->f.allocator, size, t->f.streams[0], &address);
    if (status != DUCTILE_OK && t->why == NULL) {
        t->why =
            complain("alloc of %llu: %s", (unsigned long long)size, ductile_status_name(status));
    }
    ductile_virtual_use use = {.address = address, .size = size, .writes = 1};
    if (status == DUCTILE_OK) {
        status = ductile_virtual_launch(t->f.gpu, t->f.streams[0], &use, 1);
        t->why = status == DUCTILE_OK ? t->why : "a block cannot be written";
    }
    *taken = model_rounded(size);
    t->live_bytes += *taken;
    if (t->live_bytes > t->live_peak_bytes) {
        t->live_peak_bytes = t->live_bytes;
    }
    return address;
}

static void give(training *t, ductile_addr address, uint64_t taken) {
    ductile_status status = ductile_free(t->f.allocator, address);
    if (status != DUCTILE_OK && t->why == NULL) {
        t->why = complain("free: %s", ductile_status_name(status));
    }
    t->live_bytes -= taken;
}

static void load_weights(training *t) {
    uint64_t taken = 0;
    for (size_t i = 0; i < N_KEPT; i++) {
        t->kept[i] = take(t, (i % 3 == 0 ? 1024 : 30 * MIB) + i * 4096, &taken);
    }
}

/* Each layer saves four activations and uses a workspace in between; one is as long as the
 * sequence squared. */
static void forward(training *t, uint64_t tokens, uint64_t *sizes) {
    for (size_t layer = 0; layer < N_LAYERS; layer++) {
        const uint64_t wanted[4] = {tokens * 8192, tokens * 24576, tokens * tokens * 2,
                                    tokens * 32768 + layer * 512};
        for (size_t k = 0; k < 4; k++) {
            uint64_t workspace = 0;
            ductile_addr scratch = take(t, tokens * (4000 + 12000 * k), &workspace);
            t->saved[t->n_saved] = take(t, wanted[k], &sizes[t->n_saved]);
            t->n_saved++;
            give(t, scratch, workspace);
            ductile_virtual_advance(t->f.gpu, 1);
        }
    }
}

/* Frees what was saved, latest first, with a gradient in flight at each. */
static void backward(training *t, uint64_t tokens, const uint64_t *sizes) {
    uint64_t before = 0;
    ductile_addr gradient = take(t, tokens * 8192, &before);
    while (t->n_saved > 0) {
        uint64_t taken = 0;
        ductile_addr next = take(t, tokens * (2048 + 1024 * (t->n_saved % 7)), &taken);
        give(t, gradient, before);
        t->n_saved--;
        give(t, t->saved[t->n_saved], sizes[t->n_saved]);
        gradient = next;
        before = taken;
    }
    give(t, gradient, before);
}

/* A pass: a few steps, each with a length of its own. */
static void pass(training *t) {
    uint64_t sizes[N_SAVED];
    for (size_t i = 0; i < 3; i++) {
        uint64_t tokens = rng_between(&t->r, 2000, 8000);
        forward(t, tokens, sizes);
        backward(t, tokens, sizes);
        ductile_virtual_advance(t->f.gpu, 4);
    }
}

static double efficiency(const training *t) {
    return (double)t->live_peak_bytes / (double)fixture_stats(t->f.allocator).reserved_peak_bytes;
}

static void start(training *t, const fixture_setup *setup, uint64_t seed) {
    *t = (training){.r = rng_seeded(seed)};
    assert_fine(fixture_open(&t->f, setup));
    load_weights(t);
}

/* What is held may grow with the peak, which the longest steps raise, and by nothing else. */
static void nothing_creeps(const ductile_stats *early, const ductile_stats *late, double growth) {
    double handles = (double)early->handles * growth;
    double mappings = (double)(early->maps - early->unmaps) * growth;
    double spans = (double)(early->free_blocks + early->gap_blocks);
    cr_assert_leq((double)late->handles, 1.01 * handles, "%llu handles, %llu early on",
                  (unsigned long long)late->handles, (unsigned long long)early->handles);
    cr_assert_leq((double)(late->maps - late->unmaps), 1.5 * mappings);
    cr_assert_leq((double)late->host_bytes, 1.5 * growth * (double)early->host_bytes);
    cr_assert_leq((double)(late->free_blocks + late->gap_blocks), 2 * spans + 64);
}

static void play(training *t, size_t n_passes) {
    for (size_t i = 0; i < n_passes; i++) {
        pass(t);
        assert_fine(t->why);
        assert_fine(audit_fixture(&t->f, NULL));
    }
}

/* Large handles may grow with each longer step: they are exchanged for ones that fill a gap. */
static const struct {
    const char *conf;
    ductile_schedule schedule;
    uint64_t seed;
    double least_efficiency;
    uint64_t most_span; /* times the peak */
    uint64_t most_gaps;
} cases[] = {{"sizes:2M", DUCTILE_SCHEDULE_EAGER, 1, LEAST_EFFICIENCY, 4, UINT64_MAX},
             {"sizes:2M", DUCTILE_SCHEDULE_LAGGING, 2, LEAST_EFFICIENCY, 4, UINT64_MAX},
             {"", DUCTILE_SCHEDULE_EAGER, 1, 0.94, 4, UINT64_MAX}, /* with room to spare */
             {"sizes:20M", DUCTILE_SCHEDULE_EAGER, 4, 0.97, 2, 10}};

ParameterizedTestParameters(drift, forty_passes_stay_as_tight_as_the_first) {
    return numbered(0, sizeof cases / sizeof *cases);
}

ParameterizedTest(uint64_t *i, drift, forty_passes_stay_as_tight_as_the_first) {
    static training t;
    start(&t,
          &(fixture_setup){.capacity_bytes = 64 * GIB,
                           .schedule = cases[*i].schedule,
                           .lag = 2,
                           .conf = cases[*i].conf},
          cases[*i].seed);
    play(&t, WARMED_UP);
    ductile_stats early = fixture_stats(t.f.allocator);
    uint64_t early_peak = t.live_peak_bytes;
    play(&t, N_PASSES - WARMED_UP);
    ductile_stats late = fixture_stats(t.f.allocator);
    cr_assert_geq(efficiency(&t), cases[*i].least_efficiency, "efficiency %.4f after %d passes",
                  efficiency(&t), N_PASSES);
    cr_assert_leq(late.address_span_peak_bytes, cases[*i].most_span * t.live_peak_bytes,
                  "the addresses span %.2f times the peak",
                  (double)late.address_span_peak_bytes / (double)t.live_peak_bytes);
    cr_assert_leq(late.gap_blocks, cases[*i].most_gaps, "%llu gaps after the last dip",
                  (unsigned long long)late.gap_blocks);
    if (cases[*i].most_gaps == UINT64_MAX) {
        nothing_creeps(&early, &late, (double)t.live_peak_bytes / (double)early_peak);
    }
    assert_fine(fixture_close(&t.f));
}

/* With as little memory as the peak needs: every pass has to move handles, none may be refused. */
Test(drift, forty_passes_fit_just_above_the_peak) {
    static training t;
    fixture_setup setup = {.capacity_bytes = 64 * GIB};
    start(&t, &setup, 3);
    for (size_t i = 0; i < N_PASSES; i++) {
        pass(&t);
    }
    uint64_t needed = (uint64_t)((double)t.live_peak_bytes / LEAST_EFFICIENCY);
    assert_fine(fixture_close(&t.f));
    setup.capacity_bytes = (needed + FIXTURE_GRANULE - 1) / FIXTURE_GRANULE * FIXTURE_GRANULE;
    start(&t, &setup, 3);
    play(&t, N_PASSES);
    assert_fine(fixture_close(&t.f));
}
