/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map that failed: what is known to be empty is used again, what is known to be mapped is undone,
 * and what cannot be told is never touched again.
 */
#include "tests/support/segment_rig.h"

TestSuite(failed_map, .init = segment_rig_open);

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

Test(failed_map, that_was_not_done_leaves_the_spot_empty) {
    dvmm_handle *h = new_handle(2);
    break_calls("map", 1, DVMM_OUT_OF_MEMORY, 0);
    cr_assert(!map_fails(3, h));
    mend_calls();
    map_and_unmap(3, h);
    segment_rig_close();
}

Test(failed_map, that_was_done_is_undone) {
    dvmm_handle *h = new_handle(2);
    break_calls("map", 1, DVMM_UNKNOWN, 1);
    cr_assert(!map_fails(3, h));
    mend_calls();
    map_and_unmap(3, h);
    segment_rig_close();
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
    segment_rig_abandon();
}

Test(failed_map, that_nobody_can_tell_is_quarantined) {
    nobody_can_tell(DVMM_UNKNOWN);
}

Test(failed_map, that_nobody_can_tell_for_lack_of_memory_is_quarantined) {
    nobody_can_tell(DVMM_OUT_OF_MEMORY);
}

/* Another owner's memory at one end: neither nothing nor ours, and not ours to unmap. */
static void stands_in_the_way(uint32_t granule) {
    rig_back(&r, dseg_addr(seg, granule), 1);
    uint64_t mappings = rig_state(&r).mappings;
    dvmm_handle *h = new_handle(3);
    cr_assert(map_fails(2, h), "the ends differ and that was not noticed");
    assert_quarantined(2, h);
    assert_u64(rig_state(&r).mappings, mappings);
    assert_u64(rig_state(&r).violations, 0);
    dvmm_store_lose(&store, h);
    segment_rig_abandon();
}

Test(failed_map, beside_memory_at_its_first_granule_is_quarantined) {
    stands_in_the_way(2);
}

Test(failed_map, beside_memory_at_its_last_granule_is_quarantined) {
    stands_in_the_way(4);
}

/* ---- Growing ------------------------------------------------------------------------------- */

TestSuite(grow, .init = segment_rig_open);
TestSuite(refill, .init = segment_rig_open);

static dvmm_handle *handles[N_GRANULES];

/* One piece, handles of at most so many granules created. */
static dseg_growth growth(dseg_piece *piece, dseg_donor *donors, uint32_t n_donors,
                          uint32_t max_created) {
    return (dseg_growth){.seg = seg,
                         .pieces = piece,
                         .n_pieces = 1,
                         .donors = donors,
                         .n_donors = n_donors,
                         .max_created = max_created,
                         .max_held = UINT64_MAX,
                         .handles = handles,
                         .max_handles = N_GRANULES};
}

static dseg_donor donor(uint32_t first, uint32_t n_granules) {
    return (dseg_donor){.seg = seg, .first = first, .n_granules = n_granules};
}

/* Unmaps all, old addresses first, and closes. */
static void end_growth(void) {
    assert_ok(dseg_unmap_all(seg, DSEG_RETIRING, proof_of_all()));
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    assert_u64(rig_state(&r).violations, 0);
    segment_rig_close();
}

Test(grow, creates_what_nobody_has_in_handles_of_the_largest_size) {
    dseg_piece piece = {.first = 1, .n_granules = 5};
    dseg_growth g = growth(&piece, NULL, 0, 2);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 3);
    assert_u64(g.n_moved, 0);
    assert_u64(handles[0]->n_granules, 2);
    assert_u64(handles[2]->n_granules, 1);
    assert_state(1, 5, DSEG_MAPPED);
    end_growth();
}

Test(grow, takes_the_cache_before_it_creates) {
    dvmm_handle *h = new_handle(1);
    dvmm_store_put(&store, h);
    dseg_piece piece = {.first = 0, .n_granules = 2};
    dseg_growth g = growth(&piece, NULL, 0, 1);
    assert_ok(dseg_grow(&g));
    cr_assert(handles[0] == h, "the cached handle comes first");
    assert_u64(store.totals.cached_bytes, 0);
    assert_u64(store.totals.created_bytes, 2 * r.granule);
    end_growth();
}

Test(grow, takes_donors_before_the_cache_and_retires_them) {
    dvmm_store_put(&store, new_handle(1));
    dvmm_handle *moved = back(0, 1);
    dseg_donor d = donor(0, 1);
    dseg_piece piece = {.first = 4, .n_granules = 2};
    dseg_growth g = growth(&piece, &d, 1, 1);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_moved, 1);
    cr_assert(handles[0] == moved, "donors come first");
    assert_u64(d.state, DSEG_MOVED);
    assert_state(0, 1, DSEG_RETIRING);
    assert_state(4, 2, DSEG_MAPPED);
    assert_u64(moved->n_mappings, 2);
    assert_u64(store.totals.created_bytes, 2 * r.granule);
    end_growth();
}

/* The GPU works on what moves all the while: its handle keeps both addresses until a proof. */
Test(grow, moves_memory_under_work) {
    ductile_stream stream = rig_stream(&r);
    (void)back(0, 2);
    work_on(stream, 0, 2);
    dseg_donor d = donor(0, 2);
    dseg_piece piece = {.first = 4, .n_granules = 2};
    dseg_growth g = growth(&piece, &d, 1, 1);
    assert_ok(dseg_grow(&g));
    work_on(stream, 4, 2);
    assert_u64(store.totals.created_bytes, 2 * r.granule);
    dseg_stream_idle idle;
    assert_ok(dseg_sync(&store, stream, &idle));
    assert_ok(dvmm_stream_destroy(r.d, stream));
    end_growth();
}

Test(grow, leaves_donors_whose_handle_does_not_fit) {
    (void)back(0, 3);
    dseg_donor d = donor(0, 3);
    dseg_piece piece = {.first = 4, .n_granules = 2};
    dseg_growth g = growth(&piece, &d, 1, 1);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_moved, 0);
    assert_u64(d.state, DSEG_MAY_MOVE);
    assert_state(0, 3, DSEG_MAPPED);
    end_growth();
}

/* Eight handles of one granule become one of eight, and no more is held than before. */
Test(grow, exchanges_donors_that_may_be_unmapped) {
    for (uint32_t i = 0; i < 8; i++) {
        (void)back(i, 1);
    }
    store.limit_bytes = 8 * r.granule;
    dseg_donor d = donor(0, 8);
    d.state = DSEG_TO_UNMAP;
    d.idle = proof_of_all();
    dseg_piece piece = {.first = 8, .n_granules = 8};
    dseg_growth g = growth(&piece, &d, 1, 8);
    assert_ok(dseg_grow(&g));
    assert_u64(d.state, DSEG_UNMAPPED);
    assert_u64(g.n_handles, 1);
    assert_u64(handles[0]->n_granules, 8);
    assert_u64(store.totals.held_bytes, 8 * r.granule);
    assert_state(0, 8, DSEG_EMPTY);
    end_growth();
}

Test(grow, takes_small_cached_handles_only_where_they_must_do) {
    for (uint32_t i = 0; i < 8; i++) {
        dvmm_store_put(&store, new_handle(1));
    }
    dseg_piece piece = {.first = 0, .n_granules = 8};
    dseg_growth g = growth(&piece, NULL, 0, 8);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 1);
    assert_u64(store.totals.held_bytes, 8 * r.granule);
    end_growth();
}

/* Near the limit no handle as large is made any more. */
Test(grow, takes_large_cached_handles_where_nothing_may_be_created) {
    dvmm_store_put(&store, new_handle(4));
    store.limit_bytes = 3 * r.granule;
    dseg_piece piece = {.first = 0, .n_granules = 4};
    dseg_growth g = growth(&piece, NULL, 0, 1);
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 1);
    end_growth();
}

/* A handle that the driver did not take back is held, and is exchanged for nothing. */
Test(grow, above_a_soft_limit_exchanges_as_much_beside_lost_memory) {
    dvmm_store_put(&store, new_handle(4));
    dvmm_store_lose(&store, new_handle(1));
    dseg_piece piece = {.first = 0, .n_granules = 4};
    dseg_growth g = growth(&piece, NULL, 0, 1);
    g.max_held = 3 * r.granule;
    assert_ok(dseg_grow(&g));
    assert_u64(g.n_handles, 4);
    assert_u64(store.totals.held_bytes, 5 * r.granule);
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    assert_ok(dseg_destroy(seg));
    dvmm_store_fini(&store);
    assert_ok(dvmm_markers_fini(&markers));
    rig_abandon(&r);
}

/* ---- Growing that fails -------------------------------------------------------------------- */

static uint64_t held_before;

/* A donor, a cached handle and two more: so that every source is used. Returns the status. */
static ductile_status try_to_grow(dseg_growth *g) {
    static dseg_piece pieces[2];
    static dseg_donor d;
    dvmm_store_put(&store, new_handle(1));
    (void)back(0, 1);
    held_before = store.totals.held_bytes;
    d = donor(0, 1);
    pieces[0] = (dseg_piece){.first = 2, .n_granules = 2};
    pieces[1] = (dseg_piece){.first = 5, .n_granules = 2};
    *g = growth(pieces, &d, 1, 1);
    g->n_pieces = 2;
    return dseg_grow(g);
}

static void expect_undone(const char *call, uint64_t nth) {
    dseg_growth g;
    ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = DVMM_OUT_OF_MEMORY};
    /* what try_to_grow needs itself comes before: one handle cached, one mapped */
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    assert_status(try_to_grow(&g), DUCTILE_ERR_OUT_OF_MEMORY);
    mend_calls();
    assert_u64(g.n_handles, 0);
    assert_u64(seg->n_mapped, 1);
    assert_u64(seg->n_retiring, 0);
    assert_u64(seg->n_quarantined, 0);
    assert_u64(seg->slots[0].handle->n_mappings, 1);
    assert_u64(store.totals.held_bytes, 2 * r.granule + store.totals.cached_bytes - r.granule);
    end_growth();
}

Test(grow, that_cannot_create_is_undone) {
    expect_undone("phys_create", 3);
}

Test(grow, that_can_create_but_one_handle_is_undone) {
    expect_undone("phys_create", 4);
}

Test(grow, that_cannot_map_is_undone) {
    expect_undone("map", 2);
}

Test(grow, that_cannot_map_a_later_piece_is_undone) {
    expect_undone("map", 5);
}

Test(grow, without_access_is_undone) {
    expect_undone("set_access", 2);
}

Test(grow, without_access_to_a_later_piece_is_undone) {
    expect_undone("set_access", 3);
}

Test(grow, says_how_much_it_lacked) {
    store.limit_bytes = 3 * r.granule;
    dseg_growth g;
    assert_status(try_to_grow(&g), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(g.granules_lacked, 1);
    assert_u64(store.totals.cached_bytes, 2 * r.granule);
    end_growth();
}

/* ---- Refilling ----------------------------------------------------------------------------- */

Test(refill, fills_what_is_empty_and_keeps_what_stayed) {
    dvmm_handle *stayed = back(2, 1);
    assert_ok(dseg_refill(seg, 0, 6, 1));
    assert_u64(seg->n_mapped, 6);
    cr_assert(seg->slots[2].handle == stayed, "what stayed was mapped again");
    end_growth();
}

Test(refill, takes_small_cached_handles_where_none_can_be_created) {
    for (int i = 0; i < 8; i++) {
        dvmm_store_put(&store, new_handle(1));
    }
    break_calls("phys_create", 1, DVMM_OUT_OF_MEMORY, 0);
    assert_ok(dseg_refill(seg, 0, 8, 16));
    mend_calls();
    assert_u64(seg->n_mapped, 8);
    end_growth();
}

Test(refill, takes_large_cached_handles_where_none_can_be_created) {
    dvmm_store_put(&store, new_handle(5));
    dvmm_store_put(&store, new_handle(3));
    break_calls("phys_create", 1, DVMM_OUT_OF_MEMORY, 0);
    assert_ok(dseg_refill(seg, 0, 8, 2));
    mend_calls();
    assert_u64(seg->n_mapped, 8);
    end_growth();
}

Test(refill, goes_as_far_as_memory_does) {
    store.limit_bytes = 3 * r.granule;
    assert_status(dseg_refill(seg, 0, 4, 1), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(seg->n_mapped, 0);
    assert_u64(store.totals.cached_bytes, 3 * r.granule);
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
    segment_rig_abandon();
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
    assert_u64(rig_state(&r).mappings, 1);
    end_growth();
}
