/* SPDX-License-Identifier: Apache-2.0 */
/* Where a request goes that no free block serves: what each place lacks, and which is chosen. */
#include "pool/growth/plan.h"

#include "tests/support/internals.h"

#define G FIXTURE_GRANULE

static ductile_addr first;

/* L1 G2 F1 G1 L1 G: what was free was trimmed, then one more block was freed between the gaps. */
static void open_gaps(void) {
    static const uint64_t sizes[] = {1, 2, 1, 1, 1};
    ductile_addr blocks[5];
    open_fixture(NULL);
    for (int i = 0; i < 5; i++) {
        blocks[i] = take_granules(sizes[i], 0);
    }
    first = blocks[0];
    give(blocks[1]);
    give(blocks[3]);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(blocks[2]);
    assert_layout(first, "L1 G2 F1 G1 L1 G");
}

TestSuite(placement, .init = open_gaps);

static dpool_place choose(uint64_t size) {
    index_lock();
    dpool_place place =
        dpool_place_choose_locked(f.allocator, block_at(first)->region->arena, size);
    index_unlock();
    return place;
}

static dpool_place choose_gap(uint64_t size) {
    index_lock();
    dpool_place place =
        dpool_place_in_gap_locked(f.allocator, block_at(first)->region->arena, size);
    index_unlock();
    return place;
}

/* `granule` counts from the first block. */
static void assert_place(dpool_place place, uint64_t granule, uint64_t lacks) {
    cr_assert_not_null(place.block);
    assert_u64(place.start, first + granule * G);
    assert_u64(place.n_granules, lacks);
    cr_assert_eq(place.block, block_at(place.start));
}

/* Free memory at either side of a gap is used, in gaps alone the lowest that holds all of it, and
 * no window crosses a live block. Of two that lack the same the lower serves. */
Test(placement, is_where_least_is_lacking) {
    static const struct {
        uint64_t size;
        bool in_gap;
        uint64_t granule, lacks;
    } cases[] = {{2 * G, false, 2, 1},     {3 * G, false, 1, 2}, {4 * G, false, 1, 3},
                 {5 * G, false, 6, 5},     {G, true, 1, 1},      {2 * G, true, 1, 2},
                 {2 * G + 512, true, 6, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_place(cases[i].in_gap ? choose_gap(cases[i].size) : choose(cases[i].size),
                     cases[i].granule, cases[i].lacks);
    }
    close_audited();
}

Test(placement, a_part_of_a_granule_lacks_a_whole_one) {
    dpool_place place = choose(G + 512);
    assert_u64(place.n_granules, 1);
    assert_u64(place.start, first + 3 * G - 512); /* the end of the lower gap, and the free block */
    close_audited();
}

Test(placement, what_no_run_is_long_enough_for_has_no_place) {
    cr_assert_null(choose(UINT64_C(1) << 46).block);
    cr_assert_null(choose_gap(UINT64_C(1) << 46).block);
    close_audited();
}

/* L1, 512 bytes, F almost 1, G: beside the gap lies the rest of a granule. */
static ductile_addr open_odd_tail(void) {
    open_fixture(NULL);
    ductile_addr one = take_granules(1, 0);
    first = take(512, 0);
    assert_u64(first, one + G);
    return one;
}

/* first lies one granule above the start of the range. */
Test(placement_of_whole_granules, is_close_while_nothing_comes_and_goes) {
    (void)open_odd_tail();
    dpool_place place = choose(2 * G);
    assert_u64(place.n_granules, 2);
    assert_u64(place.start, first + 512);
    close_audited();
}

Test(placement_of_whole_granules, begins_with_a_granule_once_half_as_much_is_free) {
    give(open_odd_tail());
    dpool_place place = choose(2 * G);
    assert_u64(place.n_granules, 2);
    assert_u64(place.start, first + G);
    place = choose(3 * G); /* one free granule is less than a half */
    assert_u64(place.start, first + 512);
    close_audited();
}

/* L 1/2, F 1/2, G1, F 1/2, L 1/2; L1, F1, G1, L1: only the upper window can begin with a granule.
 */
static void equal_windows_of_whole_granules(bool lower_gap_is_made_first) {
    enum { LOWER = 2, UPPER = 7, N = 9 };
    static const uint64_t halves[N] = {1, 1, 2, 1, 1, 2, 2, 2, 2};
    ductile_addr blocks[N];
    open_fixture(NULL);
    for (int i = 0; i < N; i++) {
        blocks[i] = take(halves[i] * G / 2, 0);
    }
    first = blocks[0];
    give(blocks[lower_gap_is_made_first ? LOWER : UPPER]);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(blocks[lower_gap_is_made_first ? UPPER : LOWER]);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(blocks[LOWER - 1]);
    give(blocks[LOWER + 1]);
    give(blocks[UPPER - 1]);
    assert_place(choose(2 * G), 4, 1);
    close_audited();
}

Test(placement_of_whole_granules, begins_with_a_granule_whichever_gap_is_older) {
    equal_windows_of_whole_granules(true);
    equal_windows_of_whole_granules(false);
}

/* A window that lacks a granule less is better than any that begins with one. */
Test(placement_of_whole_granules, lacks_no_more_than_others) {
    give(open_odd_tail());
    ductile_addr behind = take(2 * G - 512, 0);
    assert_u64(behind, first + 512);
    give(behind);
    dpool_place place = choose(2 * G);
    assert_u64(place.n_granules, 1);
    assert_u64(place.start, behind);
    close_audited();
}

/* Of two windows that lack the same the lower one, in whichever order their gaps are met. */
static void equal_windows(bool lower_gap_is_made_first) {
    ductile_addr blocks[9];
    open_fixture(NULL);
    for (int i = 0; i < 9; i++) {
        blocks[i] = take_granules(1, 0);
    }
    first = blocks[0];
    give(blocks[lower_gap_is_made_first ? 2 : 6]);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(blocks[lower_gap_is_made_first ? 6 : 2]);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    for (int i = 1; i < 9; i += 2) {
        give(blocks[i]);
    }
    assert_layout(first, "L1 F1 G1 F1 L1 F1 G1 F1 L1 G");
    assert_place(choose(3 * G), 1, 1);
    close_audited();
}

TestSuite(equal_places);

Test(equal_places, the_lower_serves_whichever_gap_is_older) {
    equal_windows(true);
    equal_windows(false);
}
