/* SPDX-License-Identifier: Apache-2.0 */
/* Address ranges: how large they become, what they count, and what a refusal leaves. */
#include "tests/support/rig.h"

#include "vmm/base/align.h"
#include "vmm/range.h"

static rig r;

static const uint64_t GRANULE = 2 * DTI_MIB;
static const uint64_t BUDGET = 64 * DTI_GIB;

static void open_rig(void) {
    rig_open(&r, NULL);
}

static void close_rig(void) {
    assert_u64(dvmm_range_process_total(), 0);
    rig_close(&r);
}

TestSuite(range, .init = open_rig, .fini = close_rig);

static ductile_status reserve(uint64_t need, uint64_t wish, uint64_t budget, dvmm_range *out) {
    return dvmm_range_reserve(r.d, need, wish, 0, budget, GRANULE, out);
}

Test(range, is_as_large_as_wished_while_the_budget_allows) {
    dvmm_range range;
    assert_ok(reserve(GRANULE, DTI_GIB, BUDGET, &range));
    assert_u64(range.size, DTI_GIB);
    assert_u64(dvmm_range_process_total(), DTI_GIB);
    assert_ok(dvmm_range_free(r.d, &range));
    assert_u64(range.addr + range.size, 0);
}

Test(range, takes_at_most_a_64th_of_what_the_budget_has_left) {
    dvmm_range range[2];
    assert_ok(reserve(GRANULE, BUDGET, BUDGET, &range[0]));
    assert_u64(range[0].size, BUDGET / 64);
    assert_ok(reserve(GRANULE, BUDGET, BUDGET, &range[1]));
    assert_u64(range[1].size, dti_round_down((BUDGET - BUDGET / 64) / 64, GRANULE));
    assert_ok(dvmm_range_free(r.d, &range[0]));
    assert_ok(dvmm_range_free(r.d, &range[1]));
}

Test(range, is_never_smaller_than_needed) {
    dvmm_range range;
    assert_ok(reserve(BUDGET / 2, BUDGET, BUDGET, &range));
    assert_u64(range.size, BUDGET / 2);
    assert_ok(dvmm_range_free(r.d, &range));
}

Test(range, budget_refuses_without_a_call) {
    dvmm_range range = {1, 1, 0};
    uint64_t calls = rig_state(&r).calls;
    assert_status(reserve(BUDGET + GRANULE, BUDGET + GRANULE, BUDGET, &range),
                  DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(range.addr + range.size, 0);
    assert_u64(rig_state(&r).calls, calls);
}

Test(range, halves_until_the_driver_has_room) {
    dvmm_range range;
    rig_fail(&r, "address_reserve", 1, DVMM_OUT_OF_MEMORY);
    assert_ok(reserve(GRANULE, DTI_GIB, BUDGET, &range));
    assert_u64(range.size, DTI_GIB / 2);
    assert_ok(dvmm_range_free(r.d, &range));
}

Test(range, tries_down_to_what_is_needed_and_then_says_out_of_addresses) {
    dvmm_range range;
    rig_fail_on(&r, "address_reserve", 1, DVMM_OUT_OF_MEMORY);
    assert_status(reserve(3 * GRANULE, 16 * GRANULE, BUDGET, &range), DUCTILE_ERR_OUT_OF_ADDRESSES);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 4); /* of 16, 8, 4 and 3 granules */
    assert_u64(range.addr + range.size, 0);
    rig_mend(&r);
}

Test(range, other_errors_end_the_tries_at_once) {
    dvmm_range range;
    rig_fail_on(&r, "address_reserve", 1, DVMM_UNKNOWN);
    assert_status(reserve(GRANULE, DTI_GIB, BUDGET, &range), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 1);
    assert_u64(range.addr + range.size, 0);
    rig_mend(&r);
}

Test(range, free_that_the_driver_refuses_leaves_it_reserved_and_counted) {
    dvmm_range range;
    assert_ok(reserve(GRANULE, GRANULE, BUDGET, &range));
    rig_fail(&r, "address_free", 1, DVMM_UNKNOWN);
    assert_status(dvmm_range_free(r.d, &range), DUCTILE_ERR_DRIVER);
    assert_u64(range.size, GRANULE);
    assert_u64(dvmm_range_process_total(), GRANULE);
    assert_ok(dvmm_range_free(r.d, &range));
}
