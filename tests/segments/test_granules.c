/* SPDX-License-Identifier: Apache-2.0 */
/* Whole-handle arithmetic, on a segment of one granule, three, two pinned, one, two and nothing:
 *
 *     granule   0   1  2  3   4  5   6   7  8   9 ...
 *             [ a ][   b   ][pinned][ d ][ e  ] EMPTY
 */
#include "segments/granules.h"
#include "tests/support/segment_fixture.h"

static dvmm_handle *pinned;

static void open_filled(void) {
    segment_fixture_open();
    (void)back(0, 1);
    (void)back(1, 3);
    pinned = back(4, 2);
    (void)back(6, 1);
    (void)back(7, 2);
    dvmm_handle_pin(&store, pinned);
}

static void close_filled(void) {
    dvmm_handle_unpin(&store, pinned);
    assert_ok(dseg_unmap_all(seg, DSEG_RETIRING, proof_of_all()));
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    segment_fixture_close();
}

TestSuite(granules, .init = open_filled, .fini = close_filled);

static void expect_span(dseg_span got, uint32_t first, uint32_t end) {
    cr_assert(got.first == first && got.end == end, "[%u, %u), not [%u, %u)", got.first, got.end,
              first, end);
}

static ductile_addr at(uint32_t granule, int64_t bytes) {
    return dseg_addr(seg, granule) + (uint64_t)bytes;
}

Test(granules, in_a_span_of_addresses_are_those_wholly_inside) {
    expect_span(dseg_granules_in(seg, at(1, 0), at(3, 0)), 1, 3);
    expect_span(dseg_granules_in(seg, at(1, 512), at(4, -512)), 2, 3);
    cr_assert(dseg_is_empty(dseg_granules_in(seg, at(1, 512), at(2, 512))));
    cr_assert(dseg_is_empty(dseg_granules_in(seg, at(1, 512), at(1, 1024))));
}

Test(granules, over_a_span_of_addresses_are_those_it_touches) {
    expect_span(dseg_granules_over(seg, at(1, 0), at(3, 0)), 1, 3);
    expect_span(dseg_granules_over(seg, at(1, 512), at(3, 512)), 1, 4);
    expect_span(dseg_granules_over(seg, at(1, 512), at(1, 1024)), 1, 2);
}

Test(granules, widen_to_the_handles_behind_them) {
    expect_span(dseg_widen_to_handles(seg, (dseg_span){2, 3}), 1, 4);
    expect_span(dseg_widen_to_handles(seg, (dseg_span){0, 5}), 0, 6);
    expect_span(dseg_widen_to_handles(seg, (dseg_span){0, 1}), 0, 1);
}

Test(granules, that_may_move_are_whole_handles_between_pins) {
    expect_span(dseg_movable_in(seg, (dseg_span){0, 4}), 0, 4);
    expect_span(dseg_movable_in(seg, (dseg_span){2, 9}), 6, 9);
    expect_span(dseg_movable_in(seg, (dseg_span){0, 3}), 0, 1);
    expect_span(dseg_movable_in(seg, (dseg_span){0, 6}), 0, 4);
    expect_span(dseg_movable_in(seg, (dseg_span){0, 8}), 0, 7);
    cr_assert(dseg_is_empty(dseg_movable_in(seg, (dseg_span){2, 3})), "inside of one handle");
    cr_assert(dseg_is_empty(dseg_movable_in(seg, (dseg_span){4, 6})), "all of it is pinned");
    cr_assert(dseg_is_empty(dseg_movable_in(seg, (dseg_span){3, 3})), "nothing");
}

Test(granules, know_what_binds_them) {
    dseg_ties ties = dseg_ties_of(seg, (dseg_span){0, 9});
    cr_assert(ties.pinned && !ties.exported);
    cr_assert(!dseg_ties_of(seg, (dseg_span){6, 9}).pinned);
    cr_assert(dseg_is_pinned(seg, 5) && !dseg_is_pinned(seg, 6));
    cr_assert(!dseg_can_go(seg, 4) && dseg_can_go(seg, 6));
}

Test(granules, with_a_second_address_cannot_go) {
    map_at(10, seg->slots[7].handle);
    cr_assert(!dseg_can_go(seg, 7) && !dseg_can_go(seg, 10));
    dseg_retire(seg, 7, 2);
    cr_assert(!dseg_can_go(seg, 10), "before its old address has gone");
}

Test(granules, at_an_end_go_as_one_run) {
    expect_span(dseg_run_at_end(seg, (dseg_span){0, 9}, 1, true), 7, 9);
    expect_span(dseg_run_at_end(seg, (dseg_span){0, 9}, 9, true), 6, 9);
    expect_span(dseg_run_at_end(seg, (dseg_span){0, 9}, 2, false), 0, 4);
    cr_assert(dseg_is_empty(dseg_run_at_end(seg, (dseg_span){0, 6}, 9, true)));
}

Test(granules, that_can_go_may_lie_below_some_that_cannot) {
    expect_span(dseg_topmost_run(seg, (dseg_span){0, 9}, 1, 1), 7, 9);
    expect_span(dseg_topmost_run(seg, (dseg_span){0, 9}, 9, 1), 6, 9);
    expect_span(dseg_topmost_run(seg, (dseg_span){0, 6}, 9, 1), 0, 4);
    expect_span(dseg_topmost_run(seg, (dseg_span){1, 8}, 9, 1), 6, 7);
    cr_assert(dseg_is_empty(dseg_topmost_run(seg, (dseg_span){2, 6}, 9, 1)));
}

Test(granules, have_states_in_runs) {
    cr_assert(dseg_has_state(seg, (dseg_span){0, 10}, DSEG_EMPTY));
    cr_assert(!dseg_has_state(seg, (dseg_span){0, 9}, DSEG_EMPTY));
    assert_u64(dseg_state_until(seg, (dseg_span){2, 12}), 9);
    assert_u64(dseg_state_until(seg, (dseg_span){2, 5}), 5);
    assert_u64(dseg_next_mapped(seg, 0), 0);
    assert_u64(dseg_next_mapped(seg, 2), 4);
    assert_u64(dseg_next_mapped(seg, 8), N_GRANULES);
}

/* A division takes as long as a lock, and each free makes some. */
Test(granules, of_a_power_of_two_are_found_without_a_division) {
    dvmm_handle_store of_three = {.driver = r.d, .granule_bytes = 3 * r.granule};
    dseg_segment *other = NULL;
    assert_u64(UINT64_C(1) << seg->granule_log2, r.granule);
    assert_ok(dseg_create(&of_three, 12 * r.granule, 12 * r.granule, 0, UINT64_MAX, &other));
    assert_u64(other->granule_log2, 0);
    assert_u64(dseg_granule(other, dseg_addr(other, 3)), 3);
    assert_ok(dseg_destroy(other));
}
