/* SPDX-License-Identifier: Apache-2.0 */
/* The handle store: what it holds and counts, which of its cached handles it hands out, and what a
 * refusal leaves. Sizes are granules; the limit is 16. */
#include "vmm/handle.h"

#include "tests/support/device_fixture.h"

enum { LIMIT = 16 };

static device_fixture r;
static dvmm_handle_store store;
static uint64_t calls_before;

static void open_store(void) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 3, 11);
    dvmm_store_init(&store, r.d, r.granule, LIMIT * r.granule, (dvmm_phys_props){0});
}

static void close_store(void) {
    dvmm_store_fini(&store);
    device_close(&r);
}

/* Of a test whose device refused to take memory back. */
static void abandon_store(void) {
    dvmm_store_fini(&store);
    device_abandon(&r);
}

TestSuite(handle, .init = open_store);

static dvmm_handle *create(uint32_t n_granules) {
    dvmm_handle *h = NULL;
    assert_ok(dvmm_store_create(&store, n_granules, UINT64_MAX, &h));
    assert_u64(h->n_granules, n_granules);
    return h;
}

static void assert_full(uint32_t n_granules, uint64_t max_held) {
    dvmm_handle *none = NULL;
    assert_status(dvmm_store_create(&store, n_granules, max_held, &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_null(none);
}

static void cache(uint32_t n_granules) {
    dvmm_store_put(&store, create(n_granules));
}

/* Of `most` granules at most; 0: none has so few. */
static dvmm_handle *take(uint32_t most, uint32_t expected) {
    dvmm_handle *h = dvmm_store_take(&store, most);
    assert_u64(h != NULL ? h->n_granules : 0, expected);
    return h;
}

static dvmm_handle *take_exact(uint32_t n_granules, bool is_there) {
    dvmm_handle *h = dvmm_store_take_exact(&store, n_granules);
    assert_u64(h != NULL ? h->n_granules : 0, is_there ? n_granules : 0);
    return h;
}

static ductile_status release_down_to(uint64_t n_held) {
    return dvmm_store_release_cached(&store, n_held * r.granule);
}

static void assert_totals(uint64_t held, uint64_t cached, uint64_t lost) {
    assert_u64(store.totals.held_bytes / r.granule, held);
    assert_u64(store.totals.cached_bytes / r.granule, cached);
    assert_u64(store.totals.lost_bytes / r.granule, lost);
}

static void assert_on_device(uint64_t n_granules) {
    assert_u64(device_state(&r).used_bytes / r.granule, n_granules);
}

static void note_calls(void) {
    calls_before = device_state(&r).calls;
}

static void assert_no_call(void) {
    assert_u64(device_state(&r).calls, calls_before);
}

/* ---- Creating and releasing ---------------------------------------------------------------- */

Test(handle, created_memory_is_held_until_it_is_released) {
    dvmm_handle *h = create(3);
    assert_totals(3, 0, 0);
    assert_on_device(3);
    dvmm_store_put(&store, h);
    assert_totals(3, 3, 0);
    assert_ok(release_down_to(0));
    assert_totals(0, 0, 0);
    assert_u64(store.totals.created_bytes / r.granule, 3);
    assert_on_device(0);
    close_store();
}

Test(handle, the_limit_refuses_before_the_driver_is_asked) {
    cache(15);
    note_calls();
    assert_full(2, UINT64_MAX);
    assert_full(17, UINT64_MAX);
    assert_no_call();
    cache(1);
    assert_totals(16, 16, 0);
    close_store();
}

Test(handle, one_may_be_as_large_as_the_limit) {
    dvmm_store_put(&store, create(LIMIT));
    assert_totals(16, 16, 0);
    close_store();
}

Test(handle, a_caller_may_allow_less_than_the_limit) {
    dvmm_handle *h = NULL;
    cache(2);
    assert_full(1, 2 * r.granule);
    assert_ok(dvmm_store_create(&store, 1, 3 * r.granule, &h));
    dvmm_store_put(&store, h);
    assert_totals(3, 3, 0);
    close_store();
}

Test(handle, a_creation_that_the_driver_refuses_changes_nothing) {
    cache(2);
    device_fail(&r, "phys_create", 1, DVMM_OUT_OF_MEMORY);
    const dvmm_handle *spare = store.spare;
    assert_full(2, UINT64_MAX);
    cr_assert_eq(store.spare, spare);
    assert_totals(2, 2, 0);
    assert_u64(store.totals.n_handles, 1);
    assert_u64(store.totals.created_bytes / r.granule, 2);
    device_recover(&r);
    close_store();
}

/* ---- Which one is taken -------------------------------------------------------------------- */

Test(handle, of_the_lists_that_fit_the_largest_is_taken_from) {
    cache(1);
    cache(2);
    cache(4);
    dvmm_handle *h = take(3, 2);
    assert_totals(7, 5, 0);
    dvmm_store_put(&store, h);
    close_store();
}

/* Two and three granules share a list. */
Test(handle, larger_ones_in_the_list_of_its_size_are_passed_over) {
    cache(2);
    cache(3);
    dvmm_store_put(&store, take(2, 2));
    close_store();
}

Test(handle, where_all_are_larger_nothing_is_taken) {
    cache(4);
    (void)take(3, 0);
    assert_totals(4, 4, 0);
    close_store();
}

Test(handle, that_size_is_taken_or_nothing) {
    cache(2);
    cache(3);
    (void)take_exact(1, false);
    dvmm_handle *h = take_exact(2, true);
    (void)take_exact(2, false);
    dvmm_store_put(&store, h);
    close_store();
}

Test(handle, a_cached_one_is_used_again_without_the_driver) {
    cache(2);
    note_calls();
    dvmm_store_put(&store, take(2, 2));
    assert_no_call();
    close_store();
}

/* ---- What goes back ------------------------------------------------------------------------ */

Test(handle, a_cache_that_shrinks_releases_the_largest_first) {
    cache(1);
    cache(4);
    cache(2);
    assert_ok(dvmm_store_shrink_cache(&store, 3 * r.granule));
    assert_totals(3, 3, 0);
    (void)take_exact(4, false);
    close_store();
}

Test(handle, releasing_stops_at_what_is_to_be_kept) {
    dvmm_handle *h = create(4);
    cache(2);
    cache(2);
    assert_ok(release_down_to(6));
    assert_totals(6, 2, 0);
    assert_ok(release_down_to(0));
    assert_totals(4, 0, 0);
    dvmm_store_put(&store, h);
    close_store();
}

Test(handle, a_refused_release_is_lost_and_the_rest_is_released) {
    cache(1);
    cache(2);
    device_fail(&r, "phys_release", 1, DVMM_UNKNOWN);
    assert_status(release_down_to(0), DUCTILE_ERR_DRIVER);
    assert_totals(2, 0, 2);
    assert_u64(store.totals.n_handles, 0);
    abandon_store();
}

Test(handle, lost_memory_stays_charged_to_the_limit) {
    dvmm_store_lose(&store, create(15));
    assert_totals(15, 0, 15);
    assert_full(2, UINT64_MAX);
    dvmm_store_put(&store, create(1));
    abandon_store();
}

/* It is mapped at an address that the driver did not unmap. */
Test(handle, one_that_is_stuck_at_an_address_is_lost_instead_of_released) {
    dvmm_handle *h = create(2);
    h->n_mappings = 1;
    dvmm_store_put(&store, h);
    assert_status(release_down_to(0), DUCTILE_ERR_DRIVER);
    assert_totals(2, 0, 2);
    assert_called(&r, "phys_release", 0);
    abandon_store();
}

/* ---- Pins, exports, and the host's memory -------------------------------------------------- */

static void assert_bound(uint64_t pinned, uint64_t exported) {
    assert_u64(store.totals.pinned_bytes / r.granule, pinned);
    assert_u64(store.totals.exported_bytes / r.granule, exported);
}

Test(handle, bytes_count_once_however_many_pins_and_exports) {
    dvmm_handle *h = create(2);
    for (int i = 0; i < 2; i++) {
        dvmm_handle_pin(&store, h);
        dvmm_handle_add_export(&store, h);
        assert_bound(2, 2);
    }
    dvmm_handle_unpin(&store, h);
    dvmm_handle_drop_export(&store, h);
    assert_bound(2, 2);
    dvmm_handle_unpin(&store, h);
    dvmm_handle_drop_export(&store, h);
    assert_bound(0, 0);
    dvmm_store_put(&store, h);
    close_store();
}

Test(handle, the_node_of_a_lost_one_is_used_again) {
    dvmm_handle *h = create(1);
    dvmm_store_lose(&store, h);
    cr_assert_eq(create(1), h);
    dvmm_store_put(&store, h);
    abandon_store();
}

Test(handle, memory_of_the_host_that_was_not_made_leaves_nothing) {
    dvmm_handle *h = NULL;
    store.spill_limit_bytes = 2 * r.granule;
    assert_ok(dvmm_store_begin_host(&store, 2, &h));
    assert_u64(store.totals.spill_bytes, 2 * r.granule);
    dvmm_store_end_host(&store, h, DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(store.totals.spill_bytes + store.totals.n_handles, 0);
    cr_assert_eq(store.spare, h);
    close_store();
}

Test(handle, nodes_of_released_ones_are_used_again) {
    cache(1);
    uint64_t host_bytes = store.totals.host_bytes;
    for (int i = 0; i < 3000; i++) {
        assert_ok(release_down_to(0));
        cache(1);
    }
    assert_u64(store.totals.host_bytes, host_bytes);
    close_store();
}
