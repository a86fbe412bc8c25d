/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: the wrapper of tests/gpu/driver_faults.c stands around the real CUDA backend. Here the
 * backend calls a stand-in for libcuda, which counts: an early fault must not reach it, a late one
 * must, every other call must pass with its operands, and what exists must be listed.
 */
#include "tests/fake_cuda/open_fake.h"
#include "tests/support/faulty_driver.h"

#define GRANULE ((uint64_t)2 << 20)

static faulty_driver wrapper;

static void open_wrapped(void) {
    open_fake();
    faulty_install(&wrapper, driver);
}

static void close_wrapped(void) {
    dvmm_close(driver);
    cr_expect_eq(fake->contexts, 0);
}

TestSuite(cuda_faulty, .init = open_wrapped, .fini = close_wrapped);

static void plan(uint64_t nth, bool is_late, bool for_good) {
    const faulty_plan p = {
        .nth = nth, .code = DVMM_UNKNOWN, .is_late = is_late, .for_good = for_good};
    faulty_plan_fault(&wrapper, &p);
}

static ductile_status make_handle(dvmm_phys *out) {
    const dvmm_phys_props props = {0};
    return dvmm_phys_create(driver, GRANULE, &props, out);
}

Test(cuda_faulty, without_a_fault_calls_pass_and_what_exists_is_listed) {
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    assert_ok(dvmm_address_reserve(driver, GRANULE, &addr));
    assert_ok(make_handle(&phys));
    assert_ok(dvmm_map(driver, addr, GRANULE, phys));
    cr_assert_eq(fake->reservations + fake->handles + fake->mappings, 3);
    assert_u64(resources_count(&wrapper.left, A_RANGE), 1);
    assert_u64(resources_count(&wrapper.left, A_HANDLE), 1);
    assert_u64(resources_count(&wrapper.left, A_MAPPING), 1);
    assert_ok(dvmm_unmap(driver, addr, GRANULE));
    assert_ok(dvmm_phys_release(driver, phys));
    assert_ok(dvmm_address_free(driver, addr, GRANULE));
    cr_assert_eq(fake->reservations + fake->handles + fake->mappings, 0);
    assert_u64(wrapper.left.n, 0);
    assert_u64(wrapper.n_calls, 6);
}

Test(cuda_faulty, an_early_fault_does_not_reach_the_driver) {
    dvmm_phys phys = 7;
    plan(1, false, false);
    int before = fake->n_calls;
    assert_status(make_handle(&phys), DUCTILE_ERR_DRIVER);
    cr_assert_eq(fake->n_calls, before);
    assert_u64(phys, 0);
    assert_u64(wrapper.n_failures, 1);
    assert_ok(make_handle(&phys)); /* once */
    assert_ok(dvmm_phys_release(driver, phys));
}

Test(cuda_faulty, a_late_fault_leaves_what_the_driver_has_done) {
    dvmm_phys phys = 7;
    plan(1, true, false);
    assert_status(make_handle(&phys), DUCTILE_ERR_DRIVER);
    assert_u64(phys, 0);
    cr_assert_eq(fake->handles, 1);
    assert_u64(resources_count(&wrapper.left, A_HANDLE), 1);
    faulty_plan_fault(&wrapper, NULL);
    cr_assert_null(faulty_clean_up(&wrapper, driver));
    cr_assert_eq(fake->handles, 0);
}

Test(cuda_faulty, a_fault_for_good_is_of_calls_of_that_name_alone) {
    dvmm_phys phys = 0;
    ductile_addr addr = 0;
    plan(2, false, true);
    assert_ok(make_handle(&phys));
    dvmm_phys none = 0;
    assert_status(make_handle(&none), DUCTILE_ERR_DRIVER);
    assert_status(make_handle(&none), DUCTILE_ERR_DRIVER);
    assert_ok(dvmm_address_reserve(driver, GRANULE, &addr));
    assert_u64(wrapper.n_failures, 2);
    assert_ok(dvmm_phys_release(driver, phys));
    assert_ok(dvmm_address_free(driver, addr, GRANULE));
}

Test(cuda_faulty, what_is_left_is_given_back_in_an_order_that_the_driver_allows) {
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    dvmm_event event = NULL;
    uint64_t memory = 0;
    assert_ok(dvmm_address_reserve(driver, GRANULE, &addr));
    assert_ok(make_handle(&phys));
    assert_ok(dvmm_map(driver, addr, GRANULE, phys));
    assert_ok(dvmm_event_create(driver, &event));
    assert_ok(dvmm_host_register(driver, &memory, sizeof memory));
    cr_assert_null(faulty_clean_up(&wrapper, driver));
    assert_u64(wrapper.left.n, 0);
    cr_assert_eq(fake->reservations + fake->handles + fake->mappings + fake->events, 0);
}
