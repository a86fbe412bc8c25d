/* SPDX-License-Identifier: Apache-2.0 */
/* Address ranges, in a process that may reserve 64 GiB: how large one becomes, and what a refusal
 * leaves. A granule is 2 MiB. */
#include "vmm/range.h"

#include "tests/support/device_fixture.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define BUDGET (64 * GIB)

static device_fixture r;

static void open_device(void) {
    device_open(&r, NULL);
}

static void close_ranges(void) {
    device_recover(&r);
    assert_u64(dvmm_range_process_total(), 0);
    device_close(&r);
}

TestSuite(range, .init = open_device);

static dvmm_range reserve(uint64_t need, uint64_t wish, uint64_t expected) {
    dvmm_range range = {0};
    assert_ok(dvmm_range_reserve(r.d, need, wish, 0, BUDGET, r.granule, &range));
    assert_u64(range.size, expected);
    cr_assert_neq(range.addr, 0);
    return range;
}

static void assert_refused(uint64_t need, uint64_t wish, ductile_status status) {
    dvmm_range range = {1, 1, 0};
    assert_status(dvmm_range_reserve(r.d, need, wish, 0, BUDGET, r.granule, &range), status);
    cr_assert(range.addr == 0 && range.size == 0);
}

static void free_range(dvmm_range range) {
    assert_ok(dvmm_range_free(r.d, &range));
}

/* ---- The budget ---------------------------------------------------------------------------- */

Test(range, is_as_large_as_wished_while_the_budget_allows) {
    dvmm_range range = reserve(2 * MIB, GIB, GIB);
    assert_u64(dvmm_range_process_total(), GIB);
    free_range(range);
    close_ranges();
}

Test(range, takes_at_most_a_64th_of_what_the_budget_has_left) {
    dvmm_range first = reserve(2 * MIB, 64 * GIB, GIB);
    free_range(reserve(2 * MIB, 64 * GIB, 1008 * MIB));
    free_range(first);
    close_ranges();
}

Test(range, is_never_smaller_than_needed) {
    free_range(reserve(32 * GIB, 64 * GIB, 32 * GIB));
    close_ranges();
}

Test(range, that_the_budget_refuses_makes_no_call) {
    uint64_t before = device_state(&r).calls;
    assert_refused(64 * GIB + 2 * MIB, 64 * GIB + 2 * MIB, DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(device_state(&r).calls, before);
    close_ranges();
}

/* ---- The driver ---------------------------------------------------------------------------- */

Test(range, halves_until_the_driver_has_room) {
    device_fail(&r, "address_reserve", 1, DVMM_OUT_OF_MEMORY);
    free_range(reserve(2 * MIB, GIB, 512 * MIB));
    close_ranges();
}

/* Of 16, 8, 4 and 3 granules. */
Test(range, is_tried_down_to_what_is_needed) {
    device_fail_from(&r, "address_reserve", 1, DVMM_OUT_OF_MEMORY);
    assert_refused(6 * MIB, 32 * MIB, DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 4);
    close_ranges();
}

Test(range, is_not_tried_again_after_another_error) {
    device_fail_from(&r, "address_reserve", 1, DVMM_UNKNOWN);
    assert_refused(2 * MIB, GIB, DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 1);
    close_ranges();
}

Test(range, that_the_driver_does_not_free_stays_reserved_and_counted) {
    dvmm_range range = reserve(2 * MIB, 2 * MIB, 2 * MIB);
    device_fail(&r, "address_free", 1, DVMM_UNKNOWN);
    assert_status(dvmm_range_free(r.d, &range), DUCTILE_ERR_DRIVER);
    assert_u64(dvmm_range_process_total(), 2 * MIB);
    free_range(range);
    close_ranges();
}
