/* SPDX-License-Identifier: Apache-2.0 */
/* What proves nothing, and what the driver refuses to unmap. That memory leaves its addresses only
 * behind the work on it is in tests/scenarios/proof.txt,
 * and what is planted in tests/variants.txt. */
#include "tests/support/segment_fixture.h"

#include <signal.h>

TestSuite(idle, .init = segment_fixture_open);
TestSuite(unmap_handles, .init = segment_fixture_open);

/* ---- What a proof proves ------------------------------------------------------------------- */

Test(idle, a_marker_of_one_stream_proves_nothing_of_the_context) {
    ductile_stream stream = device_stream(&r);
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
    segment_fixture_close();
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
    segment_fixture_close();
}

#if DUCTILE_CHECK >= 1
Test(idle, is_what_an_unmap_asks_for, .signal = SIGABRT) {
    (void)back(0, 1);
    dseg_idle none = {0};
    (void)dseg_unmap_handles(seg, 0, 1, none);
}
#endif

/* ---- Unmap and release --------------------------------------------------------------------- */

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
    segment_fixture_abandon();
}

/* ---- Sleep --------------------------------------------------------------------------------- */

/* The driver says no, whether it has done it or not: a look at the place tells. */
Test(unmap_handles, of_a_sleep_that_failed_are_looked_at) {
    (void)back(0, 1);
    dseg_idle idle = proof_of_all();
    uint32_t at = 0;
    break_calls("unmap", 1, DVMM_UNKNOWN, 0);
    assert_u64(dseg_unmap_for_sleep(seg, &at, N_GRANULES, N_GRANULES, idle), 0);
    mend_calls();
    assert_state(0, 1, DSEG_MAPPED);
    assert_ok(dseg_confirm(seg, 0));
    assert_state(0, 1, DSEG_MAPPED);
    break_calls("unmap", 1, DVMM_UNKNOWN, 1);
    at = 0;
    assert_u64(dseg_unmap_for_sleep(seg, &at, N_GRANULES, N_GRANULES, idle), 1);
    mend_calls();
    assert_state(0, 1, DSEG_EMPTY);
    segment_fixture_close();
}
