/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory leaves its addresses only after the host knows the GPU done: what each proof proves, seen
 * by the virtual GPU's detector, which records an unmap that no wait of the host has ordered behind
 * the work.
 */
#include "tests/support/segment_rig.h"

#include <signal.h>

TestSuite(idle, .init = segment_rig_open);
TestSuite(unmap_handles, .init = segment_rig_open);

static void unmap_ok(uint32_t first, uint32_t n_granules, dseg_idle idle) {
    cr_assert(dseg_is_proven(idle));
    assert_ok(dseg_unmap_handles(seg, first, n_granules, idle));
    assert_state(first, n_granules, DSEG_EMPTY);
}

/* The work is still to come, and will find no memory. */
static void end_with_a_violation(void) {
    assert_u64(rig_state(&r).violations, 1);
    assert_ok(dseg_destroy(seg));
    dvmm_store_fini(&store);
    (void)dvmm_markers_fini(&markers);
    rig_abandon(&r);
}

/* ---- What a proof proves ------------------------------------------------------------------- */

Test(idle, a_stream_waited_for_is_done) {
    ductile_stream stream = rig_stream(&r);
    (void)back(0, 2);
    work_on(stream, 0, 2);
    dseg_stream_idle idle;
    assert_ok(dseg_sync(&store, stream, &idle));
    unmap_ok(0, 2, dseg_idle_if_joined(idle));
    assert_u64(rig_state(&r).violations, 0);
    assert_ok(dvmm_stream_destroy(r.d, stream));
    segment_rig_close();
}

Test(idle, a_stream_waited_for_proves_nothing_of_another_one) {
    ductile_stream busy = rig_stream(&r);
    ductile_stream other = rig_stream(&r);
    (void)back(0, 1);
    work_on(busy, 0, 1);
    dseg_stream_idle idle;
    assert_ok(dseg_sync(&store, other, &idle));
    assert_ok(dseg_unmap_handles(seg, 0, 1, dseg_idle_if_joined(idle)));
    end_with_a_violation();
}

/* As if the stream alone used the memory. */
static dseg_idle proof_by(const dvmm_marker *m) {
    return dseg_idle_if_joined(dseg_stream_idle_by_marker(m));
}

Test(idle, a_marker_of_one_stream_proves_nothing_of_the_context) {
    ductile_stream stream = rig_stream(&r);
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record(&markers, stream, &m));
    assert_ok(dvmm_marker_wait(&markers, m));
    cr_assert(!dseg_is_proven(dseg_idle_by_marker(m)));
    dvmm_marker_drop(&markers, m);
    assert_ok(dvmm_marker_record_context(&markers, &m));
    cr_assert(!dseg_is_proven(dseg_idle_by_marker(m)), "the driver was not asked");
    assert_ok(dvmm_marker_wait(&markers, m));
    cr_assert(dseg_is_proven(dseg_idle_by_marker(m)));
    dvmm_marker_drop(&markers, m);
    assert_ok(dvmm_stream_destroy(r.d, stream));
    segment_rig_close();
}

Test(idle, a_marker_is_a_proof_once_it_is_known_done) {
    ductile_stream stream = rig_stream(&r);
    (void)back(0, 1);
    work_on(stream, 0, 1);
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record(&markers, stream, &m));
    cr_assert(!dseg_is_proven(proof_by(m)), "the driver was not asked");
    assert_ok(dvmm_marker_wait(&markers, m));
    unmap_ok(0, 1, proof_by(m));
    assert_u64(rig_state(&r).violations, 0);
    dvmm_marker_drop(&markers, m);
    assert_ok(dvmm_stream_destroy(r.d, stream));
    segment_rig_close();
}

Test(idle, a_marker_proves_nothing_of_what_follows_it) {
    ductile_stream stream = rig_stream(&r);
    (void)back(0, 1);
    dvmm_marker *m = NULL;
    assert_ok(dvmm_marker_record(&markers, stream, &m));
    work_on(stream, 0, 1);
    assert_ok(dvmm_marker_wait(&markers, m));
    assert_ok(dseg_unmap_handles(seg, 0, 1, proof_by(m)));
    dvmm_marker_drop(&markers, m);
    end_with_a_violation();
}

Test(idle, the_device_waited_for_is_done_on_all_streams) {
    ductile_stream streams[2] = {rig_stream(&r), rig_stream(&r)};
    (void)back(0, 2);
    work_on(streams[0], 0, 1);
    work_on(streams[1], 1, 1);
    unmap_ok(0, 2, proof_of_all());
    assert_u64(rig_state(&r).violations, 0);
    assert_ok(dvmm_stream_destroy(r.d, streams[0]));
    assert_ok(dvmm_stream_destroy(r.d, streams[1]));
    segment_rig_close();
}

Test(idle, a_wait_that_failed_proves_nothing) {
    dseg_idle idle = proof_of_all();
    dseg_stream_idle of_stream = {1};
    break_calls(NULL, 1, DVMM_UNKNOWN, 0);
    assert_status(dseg_sync(&store, NULL, &of_stream), DUCTILE_ERR_DRIVER);
    cr_assert(!dseg_is_proven(dseg_idle_if_joined(of_stream)));
    assert_status(dseg_sync_device(&markers, &idle), DUCTILE_ERR_DRIVER);
    cr_assert(!dseg_is_proven(idle));
    mend_calls();
    segment_rig_close();
}

#if DUCTILE_CHECK >= 1
Test(idle, is_what_an_unmap_asks_for, .signal = SIGABRT) {
    (void)back(0, 1);
    dseg_idle none = {0};
    (void)dseg_unmap_handles(seg, 0, 1, none);
}
#endif

/* ---- Unmap and release --------------------------------------------------------------------- */

Test(unmap_handles, leave_for_the_cache_and_then_the_driver) {
    (void)back(0, 2);
    (void)back(2, 1);
    unmap_ok(0, 3, proof_of_all());
    assert_u64(rig_state(&r).mappings, 0);
    assert_u64(rig_state(&r).handles, 2);
    assert_u64(store.totals.cached_bytes, 3 * r.granule);
    assert_ok(dvmm_store_shrink_cache(&store, 0));
    assert_u64(rig_state(&r).handles, 0);
    assert_u64(store.totals.held_bytes, 0);
    segment_rig_close();
}

Test(unmap_handles, at_an_old_address_serve_on_at_the_new_one) {
    dvmm_handle *h = back(0, 2);
    map_at(4, h);
    dseg_retire(seg, 0, 2);
    assert_state(0, 2, DSEG_RETIRING);
    assert_u64(seg->n_retiring, 2);
    unmap_ok(0, 2, proof_of_all());
    assert_u64(h->n_mappings, 1);
    assert_u64(store.totals.cached_bytes, 0);
    assert_state(4, 2, DSEG_MAPPED);
    unmap_ok(4, 2, proof_of_all());
    assert_u64(store.totals.cached_bytes, 2 * r.granule);
    segment_rig_close();
}

Test(unmap_handles, that_the_driver_refuses_are_lost_with_their_place) {
    (void)back(0, 1);
    (void)back(1, 1);
    dseg_idle idle = proof_of_all();
    break_calls("unmap", 2, DVMM_UNKNOWN, 0);
    assert_status(dseg_unmap_handles(seg, 0, 2, idle), DUCTILE_ERR_DRIVER);
    mend_calls();
    assert_state(0, 1, DSEG_EMPTY);
    assert_state(1, 1, DSEG_QUARANTINED);
    assert_u64(store.totals.lost_bytes, r.granule);
    assert_u64(store.totals.cached_bytes, r.granule);
    segment_rig_abandon();
}

Test(unmap_handles, all_in_one_state) {
    dvmm_handle *h = back(1, 1);
    map_at(6, h);
    (void)back(3, 2);
    dseg_retire(seg, 1, 1);
    dseg_idle idle = proof_of_all();
    assert_ok(dseg_unmap_all(seg, DSEG_RETIRING, idle));
    assert_u64(seg->n_retiring, 0);
    assert_u64(seg->n_mapped, 3);
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, idle));
    assert_u64(seg->n_mapped, 0);
    assert_u64(store.totals.cached_bytes, 3 * r.granule);
    segment_rig_close();
}

/* ---- Pause --------------------------------------------------------------------------------- */

Test(unmap_handles, of_a_pause_go_but_for_those_that_stay) {
    (void)back(0, 1);
    dvmm_handle *pinned = back(1, 1);
    (void)back(2, 2);
    dvmm_handle_pin(&store, pinned);
    seg->slots[2].stays = 1;
    (void)back(4, 1);
    uint32_t at = 0;
    assert_u64(dseg_unmap_for_pause(seg, &at, N_GRANULES, N_GRANULES, proof_of_all()), 2);
    assert_u64(at, N_GRANULES);
    assert_state(0, 1, DSEG_EMPTY);
    assert_state(1, 3, DSEG_MAPPED);
    assert_state(4, 1, DSEG_EMPTY);
    dvmm_handle_unpin(&store, pinned);
    assert_ok(dseg_unmap_all(seg, DSEG_MAPPED, proof_of_all()));
    segment_rig_close();
}

Test(unmap_handles, of_a_pause_go_some_at_a_time) {
    for (uint32_t g = 0; g < 4; g++) {
        (void)back(g, 1);
    }
    uint32_t at = 0;
    assert_u64(dseg_unmap_for_pause(seg, &at, N_GRANULES, 3, proof_of_all()), 3);
    assert_u64(at, 3);
    assert_u64(dseg_unmap_for_pause(seg, &at, N_GRANULES, 3, proof_of_all()), 1);
    assert_u64(seg->n_mapped, 0);
    segment_rig_close();
}

/* The driver says no, whether it has done it or not: a look at the place tells. */
Test(unmap_handles, of_a_pause_that_failed_are_looked_at) {
    (void)back(0, 1);
    dseg_idle idle = proof_of_all();
    uint32_t at = 0;
    break_calls("unmap", 1, DVMM_UNKNOWN, 0);
    assert_u64(dseg_unmap_for_pause(seg, &at, N_GRANULES, N_GRANULES, idle), 0);
    mend_calls();
    assert_state(0, 1, DSEG_MAPPED);
    assert_ok(dseg_confirm(seg, 0));
    assert_state(0, 1, DSEG_MAPPED);
    break_calls("unmap", 1, DVMM_UNKNOWN, 1);
    at = 0;
    assert_u64(dseg_unmap_for_pause(seg, &at, N_GRANULES, N_GRANULES, idle), 1);
    mend_calls();
    assert_state(0, 1, DSEG_EMPTY);
    segment_rig_close();
}
