/* SPDX-License-Identifier: Apache-2.0 */
/* The handle store: the equation held = mapped + cached + lost, the limit, the order of the cache,
 * and what it counts when the driver refuses. */
#include "tests/support/rig.h"

#include "vmm/handle.h"

static rig r;
static dvmm_handle_store store;

enum { LIMIT = 16 }; /* granules */

static void open_store(void) {
    rig_open(&r, NULL);
    dvmm_store_init(&store, r.d, r.granule, LIMIT * r.granule, (dvmm_phys_props){0});
}

static void close_store(void) {
    dvmm_store_fini(&store);
    rig_close(&r);
}

TestSuite(handle, .init = open_store, .fini = close_store);

static dvmm_handle *create(uint32_t n_granules) {
    dvmm_handle *h = NULL;
    assert_ok(dvmm_store_create(&store, n_granules, UINT64_MAX, &h));
    assert_u64(h->n_granules, n_granules);
    return h;
}

static void cache(uint32_t n_granules) {
    dvmm_store_put(&store, create(n_granules));
}

static void expect_granules(uint64_t held, uint64_t cached, uint64_t lost) {
    assert_u64(store.totals.held_bytes / r.granule, held);
    assert_u64(store.totals.cached_bytes / r.granule, cached);
    assert_u64(store.totals.lost_bytes / r.granule, lost);
}

/* ---- Creating ------------------------------------------------------------------------------ */

Test(handle, created_memory_is_held_until_it_is_released) {
    dvmm_handle *h = create(3);
    expect_granules(3, 0, 0);
    assert_u64(rig_state(&r).used_bytes, 3 * r.granule);
    dvmm_store_put(&store, h);
    expect_granules(3, 3, 0);
    assert_ok(dvmm_store_release_cached(&store, 0));
    expect_granules(0, 0, 0);
    assert_u64(store.totals.created_bytes, 3 * r.granule);
    assert_u64(rig_state(&r).used_bytes, 0);
}

Test(handle, limit_refuses_before_the_driver_is_asked) {
    dvmm_handle *h = NULL;
    cache(LIMIT - 1);
    uint64_t calls = rig_state(&r).calls;
    assert_status(dvmm_store_create(&store, 2, UINT64_MAX, &h), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_status(dvmm_store_create(&store, LIMIT + 1, UINT64_MAX, &h), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_null(h);
    assert_u64(rig_state(&r).calls, calls);
    cache(1);
    expect_granules(LIMIT, LIMIT, 0);
}

Test(handle, a_caller_may_allow_less_than_the_limit) {
    dvmm_handle *h = NULL;
    cache(2);
    assert_status(dvmm_store_create(&store, 1, 2 * r.granule, &h), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_null(h);
    assert_ok(dvmm_store_create(&store, 1, 3 * r.granule, &h));
    dvmm_store_put(&store, h);
    expect_granules(3, 3, 0);
}

Test(handle, create_that_the_driver_refuses_changes_nothing) {
    dvmm_handle *h = NULL;
    cache(2);
    rig_fail(&r, "phys_create", 1, DVMM_OUT_OF_MEMORY);
    assert_status(dvmm_store_create(&store, 2, UINT64_MAX, &h), DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_null(h);
    expect_granules(2, 2, 0);
    assert_u64(store.totals.n_handles, 1);
    assert_u64(store.totals.created_bytes, 2 * r.granule);
}

/* ---- The cache ----------------------------------------------------------------------------- */

Test(handle, take_finds_the_largest_list_that_fits) {
    cache(1);
    cache(2);
    cache(4);
    dvmm_handle *h = dvmm_store_take(&store, 3);
    assert_u64(h->n_granules, 2);
    expect_granules(7, 5, 0);
    dvmm_store_put(&store, h);
}

Test(handle, take_passes_over_larger_ones_in_the_list_of_its_size) {
    cache(2);
    cache(3); /* in the same list, and first in it */
    dvmm_handle *h = dvmm_store_take(&store, 2);
    assert_u64(h->n_granules, 2);
    dvmm_store_put(&store, h);
}

Test(handle, take_gives_nothing_when_all_are_larger) {
    cache(4);
    cr_assert_null(dvmm_store_take(&store, 3));
    expect_granules(4, 4, 0);
}

Test(handle, take_exact_gives_that_size_or_nothing) {
    cache(2);
    cache(3);
    cr_assert_null(dvmm_store_take_exact(&store, 1));
    dvmm_handle *h = dvmm_store_take_exact(&store, 2);
    assert_u64(h->n_granules, 2);
    cr_assert_null(dvmm_store_take_exact(&store, 2));
    dvmm_store_put(&store, h);
}

Test(handle, a_cached_handle_is_reused_without_the_driver) {
    cache(2);
    uint64_t calls = rig_state(&r).calls;
    dvmm_store_put(&store, dvmm_store_take(&store, 2));
    assert_u64(rig_state(&r).calls, calls);
}

Test(handle, shrinking_the_cache_releases_the_largest_first) {
    cache(1);
    cache(4);
    cache(2);
    assert_ok(dvmm_store_shrink_cache(&store, 3 * r.granule));
    expect_granules(3, 3, 0);
    cr_assert_null(dvmm_store_take_exact(&store, 4));
}

Test(handle, releasing_stops_at_what_is_to_be_kept) {
    dvmm_handle *used = create(4);
    cache(2);
    cache(2);
    assert_ok(dvmm_store_release_cached(&store, 6 * r.granule));
    expect_granules(6, 2, 0);
    assert_ok(dvmm_store_release_cached(&store, 0));
    expect_granules(4, 0, 0);
    dvmm_store_put(&store, used);
}

/* ---- What the driver would not take back --------------------------------------------------- */

static void abandon(void) {
    dvmm_store_fini(&store);
    rig_abandon(&r);
}

TestSuite(handle_lost, .init = open_store, .fini = abandon);

Test(handle_lost, refused_release_is_lost_and_the_rest_is_released) {
    cache(1);
    cache(2);
    rig_fail(&r, "phys_release", 1, DVMM_UNKNOWN);
    assert_status(dvmm_store_release_cached(&store, 0), DUCTILE_ERR_DRIVER);
    expect_granules(2, 0, 2);
    assert_u64(store.totals.n_handles, 0);
}

Test(handle_lost, lost_memory_stays_charged_to_the_limit) {
    dvmm_handle *h = NULL;
    dvmm_store_lose(&store, create(LIMIT - 1));
    expect_granules(LIMIT - 1, 0, LIMIT - 1);
    assert_status(dvmm_store_create(&store, 2, UINT64_MAX, &h), DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(dvmm_store_create(&store, 1, UINT64_MAX, &h));
    dvmm_store_put(&store, h);
}

Test(handle_lost, handle_stuck_at_a_quarantined_address_is_lost_instead_of_released) {
    dvmm_handle *h = create(2);
    h->n_mappings = 1;
    dvmm_store_put(&store, h);
    uint64_t releases = ductile_virtual_count(r.gpu, "phys_release");
    assert_status(dvmm_store_release_cached(&store, 0), DUCTILE_ERR_DRIVER);
    expect_granules(2, 0, 2);
    assert_u64(ductile_virtual_count(r.gpu, "phys_release"), releases);
}

/* ---- Pins and exports ---------------------------------------------------------------------- */

Test(handle, bytes_count_once_however_many_pins_and_exports) {
    dvmm_handle *h = create(2);
    dvmm_handle_pin(&store, h);
    dvmm_handle_pin(&store, h);
    dvmm_handle_add_export(&store, h);
    dvmm_handle_add_export(&store, h);
    assert_u64(store.totals.pinned_bytes, 2 * r.granule);
    assert_u64(store.totals.exported_bytes, 2 * r.granule);
    dvmm_handle_unpin(&store, h);
    dvmm_handle_drop_export(&store, h);
    assert_u64(store.totals.pinned_bytes + store.totals.exported_bytes, 4 * r.granule);
    dvmm_handle_unpin(&store, h);
    dvmm_handle_drop_export(&store, h);
    assert_u64(store.totals.pinned_bytes + store.totals.exported_bytes, 0);
    dvmm_store_put(&store, h);
}

Test(handle, nodes_of_released_handles_are_used_again) {
    cache(1);
    uint64_t host_bytes = store.totals.host_bytes;
    for (int i = 0; i < 3000; i++) {
        assert_ok(dvmm_store_release_cached(&store, 0));
        cache(1);
    }
    assert_u64(store.totals.host_bytes, host_bytes);
}
