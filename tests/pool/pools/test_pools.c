/* SPDX-License-Identifier: Apache-2.0 */
/* A filter that is slow to answer, and arguments that name no pool and no kind. What pools are for
 * is in tests/scenarios/pools.txt. */
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

static const ductile_pool_id one = {1, 0};

Test(pools, neither_a_kind_nor_a_name_is_taken_that_is_none) {
    const ductile_pool_id none = {0, 0};
    open_fixture(NULL);
    assert_ok(ductile_pool_retain(f.allocator, one));
    assert_status(ductile_pool_set_kind(f.allocator, one, (ductile_pool_kind)2),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_pool_release(f.allocator, one));
    assert_status(ductile_pool_retain(f.allocator, none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_begin(f.allocator, none, NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    close_audited();
}

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
    return (void *)(uintptr_t)ductile_alloc(f.allocator, 1000, f.streams[0], &asked_for);
}

Test(pools, nobody_is_inside_the_filter_after_the_end) {
    open_fixture(NULL);
    pthread_t asker;
    pthread_t opener;
    assert_ok(ductile_pool_begin(f.allocator, one, answer_slowly, &slow));
    cr_assert_eq(pthread_create(&asker, NULL, ask, NULL), 0);
    while (atomic_load(&slow.is_inside) == 0) {
    }
    cr_assert_eq(pthread_create(&opener, NULL, let_out_later, NULL), 0);
    assert_ok(ductile_pool_end(f.allocator, one));
    cr_assert_eq(atomic_load(&slow.is_inside), 0);
    cr_assert_eq(pthread_join(asker, NULL), 0);
    cr_assert_eq(pthread_join(opener, NULL), 0);
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(f.allocator, asked_for, &info));
    assert_u64(info.pool.first, 0); /* it had ended before the answer came */
    (void)take(1000, 0);
    cr_assert_eq(atomic_load(&slow.n_asked), 1);
    assert_ok(ductile_pool_release(f.allocator, one));
    close_audited();
}
