/* SPDX-License-Identifier: Apache-2.0 */
/* A sound segment passes; each field changed by hand is found, by the number of its invariant. */
#include "segments/check.h"
#include "tests/support/segment_fixture.h"

static dseg_set set;

/* A handle of two granules, one that has two addresses, and a cached one. */
static void open_checked(void) {
    segment_fixture_open();
    assert_ok(dseg_set_reserve(&set));
    dseg_set_insert(&set, seg);
    (void)back(0, 2);
    map_at(5, back(3, 1));
    dseg_retire(seg, 3, 1);
    dvmm_store_put(&store, new_handle(1));
}

static void close_checked(void) {
    assert_ok(dseg_unmap_all(seg, DSEG_RETIRING, proof_of_all()));
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    dseg_set_fini(&set);
    segment_fixture_close();
}

TestSuite(check, .init = open_checked, .fini = close_checked);

/* The number of what does not hold; "" for nothing. */
static const char *find(void) {
    dti_fault fault = {0};
    dseg_handle_sums sums;
    bool holds = dseg_check(seg, &fault) && dseg_check_handles(&set, &store, &sums, &fault);
    return holds ? "" : fault.invariant;
}

#define assert_finds(id, lvalue, value)                                                            \
    do {                                                                                           \
        __typeof__(lvalue) before = (lvalue);                                                      \
        (lvalue) = (value);                                                                        \
        cr_assert_str_eq(find(), id);                                                              \
        (lvalue) = before;                                                                         \
        cr_assert_str_eq(find(), "");                                                              \
    } while (0)

Test(check, passes_what_is_sound) {
    cr_assert_str_eq(find(), "");
}

Test(check, finds_a_granule_without_its_handle) {
    assert_finds("S1", seg->slots[1].handle, NULL);
    assert_finds("S1", seg->slots[2].handle, seg->slots[0].handle);
}

Test(check, finds_a_wrong_count) {
    assert_finds("S3", seg->n_mapped, 2);
    assert_finds("S3", seg->n_retiring, 0);
    assert_finds("S3", seg->n_quarantined, 1);
}

Test(check, finds_a_handle_cut_in_two) {
    assert_finds("S5", seg->slots[1].offset, 0);
    assert_finds("S5", seg->slots[0].offset, 1);
    assert_finds("S5", seg->slots[0].handle->n_granules, 3);
}

/* Both sides of what is compared are told, with the address. */
Test(check, tells_the_place_that_a_granule_claims_in_its_handle) {
    dti_fault fault = {0};
    seg->slots[0].offset = 1;
    cr_assert(!dseg_check(seg, &fault));
    seg->slots[0].offset = 0;
    cr_assert_str_eq(fault.invariant, "S5");
    assert_u64(fault.is, 1);
    assert_u64(fault.should, 0);
    assert_u64(fault.where, dseg_addr(seg, 0));
}

Test(check, finds_addresses_that_nobody_has) {
    assert_finds("P6", seg->slots[5].handle->n_mappings, 3);
    assert_finds("P6", seg->slots[5].handle->n_mappings, 1);
}

Test(check, finds_a_wrong_cache) {
    assert_finds("P7", store.totals.cached_bytes, 0);
    assert_finds("P8", store.totals.n_handles, 2);
    assert_finds("P9", store.cached[0]->n_pins, 1);
}

Test(check, adds_up_what_is_pinned) {
    dvmm_handle *h = seg->slots[0].handle;
    dvmm_handle_pin(&store, h);
    dti_fault fault = {0};
    dseg_handle_sums sums;
    cr_assert(dseg_check_handles(&set, &store, &sums, &fault));
    assert_u64(sums.pinned_bytes, 2 * r.granule);
    assert_u64(sums.exported_bytes, 0);
    dvmm_handle_unpin(&store, h);
}
