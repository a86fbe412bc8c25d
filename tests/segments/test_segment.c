/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map that failed: what is known to be empty is used again, what is known to be mapped is undone,
 * and what nobody can tell is never touched again.
 */
#include "segments/grow.h"
#include "segments/unmap_handles.h"
#include "tests/support/rig.h"

#define N_GRANULES 8

static rig r;
static dvmm_handle_store store;
static dseg_segment *seg;

static void open_segment(void) {
    rig_open(&r, NULL);
    dvmm_phys_props props = {0};
    dvmm_store_init(&store, r.d, r.granule, UINT64_MAX, props);
    uint64_t bytes = N_GRANULES * r.granule;
    assert_ok(dseg_create(&store, bytes, bytes, UINT64_MAX, &seg));
}

static void close_segment(void) {
    assert_ok(dseg_destroy(seg));
    dvmm_store_fini(&store);
    rig_close(&r);
}

/* Of a test that leaves a spot behind whose state nobody knows. */
static void abandon_segment(void) {
    assert_status(dseg_destroy(seg), DUCTILE_ERR_DRIVER);
    dvmm_store_fini(&store);
    rig_abandon(&r);
}

TestSuite(failed_map, .init = open_segment);

static dvmm_handle *new_handle(uint32_t n_granules) {
    dvmm_handle *h = NULL;
    assert_ok(dvmm_store_create(&store, n_granules, &h));
    return h;
}

/* Every call fails from the nth on with this code, done or not. */
static void break_calls(const char *call, uint64_t nth, int code, int effect) {
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = call,
                                   .nth = nth,
                                   .code = code,
                                   .persistent = 1,
                                   .effect = effect};
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
}

static void mend_calls(void) {
    assert_ok(ductile_virtual_inject(r.gpu, NULL));
}

static bool map_fails(uint32_t first, dvmm_handle *h) {
    bool quarantined = false;
    ductile_status status = dseg_map(seg, first, &h, 1, &quarantined);
    cr_assert(status != DUCTILE_OK, "the map was to fail");
    return quarantined;
}

static void map_and_unmap(uint32_t first, dvmm_handle *h) {
    bool quarantined = false;
    assert_ok(dseg_map(seg, first, &h, 1, &quarantined));
    dseg_idle idle;
    assert_ok(dseg_sync(&store, NULL, &idle));
    assert_ok(dseg_unmap_handles(seg, first, h->n_granules, idle));
}

static void assert_quarantined(uint32_t first, const dvmm_handle *h) {
    for (uint32_t g = first; g < first + h->n_granules; g++) {
        assert_u64(seg->slots[g].state, DSEG_QUARANTINED);
    }
    assert_u64(seg->n_quarantined, h->n_granules);
    assert_u64(h->n_mappings, 1);
}

Test(failed_map, that_was_not_done_leaves_the_spot_empty) {
    dvmm_handle *h = new_handle(2);
    break_calls("map", 1, DVMM_OUT_OF_MEMORY, 0);
    cr_assert(!map_fails(3, h));
    mend_calls();
    map_and_unmap(3, h);
    close_segment();
}

Test(failed_map, that_was_done_is_undone) {
    dvmm_handle *h = new_handle(2);
    break_calls("map", 1, DVMM_UNKNOWN, 1);
    cr_assert(!map_fails(3, h));
    mend_calls();
    map_and_unmap(3, h);
    close_segment();
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
    abandon_segment();
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
    abandon_segment();
}

Test(failed_map, beside_memory_at_its_first_granule_is_quarantined) {
    stands_in_the_way(2);
}

Test(failed_map, beside_memory_at_its_last_granule_is_quarantined) {
    stands_in_the_way(4);
}
