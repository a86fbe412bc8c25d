/* SPDX-License-Identifier: Apache-2.0 */
/* One segment of sixteen granules on a virtual GPU, with a handle store and markers: for tests of
 * the layer segments. One set of statics a test program. */
#ifndef TESTS_SUPPORT_SEGMENT_FIXTURE_H
#define TESTS_SUPPORT_SEGMENT_FIXTURE_H

#include "segments/grow.h"
#include "segments/unmap_handles.h"
#include "tests/support/device_fixture.h"

enum { N_GRANULES = 16 };

static device_fixture r;
static dvmm_handle_store store;
static dvmm_marker_pool markers;
static dseg_segment *seg;

/* Work completes when a thread waits for it. */
static inline void segment_fixture_open(void) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    dvmm_phys_props props = {0};
    dvmm_store_init(&store, r.d, r.granule, UINT64_MAX, props);
    dvmm_markers_init(&markers, r.d);
    uint64_t bytes = N_GRANULES * r.granule;
    assert_ok(dseg_create(&store, bytes, bytes, 0, UINT64_MAX, &seg));
}

static inline void segment_fixture_close(void) {
    assert_ok(dseg_destroy(seg));
    dvmm_store_fini(&store);
    assert_ok(dvmm_markers_fini(&markers));
    device_close(&r);
}

/* Of a test that leaves a spot behind whose state is not known. */
static inline void segment_fixture_abandon(void) {
    assert_status(dseg_destroy(seg), DUCTILE_ERR_DRIVER);
    dvmm_store_fini(&store);
    assert_ok(dvmm_markers_fini(&markers));
    device_abandon(&r);
}

static inline dvmm_handle *new_handle(uint32_t n_granules) {
    dvmm_handle *h = NULL;
    assert_ok(dvmm_store_create(&store, n_granules, UINT64_MAX, &h));
    return h;
}

static inline void map_at(uint32_t first, dvmm_handle *h) {
    assert_ok(dseg_map(seg, first, &h, 1));
}

/* A new handle of so many granules there. */
static inline dvmm_handle *back(uint32_t first, uint32_t n_granules) {
    dvmm_handle *h = new_handle(n_granules);
    map_at(first, h);
    return h;
}

static inline dseg_idle proof_of_all(void) {
    dseg_idle idle;
    assert_ok(dseg_sync_device(&markers, &idle));
    return idle;
}

static inline void assert_state(uint32_t first, uint32_t n_granules, dseg_state state) {
    for (uint32_t g = first; g < first + n_granules; g++) {
        assert_u64(seg->slots[g].state, state);
    }
}

/* Every call of that name fails from the nth on with this code, done or not; NULL: every call. */
static inline void break_calls(const char *call, uint64_t nth, int code, int effect) {
    ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                   .call = call,
                                   .nth = nth,
                                   .code = code,
                                   .persistent = 1,
                                   .effect = effect};
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
}

static inline void mend_calls(void) {
    assert_ok(ductile_virtual_inject(r.gpu, NULL));
}

#endif
