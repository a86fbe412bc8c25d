/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools where the caller's filter is slow, and wrong kinds. What pools are for is in
 * tests/scenarios/pools.txt. */
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

static const ductile_pool_id ONE = {1, 0};

static ductile_allocator *a;

static void open_small(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY});
    a = f.allocator;
}

TestSuite(pools, .init = open_small, .fini = close_audited);

static ductile_addr asked_for;

/* A filter that is slow to answer: the end waits for it, and it is not asked afterwards. */
typedef struct slow_filter {
    _Atomic int is_inside;
    _Atomic int may_leave;
    _Atomic int n_asked;
} slow_filter;

static slow_filter slow;

static int answer_slowly(void *user, ductile_stream stream) {
    (void)stream;
    slow_filter *s = user;
    atomic_fetch_add(&s->n_asked, 1);
    atomic_store(&s->is_inside, 1);
    while (atomic_load(&s->may_leave) == 0) {
    }
    atomic_store(&s->is_inside, 0);
    return 1;
}

static void *let_out_later(void *unused) {
    (void)unused;
    const struct timespec moment = {.tv_nsec = 20000000};
    (void)nanosleep(&moment, NULL);
    atomic_store(&slow.may_leave, 1);
    return NULL;
}

static void *ask(void *unused) {
    (void)unused;
    return (void *)(uintptr_t)ductile_alloc(a, 1000, f.streams[0], &asked_for);
}

Test(pools, nobody_is_inside_the_filter_after_the_end) {
    pthread_t asker;
    pthread_t opener;
    assert_ok(ductile_pool_begin(a, ONE, answer_slowly, &slow));
    cr_assert_eq(pthread_create(&asker, NULL, ask, NULL), 0);
    while (atomic_load(&slow.is_inside) == 0) {
    }
    cr_assert_eq(pthread_create(&opener, NULL, let_out_later, NULL), 0);
    assert_ok(ductile_pool_end(a, ONE));
    cr_assert_eq(atomic_load(&slow.is_inside), 0);
    cr_assert_eq(pthread_join(asker, NULL), 0);
    cr_assert_eq(pthread_join(opener, NULL), 0);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(a, asked_for, &info));
    assert_u64(info.pool.first, 0); /* it had ended before the answer came */
    (void)take(1000, 0);
    cr_assert_eq(atomic_load(&slow.n_asked), 1);
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, a_kind_that_is_none_is_refused) {
    assert_ok(ductile_pool_retain(a, ONE));
    assert_status(ductile_pool_set_kind(a, ONE, (ductile_pool_kind)2),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_pool_release(a, ONE));
}

Test(pools, no_pool_has_the_name_of_none) {
    const ductile_pool_id none = {0, 0};
    assert_status(ductile_pool_retain(a, none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_begin(a, none, NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
}
