/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elastic ranges, beyond tests/scenarios/elastic.txt and what tests/model does with them: how long
 * they may be, and what other threads take while a commit fails.
 */
#include "tests/support/cpu_time.h"
#include "tests/support/one_fixture.h"

#include <ductile_elastic.h>
#include <ductile_share.h>

#define UNIT FIXTURE_GRANULE

static ductile_elastic *open_units(uint64_t n) {
    ductile_elastic *range = NULL;
    assert_ok(ductile_elastic_open(f.allocator, n * UNIT, f.streams[0], NULL, &range));
    return range;
}

/* ---- Long ranges --------------------------------------------------------------------------- */

/* A walk of all units would take minutes. */
Test(elastic, calls_cost_the_same_however_long_the_range_is, .timeout = 30) {
    const uint64_t n_units = UINT64_C(1) << 23;
    assert_fine(fixture_open(&f, NULL));
    ductile_elastic *range = open_units(n_units);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t at = (i % 2 == 0 ? i : n_units - 1 - i) * UNIT;
        assert_ok(ductile_elastic_commit(range, at, UNIT));
        assert_ok(ductile_elastic_decommit(range, 0, n_units * UNIT, NULL, 0));
        assert_ok(ductile_elastic_commit(range, at, UNIT));
        assert_ok(ductile_elastic_decommit(range, at, UNIT, NULL, 0));
    }
    assert_ok(ductile_elastic_close(range));
    assert_fine(fixture_close(&f));
}

/* The seconds of some commits and decommits just below a unit in use, far above so many others. */
static double cost_above(uint64_t n_below) {
    enum { N_CALLS = 4000 };
    const uint64_t n_units = UINT64_C(1) << 20;
    const fixture_setup setup = {.capacity_bytes = 64 * GIB};
    assert_fine(fixture_open(&f, &setup));
    ductile_elastic *range = open_units(n_units);
    assert_ok(ductile_elastic_commit(range, 0, n_below * UNIT));
    assert_ok(ductile_elastic_commit(range, (n_units - 2) * UNIT, 2 * UNIT));
    double start = cpu_seconds();
    for (int i = 0; i < N_CALLS; i++) {
        assert_ok(ductile_elastic_decommit(range, (n_units - 2) * UNIT, UNIT, NULL, 0));
        assert_ok(ductile_elastic_commit(range, (n_units - 2) * UNIT, UNIT));
    }
    double spent = cpu_seconds() - start;
    assert_ok(ductile_elastic_close(range));
    assert_fine(fixture_close(&f));
    return spent;
}

Test(elastic, what_grows_downwards_costs_the_same_however_much_lies_below) {
    double few = cost_above(16);
    double many = cost_above(16384);
    cr_assert_lt(many, 2 * few + 0.05, "%.3f s for %.3f s", many, few);
}

/* ---- What others see ----------------------------------------------------------------------- */

static int count_elastic(void *user, const ductile_block_info *b) {
    uint64_t *n = user;
    n[b->state] += (b->flags & DUCTILE_BLOCK_ELASTIC) != 0;
    return 0;
}

Test(elastic, blocks_of_ranges_are_told_from_those_of_requests) {
    uint64_t n[DUCTILE_BLOCK_ASLEEP + 1] = {0};
    assert_fine(fixture_open(&f, NULL));
    ductile_addr block = take(UNIT, 0);
    ductile_elastic *range = open_units(8);
    assert_ok(ductile_elastic_commit(range, 0, 3 * UNIT));
    assert_ok(ductile_elastic_decommit(range, 2 * UNIT, UNIT, NULL, 0));
    assert_ok(ductile_walk(f.allocator, NULL, count_elastic, n));
    assert_u64(n[DUCTILE_BLOCK_LIVE], 2);
    assert_u64(n[DUCTILE_BLOCK_FREE], 1);
    assert_u64(n[DUCTILE_BLOCK_GAP], 1);
    give(block);
    assert_ok(ductile_elastic_close(range));
    close_audited();
}

/* ---- A commit that fails ------------------------------------------------------------------- */

enum { N_SMALL = 4096, MOST_CALLS = 40 };

/* As threads would that allocate while memory moves: until no node is spare. */
static void allocate_small(void *user, ductile_allocator *a, const ductile_map_event *event) {
    ductile_status *status = user;
    for (int i = 0; i < N_SMALL && event->change == DUCTILE_MAP_LEAVING; i++) {
        ductile_addr address = 0;
        *status = ductile_alloc(a, 512, f.streams[0], &address);
    }
}

/* The driver fails from a call on, also where a map is undone. */
static void fail_a_commit(uint64_t from_call) {
    ductile_addr small = 0;
    ductile_addr moves = 0;
    uint64_t id = 0;
    ductile_status told = DUCTILE_OK;
    const fixture_setup setup = {.n_streams = 2, .conf = "sizes:2M"};
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .nth = from_call, .code = 999, .persistent = 1};
    assert_fine(fixture_open(&f, &setup));
    ductile_elastic *range = open_units(8);
    assert_ok(ductile_alloc(f.allocator, 512, f.streams[0], &small));
    assert_ok(ductile_alloc(f.allocator, 8 * UNIT, f.streams[1], &moves));
    assert_ok(ductile_free(f.allocator, moves));
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_add_map_callback(f.allocator, allocate_small, &told, 0, &id));
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    ductile_status status = ductile_elastic_commit(range, 0, 8 * UNIT);
    cr_expect(status != DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_ok(ductile_check(f.allocator, NULL, 0));
    fixture_abandon(&f);
}

Test(elastic, a_commit_fails_while_others_take_every_node) {
    for (uint64_t i = 1; i < MOST_CALLS; i++) {
        fail_a_commit(i);
    }
}

/* ---- Under pressure ------------------------------------------------------------------------ */

static ductile_addr balloon;

static uint64_t free_balloon(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)user, (void)missing, (void)stream;
    ductile_addr address = balloon;
    balloon = 0;
    return ductile_free(a, address) == DUCTILE_OK && address != 0 ? 40 * MIB : 0;
}

/* Units that wait for a stream are asked for first. What is missing besides comes from wherever
 * that of a request does. */
Test(elastic, what_is_missing_beside_pending_units_is_asked_for_too) {
    const fixture_setup setup = {
        .capacity_bytes = 64 * MIB, .n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY};
    uint64_t id = 0;
    assert_fine(fixture_open(&f, &setup));
    ductile_elastic *range = open_units(16);
    balloon = take(40 * MIB, 1);
    assert_ok(ductile_add_oom_callback(f.allocator, free_balloon, NULL, 0, &id));
    assert_ok(ductile_elastic_commit(range, 0, UNIT));
    const ductile_virtual_use use = {
        .address = ductile_elastic_address(range), .size = UNIT, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], &use, 1));
    assert_ok(ductile_elastic_decommit(range, 0, UNIT, &f.streams[1], 1));
    assert_u64(fixture_stats(f.allocator).pending_blocks, 1);
    assert_ok(ductile_elastic_commit(range, 0, 16 * UNIT));
    assert_u64(balloon, 0);
    assert_ok(ductile_elastic_close(range));
    assert_ok(ductile_remove_oom_callback(f.allocator, id));
    close_audited();
}

/* ---- Without a cache ----------------------------------------------------------------------- */

/* While a kernel uses the units. */
static uint64_t waits_of_decommit(uint64_t n_units) {
    const fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .conf = "caching:off"};
    assert_fine(fixture_open(&f, &setup));
    ductile_elastic *range = open_units(n_units);
    assert_ok(ductile_elastic_commit(range, 0, n_units * UNIT));
    launch(ductile_elastic_address(range), n_units * UNIT, 0);
    ductile_stats before = fixture_stats(f.allocator);
    assert_ok(ductile_elastic_decommit(range, 0, n_units * UNIT, NULL, 0));
    ductile_stats after = fixture_stats(f.allocator);
    assert_u64(after.reserved_bytes, 0);
    assert_ok(ductile_elastic_close(range));
    close_audited();
    return after.stream_syncs - before.stream_syncs;
}

Test(elastic, a_decommit_trims_once_however_many_units_it_has) {
    uint64_t waits = waits_of_decommit(1);
    assert_u64(waits, 1);
    assert_u64(waits_of_decommit(16), waits);
}
