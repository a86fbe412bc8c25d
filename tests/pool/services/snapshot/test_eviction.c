/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks make room: never more cost than the cheapest of all subsets, and room indeed. */
#include "tests/support/expect.h"
#include "tests/support/internals.h"
#include "tests/support/rng.h"

#include <ductile_pressure.h>

#include <stdlib.h>
#include <string.h>

enum { MOST = 64, N_HEAPS = 300, MOST_CANDIDATES = 9 };

static ductile_addr live[MOST], chosen[MOST];
static uint64_t costs[MOST];

static void open_one(void) {
    open_fixture(&(fixture_setup){.n_streams = 2});
}

TestSuite(eviction, .init = open_one, .fini = close_audited);

static ductile_eviction e; /* of the latest plan */

/* Room for so much on the stream, from the first n of live. */
static ductile_status plan_on(size_t stream, size_t need, size_t n) {
    e = (ductile_eviction){.struct_size = sizeof e};
    return ductile_plan_eviction(f.allocator, need, f.streams[stream], n, live, costs, chosen, &e);
}

static ductile_status plan(size_t need, size_t n) {
    return plan_on(0, need, n);
}

/* Blocks of a quarter granule each, at neighbouring addresses. */
static void fill_granules(size_t n) {
    for (size_t i = 0; i < n; i++) {
        live[i] = take(FIXTURE_GRANULE / 4, 0);
        costs[i] = 10;
    }
}

#define QUARTER (FIXTURE_GRANULE / 4)

/* ---- What it finds ------------------------------------------------------------------------- */

Test(eviction, room_that_is_there_costs_nothing) {
    fill_granules(8);
    give(live[2]);
    assert_ok(plan(QUARTER, 2));
    assert_u64(e.cost, 0);
    assert_u64(e.n_blocks, 0);
    assert_u64(e.address, live[2]);
    assert_u64(e.size, QUARTER);
    assert_ok(ductile_plan_eviction(f.allocator, 1, f.streams[0], 0, NULL, NULL, NULL, &e));
}

Test(eviction, the_cheapest_blocks_go_with_the_free_memory_beside_them) {
    fill_granules(8);
    give(live[5]);
    live[5] = live[0];
    costs[2] = costs[3] = 4;
    costs[6] = 9;
    assert_ok(plan(2 * QUARTER, 5));
    assert_u64(e.cost, 8); /* 2 and 3; 4 beside the free one costs 10 */
    assert_u64(e.n_blocks, 2);
    assert_u64(chosen[0], live[2]);
    assert_u64(chosen[1], live[3]);
    costs[4] = 8;
    assert_ok(plan(2 * QUARTER, 5));
    assert_u64(e.n_blocks, 1); /* of equal costs the fewest blocks */
    assert_u64(chosen[0], live[4]);
    assert_u64(e.address, live[4]);
    assert_u64(e.size, 2 * QUARTER);
}

Test(eviction, too_little_says_how_large_the_hole_would_be) {
    fill_granules(8);
    chosen[0] = 7;
    assert_status(plan(4 * QUARTER, 3), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(e.size, 3 * QUARTER);
    assert_u64(e.n_blocks + e.cost + e.address, 0);
    assert_u64(chosen[0], 7);
    assert_status(plan(SIZE_MAX, 3), DUCTILE_ERR_OUT_OF_MEMORY);
}

Test(eviction, memory_of_other_streams_makes_no_room) {
    fill_granules(4);
    assert_status(plan_on(1, QUARTER, 4), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(e.size, 0);
}

Test(eviction, dedicated_blocks_make_no_room) {
    assert_ok(ductile_alloc_dedicated(f.allocator, 4 * QUARTER, f.streams[0], &live[0]));
    assert_status(plan(512, 1), DUCTILE_ERR_OUT_OF_MEMORY);
    give(live[0]);
}

/* ---- What it refuses ----------------------------------------------------------------------- */

Test(eviction, a_candidate_that_is_not_live_is_named) {
    fill_granules(4);
    const struct {
        ductile_addr address;
        ductile_status status;
    } wrong[] = {{live[1] + 512, DUCTILE_ERR_INTERIOR_POINTER}, {8, DUCTILE_ERR_FOREIGN_POINTER}};
    for (size_t i = 0; i < 2; i++) {
        live[3] = wrong[i].address;
        assert_status(plan(512, 4), wrong[i].status);
        assert_u64(e.address, wrong[i].address);
    }
}

Test(eviction, what_cannot_be_meant_changes_nothing) {
    fill_granules(4);
    e = (ductile_eviction){.struct_size = sizeof e};
    const ductile_eviction before = e;
    live[3] = live[0];
    assert_status(ductile_plan_eviction(f.allocator, 512, f.streams[0], 4, live, costs, chosen, &e),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    costs[0] = costs[1] = UINT64_MAX / 2 + 1;
    assert_status(ductile_plan_eviction(f.allocator, 512, f.streams[0], 3, live, costs, chosen, &e),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_eq(memcmp(&e, &before, sizeof e), 0);
}

Test(eviction, it_makes_no_driver_call) {
    fill_granules(8);
    uint64_t calls = fixture_state(&f).calls;
    assert_ok(plan(QUARTER, 8));
    assert_u64(fixture_state(&f).calls, calls);
}

/* ---- Against all subsets ------------------------------------------------------------------- */

typedef struct heap {
    ductile_block_info blocks[4 * MOST];
    size_t n;
} heap;

static int keep_block(void *user, const ductile_block_info *block) {
    heap *h = user;
    h->blocks[h->n++] = *block;
    return h->n == 4 * MOST;
}

static bool is_freed(const ductile_block_info *b, size_t n, unsigned subset) {
    for (size_t i = 0; i < n; i++) {
        if ((subset >> i & 1) != 0 && live[i] == b->address) {
            return true;
        }
    }
    return b->state == DUCTILE_BLOCK_FREE;
}

/* Is there room for `need` bytes with these candidates freed? */
static bool opens(const heap *h, size_t n, unsigned subset, uint64_t need) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < h->n; i++) {
        const ductile_block_info *b = &h->blocks[i];
        bool continues = i > 0 && b->segment == h->blocks[i - 1].segment;
        bool is_of_stream = b->stream == f.streams[0];
        bytes = is_of_stream && is_freed(b, n, subset) ? (continues ? bytes : 0) + b->size : 0;
        if (bytes >= need) {
            return true;
        }
    }
    return false;
}

/* The least cost of all subsets; UINT64_MAX where none opens the hole. */
static uint64_t cheapest(const heap *h, size_t n, uint64_t need) {
    uint64_t best = UINT64_MAX;
    for (unsigned subset = 0; subset < 1u << n; subset++) {
        uint64_t cost = 0;
        for (size_t i = 0; i < n; i++) {
            cost += (subset >> i & 1) != 0 ? costs[i] : 0;
        }
        if (cost < best && opens(h, n, subset, need)) {
            best = cost;
        }
    }
    return best;
}

/* Live blocks on two streams with holes between them; returns how many candidates there are. */
static size_t make_heap(rng *r, size_t *n_live) {
    size_t n = rng_between(r, 2, 24);
    *n_live = 0;
    for (size_t i = 0; i < n; i++) {
        live[(*n_live)++] = take(512 * rng_between(r, 1, 6000), rng_percent(r, 80) ? 0 : 1);
        if (rng_percent(r, 40)) {
            size_t gone = rng_below(r, *n_live);
            give(live[gone]);
            live[gone] = live[--*n_live];
        }
    }
    for (size_t i = 0; i < *n_live; i++) {
        costs[i] = rng_below(r, 5);
        size_t other = rng_below(r, i + 1);
        ductile_addr address = live[i];
        live[i] = live[other];
        live[other] = address;
    }
    return *n_live < MOST_CANDIDATES ? *n_live : MOST_CANDIDATES;
}

/* Frees what is to go: then the hole is there, and a request fits without a driver call. */
static void follow(size_t *n_live, size_t size) {
    for (uint64_t i = 0; i < e.n_blocks; i++) {
        give(chosen[i]);
        for (size_t at = 0; at < *n_live; at++) {
            live[at] = live[at] == chosen[i] ? live[--*n_live] : live[at];
        }
    }
    heap h = {0};
    assert_ok(ductile_walk(f.allocator, NULL, keep_block, &h));
    bool is_there = false;
    for (size_t i = 0; i < h.n; i++) {
        is_there |= h.blocks[i].address == e.address && h.blocks[i].size == e.size &&
                    h.blocks[i].state == DUCTILE_BLOCK_FREE;
    }
    cr_assert(is_there);
    uint64_t creates = fixture_stats(f.allocator).creates;
    live[(*n_live)++] = take(size, 0);
    assert_u64(fixture_stats(f.allocator).creates, creates);
}

static unsigned n_planned, n_refused;

static void try_heap(uint64_t seed) {
    rng r = rng_seeded(seed);
    size_t n_live;
    size_t n = make_heap(&r, &n_live);
    size_t size = 512 * rng_between(&r, 1, 24000);
    heap h = {0};
    assert_ok(ductile_walk(f.allocator, NULL, keep_block, &h));
    uint64_t best = cheapest(&h, n, size);
    ductile_status status = plan(size, n);
    cr_assert_eq(status, best == UINT64_MAX ? DUCTILE_ERR_OUT_OF_MEMORY : DUCTILE_OK, "seed %llu",
                 (unsigned long long)seed);
    if (status == DUCTILE_OK) {
        cr_assert_eq(e.cost, best, "seed %llu", (unsigned long long)seed);
        n_planned += e.n_blocks > 0;
        follow(&n_live, size);
    } else {
        n_refused++;
    }
    while (n_live > 0) {
        give(live[--n_live]);
    }
    assert_ok(ductile_trim(f.allocator, NULL, 0,
                           NULL)); /* the next one has no free memory to begin with */
}

Test(eviction, no_subset_is_cheaper) {
    for (uint64_t seed = 0; seed < N_HEAPS; seed++) {
        try_heap(seed);
    }
    cr_assert_gt(n_planned, N_HEAPS / 10);
    cr_assert_gt(n_refused, N_HEAPS / 10);
}
