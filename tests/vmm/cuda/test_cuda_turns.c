/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: in a stand-in for the driver every call takes a while, so that two threads meet in it
 * unless allocators of one process take turns.
 */
#include "tests/fake_cuda/open_fake.h"

#include <pthread.h>

enum { N_ROUNDS = 4, LINGER_US = 2000 };

TestSuite(cuda_turns, .init = load_fake);

/* Returns the number of calls that failed. */
static void *map_and_unmap(void *of) {
    uint64_t size = dvmm_get_caps(of)->granule_bytes;
    const dvmm_phys_props props = {0};
    const int device = 1;
    uintptr_t n_failed = 0;
    for (int i = 0; i < N_ROUNDS; i++) {
        dvmm_phys phys = 0;
        n_failed += dvmm_phys_create(of, size, &props, &phys) != DUCTILE_OK;
        n_failed += dvmm_map(of, size, size, phys) != DUCTILE_OK;
        n_failed += dvmm_set_access(of, size, size, DVMM_ACCESS_RW) != DUCTILE_OK;
        n_failed += dvmm_set_access_for(of, size, size, DVMM_ACCESS_RW, &device, 1) != DUCTILE_OK;
        n_failed += dvmm_unmap(of, size, size) != DUCTILE_OK;
        n_failed += dvmm_phys_release(of, phys) != DUCTILE_OK;
    }
    return (void *)n_failed;
}

Test(cuda_turns, calls_for_memory_of_two_allocators_are_made_one_at_a_time) {
    dvmm_driver *drivers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(dvmm_open_cuda(0, &drivers[i], NULL, 0));
    }
    fake->linger_us = LINGER_US;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, map_and_unmap, drivers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        void *n_failed = NULL;
        (void)pthread_join(threads[i], &n_failed);
        cr_assert_null(n_failed);
    }
    fake->linger_us = 0;
    cr_assert_eq(atomic_load(&fake->most_inside), 1);
    cr_assert_eq(fake->handles, 0);
    cr_assert_eq(fake->mappings, 0);
    for (int i = 0; i < 2; i++) {
        dvmm_close(drivers[i]);
    }
}
