/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map that failed: what is known to be empty is used again, what is known to be mapped is undone,
 * and what nobody can tell is never touched again.
 */
#include "tests/support/segment_rig.h"

TestSuite(failed_map, .init = segment_rig_open);

static bool map_fails(uint32_t first, dvmm_handle *h) {
    bool quarantined = false;
    ductile_status status = dseg_map(seg, first, &h, 1, &quarantined);
    cr_assert(status != DUCTILE_OK, "the map was to fail");
    return quarantined;
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

/* Somebody else's memory at one end: neither nothing nor ours, and not ours to unmap. */
static void stands_in_the_way(uint32_t granule) {
    rig_back(&r, dseg_addr(seg, granule), 1);
    uint64_t mappings = rig_state(&r).mappings;
    dvmm_handle *h = new_handle(3);
    cr_assert(map_fails(2, h), "the ends differ and nobody noticed");
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
