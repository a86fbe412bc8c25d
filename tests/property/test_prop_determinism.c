/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With record_stream:wait, memory held is a function of the calls: the same operations on devices
 * that complete their work at once, late, only when waited for and at random hold the same bytes at
 * every step. Between streams it holds where memory does not cross (reuse:stream).
 */
#include "tests/support/numbered.h"
#include "tests/support/one_fixture.h"
#include "tests/support/rng.h"

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

typedef struct block {
    ductile_addr address;
    uint64_t size;
    size_t stream;
} block;

static block live[MOST_LIVE];
static size_t n_live;

static void use_on(const block *b, size_t stream) {
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[stream], f.streams[b->stream]));
    launch(b->address, b->size, stream);
    assert_ok(ductile_record_stream(f.allocator, b->address, f.streams[stream]));
}

static void step(rng *r, uint64_t target) {
    size_t stream = (size_t)rng_below(r, f.n_streams);
    uint64_t dice = rng_below(r, 100);
    if (n_live == 0 || (n_live < target && dice < 70)) {
        uint64_t size = any_size(r);
        live[n_live] = (block){take(size, stream), size, stream};
        launch(live[n_live++].address, size, stream);
        return;
    }
    block *b = &live[rng_below(r, n_live)];
    if (dice % 2 == 0) {
        use_on(b, stream);
    }
    give(b->address);
    *b = live[--n_live];
}

/* Live memory swings, so that handles move and compaction is due. The larger device gets large
 * handles. */
static void run(const struct completion *c, uint64_t seed, history *h) {
    const fixture_setup setup = {.capacity_bytes = seed % 2 == 0 ? 4 * GIB : 64 * GIB,
                                 .schedule = c->schedule,
                                 .lag = c->lag,
                                 .seed = seed + c->lag,
                                 .n_streams = 3,
                                 .conf = "record_stream:wait,reuse:stream"};
    rng r = rng_seeded(seed);
    n_live = 0;
    open_fixture(&setup);
    for (uint64_t i = 0; i < N_OPS; i++) {
        step(&r, i / 300 % 2 == 0 ? MOST_LIVE : MOST_LIVE / 6);
        ductile_virtual_advance(f.gpu, 1);
        if (i % 10 == 0) {
            h->reserved[i / 10] = reserved();
        }
    }
    h->waits = fixture_stats(f.allocator).event_waits;
    close_audited();
}

ParameterizedTestParameters(prop_determinism, equal_calls_hold_equal_memory) {
    return numbered(300, N_SEEDS);
}

ParameterizedTest(uint64_t *seed, prop_determinism, equal_calls_hold_equal_memory) {
    static history first;
    static history other;
    run(&completions[0], *seed, &first);
    for (size_t i = 1; i < N_COMPLETIONS; i++) {
        run(&completions[i], *seed, &other);
        for (size_t k = 0; k < N_SAMPLES; k++) {
            cr_assert_eq(other.reserved[k], first.reserved[k],
                         "completion %zu holds %llu bytes at step %zu, completion 0 %llu", i,
                         (unsigned long long)other.reserved[k], 10 * k,
                         (unsigned long long)first.reserved[k]);
        }
        cr_assert(other.waits > 0, "completion %zu waited for nothing", i);
    }
}
