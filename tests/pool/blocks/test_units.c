/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of elastic ranges where a scenario cannot look: what callers see, many of them at once, map
 * callbacks.
 */
#include "pool/blocks/units.h"
#include "tests/support/internals.h"

#include <ductile_elastic.h>
#include <ductile_share.h>

#define UNIT (4 * MIB)

static ductile_elastic *range;

static void open_range(const fixture_setup *setup, uint64_t bytes) {
    const ductile_elastic_options units = {.struct_size = sizeof units, .unit_bytes = UNIT};
    open_fixture(setup);
    assert_ok(ductile_elastic_open(f.allocator, bytes, f.streams[0], &units, &range));
}

static void close_range_audited(void) {
    assert_ok(ductile_elastic_close(range));
    close_audited();
}

static void commit(uint64_t first, uint64_t n) {
    assert_ok(ductile_elastic_commit(range, first * UNIT, n * UNIT));
}

static void decommit(uint64_t first, uint64_t n) {
    assert_ok(ductile_elastic_decommit(range, first * UNIT, n * UNIT, NULL, 0));
}

/* ---- What callers see ---------------------------------------------------------------------- */

Test(units, says_where_it_is_how_large_and_in_which_units) {
    open_range(NULL, 10 * MIB);
    cr_assert(ductile_elastic_address(range) % FIXTURE_GRANULE == 0);
    assert_u64(ductile_elastic_unit(range), UNIT);
    assert_u64(ductile_elastic_bytes(range), 12 * MIB);
    assert_u64(ductile_elastic_address(NULL) + ductile_elastic_unit(NULL), 0);
    assert_u64(ductile_elastic_bytes(NULL), 0);
    close_range_audited();
}

Test(units, has_units_of_one_granule_where_nothing_is_said) {
    open_fixture(NULL);
    assert_ok(ductile_elastic_open(f.allocator, MIB, f.streams[0], NULL, &range));
    assert_u64(ductile_elastic_unit(range), FIXTURE_GRANULE);
    close_range_audited();
}

/* The first of its fields. */
Test(units, has_units_of_one_granule_where_options_have_a_size_alone) {
    const ductile_elastic_options shortest = {.struct_size = sizeof(size_t), .unit_bytes = UNIT};
    open_fixture(NULL);
    assert_ok(ductile_elastic_open(f.allocator, MIB, f.streams[0], &shortest, &range));
    assert_u64(ductile_elastic_unit(range), FIXTURE_GRANULE);
    close_range_audited();
}

static int count_live(void *user, const ductile_block_info *b) {
    uint64_t *n = user;
    if (b->state == DUCTILE_BLOCK_LIVE) {
        cr_assert(b->size == UNIT && b->requested_size == UNIT && b->stream == f.streams[0]);
        (*n)++;
    }
    return 0;
}

Test(units, shows_a_walk_each_unit_as_a_block) {
    uint64_t n = 0;
    open_range(NULL, 64 * MIB);
    commit(2, 5);
    commit(9, 1);
    assert_ok(ductile_walk(f.allocator, NULL, count_live, &n));
    assert_u64(n, 6);
    close_range_audited();
}

Test(units, counts_in_the_statistics_as_other_memory) {
    open_range(NULL, 64 * MIB);
    commit(0, 4);
    decommit(1, 2);
    ductile_stats s = fixture_stats(f.allocator);
    assert_u64(s.allocated_bytes, 2 * UNIT);
    assert_u64(s.free_bytes, 2 * UNIT);
    assert_u64(s.allocs, 4);
    assert_u64(s.frees, 2);
    assert_u64(s.slow_allocs, 1);
    close_range_audited();
}

Test(units, ends_with_an_allocator_that_is_destroyed_before_it) {
    open_range(NULL, 64 * MIB);
    commit(0, 3);
    assert_ok(ductile_destroy(f.allocator));
    f.allocator = NULL;
    assert_fine(fixture_leak_gate(&f));
    fixture_abandon(&f);
}

/* ---- Units ---------------------------------------------------------------------------------- */

/* The address map grows in the middle of a commit, which takes thousands of places at once. */
Test(units, commits_more_units_than_the_address_map_has_places_for) {
    enum { N = 5000 };
    open_range(&(fixture_setup){.capacity_bytes = (N + 1) * UNIT}, N * UNIT);
    commit(0, N);
    assert_u64(fixture_stats(f.allocator).live_blocks, N);
    assert_sound();
    for (uint64_t i = 0; i < N; i += 2) {
        decommit(i, 1);
    }
    commit(0, N);
    assert_u64(fixture_stats(f.allocator).live_blocks, N);
    close_range_audited();
}

/* In the first table of the address map (address_map.c), which has 4,096 places. */
static uint64_t home_of_unit(uint64_t i) {
    ductile_addr address = ductile_elastic_address(range) + i * UNIT;
    return address / DPOOL_UNIT * UINT64_C(0x9E3779B97F4A7C15) >> 52;
}

/* So many units have one home there that the next one makes the table too crowded for another. */
Test(units, taken_in_place_are_all_or_none_where_the_address_map_gets_crowded) {
    enum { CROWDED = 48 };
    open_range(NULL, (UINT64_C(1) << 20) * UNIT);
    commit(0, 2);
    decommit(0, 2);
    uint64_t n = 0;
    for (uint64_t i = 2; n < CROWDED; i++) {
        if (home_of_unit(i) == home_of_unit(0)) {
            commit(i, 1);
            n++;
        }
    }
    uint64_t mask = f.allocator->map.mask;
    commit(0, 2);
    cr_assert_gt(f.allocator->map.mask, mask, "the table was not crowded");
    assert_u64(fixture_stats(f.allocator).live_blocks, CROWDED + 2);
    close_range_audited();
}

/* From the nearest one in use, below or above, or from the beginning. */
Test(units, finds_a_unit_wherever_it_lies) {
    open_range(NULL, 400 * MIB);
    const uint64_t in_use[] = {0, 7, 50, 99};
    for (size_t i = 0; i < sizeof in_use / sizeof *in_use; i++) {
        commit(in_use[i], 1);
    }
    for (uint64_t i = 0; i < 100; i++) {
        ductile_addr at = ductile_elastic_address(range) + i * UNIT;
        const dpool_units u = {range, at, at + UNIT};
        dti_lock_acquire(&f.allocator->index_lock);
        const dpool_block *b = dpool_units_first_locked(f.allocator, &u);
        bool holds = b->addr <= at && dpool_end(b) >= at + UNIT;
        dti_lock_release(&f.allocator->index_lock);
        cr_assert(holds, "unit %llu", (unsigned long long)i);
    }
    close_range_audited();
}

/* ---- Map callbacks -------------------------------------------------------------------------- */

static ductile_status inside[2]; /* a commit in place, and one that needs memory */
static uint64_t n_told;

static void commit_inside(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    n_told++;
    if (event->change == DUCTILE_MAP_MAPPED && n_told == 1) {
        inside[0] = ductile_elastic_commit(range, 0, UNIT);
        inside[1] = ductile_elastic_commit(range, 3 * UNIT, UNIT);
    }
}

Test(units, is_committed_inside_a_map_callback_only_in_place) {
    uint64_t id = 0;
    open_range(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY}, 64 * MIB);
    commit(0, 1);
    ductile_addr at = ductile_elastic_address(range); /* at work: it does not go to another unit */
    assert_ok(ductile_virtual_fill(f.gpu, at, 1, UNIT, f.streams[0]));
    decommit(0, 1);
    assert_ok(ductile_add_map_callback(f.allocator, commit_inside, NULL, 0, &id));
    commit(6, 1);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    assert_status(inside[0], DUCTILE_OK);
    assert_status(inside[1], DUCTILE_ERR_BUSY);
    cr_assert_gt(n_told, 0);
    close_range_audited();
}
