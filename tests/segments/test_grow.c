/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map that failed: what is known to be empty is used again, what is known to be mapped is undone,
 * and what cannot be told is never touched again. Where handles come from, and that a growth which
 * fails is undone, is in tests/scenarios (pressure.txt, sizes.txt, dedicated.txt, faults.txt).
 */
#include "tests/support/segment_fixture.h"

TestSuite(failed_map, .init = segment_fixture_open);

static bool map_fails(uint32_t first, dvmm_handle *h) {
    ductile_status status = dseg_map(seg, first, &h, 1);
    cr_assert(status != DUCTILE_OK, "the map was to fail");
    return seg->n_quarantined > 0;
}

static void map_and_unmap(uint32_t first, dvmm_handle *h) {
    map_at(first, h);
    assert_ok(dseg_unmap_handles(seg, first, h->n_granules, proof_of_all()));
}

static void assert_quarantined(uint32_t first, const dvmm_handle *h) {
    assert_state(first, h->n_granules, DSEG_QUARANTINED);
    assert_u64(seg->n_quarantined, h->n_granules);
    assert_u64(h->n_mappings, 1);
}

static void is_undone(int code, int effect) {
    dvmm_handle *h = new_handle(2);
    break_calls("map", 1, code, effect);
    cr_assert(!map_fails(3, h));
    mend_calls();
    map_and_unmap(3, h);
}

Test(failed_map, leaves_the_spot_empty_whether_it_was_done_or_not) {
    is_undone(DVMM_OUT_OF_MEMORY, 0);
    is_undone(DVMM_UNKNOWN, 1);
    segment_fixture_close();
}

/* The map was done, and no call answers any more. */
static void nobody_can_tell(int code) {
    dvmm_handle *h = new_handle(1);
    break_calls(NULL, 1, code, 1);
    cr_assert(map_fails(3, h), "a real mapping is booked as nothing");
    mend_calls();
    assert_quarantined(3, h);
    dvmm_store_lose(&store, h);
    map_and_unmap(4, new_handle(2));
    segment_fixture_abandon();
}

Test(failed_map, that_nobody_can_tell_is_quarantined) {
    nobody_can_tell(DVMM_UNKNOWN);
    segment_fixture_open();
    nobody_can_tell(DVMM_OUT_OF_MEMORY);
}

/* Another owner's memory at one end: neither nothing nor ours, and not ours to unmap. */
static void stands_in_the_way(uint32_t granule) {
    device_back(&r, dseg_addr(seg, granule), 1);
    uint64_t mappings = device_state(&r).mappings;
    dvmm_handle *h = new_handle(3);
    cr_assert(map_fails(2, h), "the ends differ and that was not noticed");
    assert_quarantined(2, h);
    assert_u64(device_state(&r).mappings, mappings);
    assert_u64(device_state(&r).violations, 0);
    dvmm_store_lose(&store, h);
    segment_fixture_abandon();
}

Test(failed_map, beside_memory_at_either_end_is_quarantined) {
    stands_in_the_way(2);
    segment_fixture_open();
    stands_in_the_way(4);
}

/* ---- Growing ------------------------------------------------------------------------------- */

TestSuite(grow, .init = segment_fixture_open);
TestSuite(refill, .init = segment_fixture_open);

static dvmm_handle *handles[N_GRANULES];

/* Handles of at most so many granules are created. */
static dseg_growth growth(dseg_piece *piece, uint32_t max_created) {
    return (dseg_growth){.seg = seg,
                         .pieces = piece,
                         .n_pieces = 1,
                         .max_created = max_created,
                         .max_held = UINT64_MAX,
                         .handles = handles,
                         .max_handles = N_GRANULES};
}

/* Unmaps all, old addresses first, and closes. */
static void end_growth(void) {
    assert_ok(dseg_unmap_all(seg, DSEG_RETIRING, proof_of_all()));
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    assert_u64(device_state(&r).violations, 0);
    segment_fixture_close();
}

Test(grow, takes_small_cached_handles_only_where_they_must_do) {
    for (uint32_t i = 0; i < 8; i++) {
        dvmm_store_put(&store, new_handle(1));
    }
    dseg_piece piece = {.first = 0, .n_granules = 8};
    dseg_growth g = growth(&piece, 8);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 1);
    assert_u64(store.totals.held_bytes, 8 * r.granule);
    end_growth();
}

/* A handle that the driver did not take back is held, and is exchanged for nothing. */
Test(grow, above_a_soft_limit_exchanges_as_much_beside_lost_memory) {
    dvmm_store_put(&store, new_handle(4));
    dvmm_store_lose(&store, new_handle(1));
    dseg_piece piece = {.first = 0, .n_granules = 4};
    dseg_growth g = growth(&piece, 1);
    g.max_held = 3 * r.granule;
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 4);
    assert_u64(store.totals.held_bytes, 5 * r.granule);
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    assert_ok(dseg_destroy(seg));
    dvmm_store_fini(&store);
    assert_ok(dvmm_markers_fini(&markers));
    device_abandon(&r);
}

/* The handle of the first donor comes by way of the cache, that of the second keeps its memory. */
Test(grow, moves_donors_behind_one_that_is_unmapped) {
    (void)back(8, 2);
    dvmm_handle *moves = back(12, 2);
    dseg_donor donors[] = {
        {.seg = seg, .first = 8, .n_granules = 2, .state = DSEG_TO_UNMAP, .idle = proof_of_all()},
        {.seg = seg, .first = 12, .n_granules = 2}};
    dseg_piece piece = {.first = 0, .n_granules = 4};
    dseg_growth g = growth(&piece, 2);
    g.donors = donors;
    g.n_donors = 2;
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_moved, 1);
    cr_assert_eq(seg->slots[0].handle, moves);
    assert_state(12, 2, DSEG_RETIRING);
    assert_u64(store.totals.held_bytes, 4 * r.granule);
    end_growth();
}

/* ---- Refilling ----------------------------------------------------------------------------- */

/* Pieces of one granule and of two, and two donors of two granules each. */
static dseg_donor large[2];
static dseg_piece odd_first[] = {{.first = 0, .n_granules = 1}, {.first = 4, .n_granules = 2}};

static dseg_growth growth_of_large(uint32_t max_created) {
    for (uint32_t i = 0; i < 2; i++) {
        (void)back(8 + 4 * i, 2);
        large[i] = (dseg_donor){.seg = seg, .first = 8 + 4 * i, .n_granules = 2};
    }
    dseg_growth g = growth(odd_first, max_created);
    g.n_pieces = 2;
    g.donors = large;
    g.n_donors = 2;
    return g;
}

Test(grow, where_granules_are_made_a_donor_that_does_not_fit_stays_for_another_piece) {
    dseg_growth g = growth_of_large(1);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_moved, 1);
    assert_state(8, 2, DSEG_RETIRING);
    assert_state(12, 2, DSEG_MAPPED);
    assert_u64(store.totals.held_bytes, 5 * r.granule);
    end_growth();
}

Test(grow, with_room_it_is_left_where_it_is) {
    dseg_growth g = growth_of_large(2);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_moved, 0);
    assert_u64(store.totals.held_bytes, 7 * r.granule);
    end_growth();
}

/* What was created for the first piece goes to the cache, what was donated for the second stays. */
Test(grow, that_fails_leaves_donors_what_they_have) {
    dseg_growth g = growth_of_large(1);
    break_calls("map", 2, DVMM_OUT_OF_MEMORY, 0);
    cr_assert_eq(dseg_grow(&g), DUCTILE_ERR_OUT_OF_MEMORY);
    mend_calls();
    assert_state(8, 2, DSEG_MAPPED);
    assert_u64(store.totals.cached_bytes, r.granule);
    assert_u64(store.totals.lost_bytes, 0);
    assert_u64(store.totals.held_bytes, 5 * r.granule);
    end_growth();
}

Test(refill, stops_where_an_address_is_lost) {
    (void)back(1, 1);
    dseg_idle idle = proof_of_all();
    break_calls("unmap", 1, DVMM_UNKNOWN, 0);
    assert_status(dseg_unmap_handles(seg, 1, 1, idle), DUCTILE_ERR_DRIVER);
    mend_calls();
    assert_status(dseg_refill(seg, 0, 3, 1), DUCTILE_ERR_DRIVER);
    assert_state(0, 1, DSEG_MAPPED);
    assert_state(1, 1, DSEG_QUARANTINED);
    assert_state(2, 1, DSEG_EMPTY);
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, idle));
    segment_fixture_abandon();
}

/* A mapping that was kept and that cannot be read any more: what it is cannot be told. */
Test(refill, stops_where_nobody_can_tell_what_stayed) {
    (void)back(1, 1);
    break_calls("get_access", 1, DVMM_UNKNOWN, 0);
    assert_status(dseg_refill(seg, 0, 3, 1), DUCTILE_ERR_DRIVER);
    mend_calls();
    assert_state(0, 1, DSEG_MAPPED);
    assert_state(2, 1, DSEG_EMPTY);
    assert_ok(dseg_refill(seg, 0, 3, 1));
    assert_u64(seg->n_mapped, 3);
    end_growth();
}

Test(refill, with_one_handle_stops_where_nobody_can_tell_what_stayed) {
    dvmm_handle *stayed = back(0, N_GRANULES);
    break_calls("get_access", 1, DVMM_UNKNOWN, 0);
    assert_status(dseg_fill_with_one(seg, UINT64_MAX), DUCTILE_ERR_DRIVER);
    mend_calls();
    assert_ok(dseg_fill_with_one(seg, UINT64_MAX));
    cr_assert(seg->slots[0].handle == stayed, "what stayed was mapped again");
    end_growth();
}

/* Another caller unmapped it: it comes back at the same place. */
Test(refill, with_one_handle_maps_again_what_is_gone) {
    (void)back(0, N_GRANULES);
    assert_code(RAW(&r, unmap, dseg_addr(seg, 0), N_GRANULES * r.granule), DVMM_SUCCESS);
    assert_ok(dseg_fill_with_one(seg, UINT64_MAX));
    assert_state(0, N_GRANULES, DSEG_MAPPED);
    assert_u64(device_state(&r).mappings, 1);
    end_growth();
}
