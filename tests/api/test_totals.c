/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics that only ever rise, and peaks: held against a model that adds them up by hand, while
 * blocks are allocated, freed, and kept pending by another stream.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/rng.h"

#include <ductile.h>

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define N_BLOCKS 64
#define N_STEPS 2000

static fixture f;

static void open_lagging(void) {
    fixture_setup setup = {
        .schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 40, .n_streams = 2, .capacity_bytes = 2 * GIB};
    assert_fine(fixture_open(&f, &setup));
}

static void close_fixture(void) {
    assert_fine(fixture_close(&f));
}

typedef struct totals {
    uint64_t requested, allocated, n_live, live_peak, active_peak;
} totals;

static uint64_t rounded(uint64_t size) {
    return (size + DUCTILE_ALIGNMENT - 1) / DUCTILE_ALIGNMENT * DUCTILE_ALIGNMENT;
}

static uint64_t at_least(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void note_alloc(totals *t, uint64_t size) {
    ductile_stats s = fixture_stats(f.allocator);
    t->requested += size;
    t->allocated += rounded(size);
    t->n_live++;
    t->live_peak = at_least(t->live_peak, t->n_live);
    t->active_peak = at_least(t->active_peak, s.allocated_bytes + s.pending_bytes);
}

static void compare(const totals *t) {
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.requested_total_bytes, t->requested);
    assert_u64(s.allocated_total_bytes, t->allocated);
    assert_u64(s.live_peak_blocks, t->live_peak);
    assert_u64(s.active_peak_bytes, t->active_peak);
    assert_u64(s.created_total_bytes, s.creates * FIXTURE_GRANULE);
}

static void give_back(totals *t, ductile_addr *block, rng *r) {
    if (rng_percent(r, 40)) {
        cr_assert_eq(ductile_record_stream(f.allocator, *block, f.streams[1]), DUCTILE_OK);
    }
    cr_assert_eq(ductile_free(f.allocator, *block), DUCTILE_OK);
    *block = 0;
    t->n_live--;
}

static void play(totals *t, uint64_t seed) {
    ductile_addr blocks[N_BLOCKS] = {0};
    rng r = rng_seeded(seed);
    for (int i = 0; i < N_STEPS; i++) {
        ductile_addr *block = &blocks[rng_below(&r, N_BLOCKS)];
        if (*block != 0) {
            give_back(t, block, &r);
        } else {
            uint64_t size = rng_between(&r, 1, 6 * MIB);
            cr_assert_eq(ductile_alloc(f.allocator, size, f.streams[0], block), DUCTILE_OK);
            note_alloc(t, size);
        }
        if (i % 100 == 0) {
            compare(t);
        }
    }
    for (size_t i = 0; i < N_BLOCKS; i++) {
        cr_assert_eq(ductile_free(f.allocator, blocks[i]), DUCTILE_OK);
    }
    t->n_live = 0;
    compare(t);
}

TestSuite(totals, .init = open_lagging, .fini = close_fixture);

Test(totals, add_up_whatever_is_allocated_freed_and_pending) {
    totals t = {0};
    play(&t, 7);
    cr_assert_gt(t.active_peak, 0);
}

Test(totals, resetting_peaks_leaves_totals) {
    totals t = {0};
    play(&t, 11);
    ductile_reset_peaks(f.allocator);
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.live_peak_blocks, 0);
    assert_u64(s.active_peak_bytes, s.pending_bytes);
    assert_u64(s.requested_total_bytes, t.requested);
    t.live_peak = 0;
    t.active_peak = s.pending_bytes;
    play(&t, 12);
}

static int find_pending(void *user, const ductile_block_info *block) {
    if (block->state == DUCTILE_BLOCK_PENDING) {
        *(ductile_block_info *)user = *block;
    }
    return 0;
}

Test(totals, a_pending_block_still_says_what_was_asked_for) {
    ductile_addr block = 0;
    cr_assert_eq(ductile_alloc(f.allocator, 1000, f.streams[0], &block), DUCTILE_OK);
    cr_assert_eq(ductile_free_on(f.allocator, block, f.streams[1]), DUCTILE_OK);
    ductile_block_info found = {.struct_size = sizeof found};
    cr_assert_eq(ductile_walk(f.allocator, find_pending, &found), DUCTILE_OK);
    assert_u64(found.address, block);
    assert_u64(found.requested_size, 1000);
}

/* ---- At any time --------------------------------------------------------------------------- */

enum { BEFORE, INSIDE, GO_ON };
static atomic_int phase;

/* Keeps the first growth of the second stream inside its callback. */
static void stay_inside(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    int before = BEFORE;
    if (event->stream == f.streams[1] && atomic_compare_exchange_strong(&phase, &before, INSIDE)) {
        while (atomic_load(&phase) == INSIDE) {
            (void)usleep(100);
        }
    }
}

static void *grow_second_stream(void *status) {
    ductile_addr addr = 0;
    *(ductile_status *)status = ductile_alloc(f.allocator, 6 * MIB, f.streams[1], &addr);
    return NULL;
}

static void expect_identity(void) {
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.reserved_bytes, s.allocated_bytes + s.free_bytes + s.pending_bytes +
                                     s.cached_bytes + s.quarantined_bytes);
}

Test(totals, add_up_while_another_threads_plan_is_announced, .init = open_lagging,
     .fini = close_fixture) {
    uint64_t id = 0;
    pthread_t other;
    ductile_status grown = DUCTILE_ERR_BUSY;
    ductile_addr addr = 0;
    assert_ok(ductile_add_map_callback(f.allocator, stay_inside, NULL, 0, &id));
    cr_assert_eq(pthread_create(&other, NULL, grow_second_stream, &grown), 0);
    while (atomic_load(&phase) == BEFORE) {
        (void)usleep(100);
    }
    expect_identity();
    assert_ok(ductile_alloc(f.allocator, MIB, f.streams[0], &addr));
    expect_identity();
    atomic_store(&phase, GO_ON);
    cr_assert_eq(pthread_join(other, NULL), 0);
    assert_ok(grown);
    expect_identity();
}
