/* SPDX-License-Identifier: Apache-2.0 */
/* Who waits for whom where a capture begins. What captures live through is in
 * tests/scenarios/captures.txt. */
#include "pool/pools/pools.h"
#include "tests/support/one_fixture.h"

#include <pthread.h>

static const ductile_pool_id GRAPH = {1, 0};

static ductile_allocator *a;

static void open_small(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY});
    a = f.allocator;
}

TestSuite(captures, .init = open_small, .fini = close_audited);

static void *wait_a_moment(void *user) {
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
    _Atomic bool *is_over = user;
    atomic_store(is_over, true);
    dpool_context_wait_end(a);
    return NULL;
}

Test(captures, a_capture_pool_opens_after_a_wait_for_the_device) {
    static _Atomic bool is_over;
    pthread_t thread;
    cr_assert(dpool_context_wait_begin(a));
    cr_assert_eq(pthread_create(&thread, NULL, wait_a_moment, (void *)&is_over), 0);
    assert_ok(ductile_pool_begin(a, GRAPH, NULL, NULL));
    cr_assert(atomic_load(&is_over));
    cr_assert_not(dpool_context_wait_begin(a));
    assert_ok(ductile_pool_end(a, GRAPH));
    cr_assert(dpool_context_wait_begin(a));
    dpool_context_wait_end(a);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(ductile_pool_release(a, GRAPH));
}
