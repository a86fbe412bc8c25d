/* SPDX-License-Identifier: Apache-2.0 */
/* A filter that is slow to answer, and lists of pools. What pools are for is in
 * tests/scenarios/pools.txt. */
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static const ductile_pool_id POOL = {1, 0};
static sem_t is_inside, may_leave;
static _Atomic bool has_left;
static ductile_addr block;

static int answer_slowly(void *user, ductile_stream stream) {
    (void)user, (void)stream;
    (void)sem_post(&is_inside);
    (void)sem_wait(&may_leave);
    has_left = true;
    return 1;
}

static void *ask(void *unused) {
    block = take(1000, 0);
    return unused;
}

static void *let_out_later(void *unused) {
    (void)usleep(20000);
    (void)sem_post(&may_leave);
    return unused;
}

/* The end waits for it; then it is not asked, and its answer came too late. */
Test(pools, nobody_is_inside_the_filter_after_the_end) {
    pthread_t asker, opener;
    ductile_block_info info = {.struct_size = sizeof info};
    open_fixture(NULL);
    cr_assert(sem_init(&is_inside, 0, 0) == 0 && sem_init(&may_leave, 0, 0) == 0);
    assert_ok(ductile_pool_begin(f.allocator, POOL, answer_slowly, NULL));
    cr_assert_eq(pthread_create(&asker, NULL, ask, NULL), 0);
    cr_assert_eq(sem_wait(&is_inside), 0);
    cr_assert_eq(pthread_create(&opener, NULL, let_out_later, NULL), 0);
    assert_ok(ductile_pool_end(f.allocator, POOL));
    cr_assert(has_left, "a thread is inside the filter");
    cr_assert_eq(pthread_join(asker, NULL), 0);
    cr_assert_eq(pthread_join(opener, NULL), 0);
    assert_ok(ductile_query_block(f.allocator, block, &info));
    assert_u64(info.pool.first, 0);
    (void)take(1000, 0); /* would wait for ever */
    assert_ok(ductile_pool_release(f.allocator, POOL));
    close_audited();
}

Test(pools, a_list_has_each_pool_and_says_how_many_there_are_beyond_its_room) {
    enum { N_POOLS = 3, FILLED = 0x5a };
    ductile_pool_info all[N_POOLS + 1] = {{.struct_size = sizeof all[0]}};
    size_t found = 0;
    open_fixture(NULL);
    for (uint64_t i = 1; i <= N_POOLS; i++) {
        assert_ok(ductile_pool_retain(f.allocator, (ductile_pool_id){i, 0}));
    }
    assert_ok(ductile_list_pools(f.allocator, NULL, all, N_POOLS + 1, &found));
    assert_u64(found, N_POOLS + 1); /* with the default pool */
    for (size_t i = 1; i < found; i++) {
        cr_assert_neq(all[i].id.first, all[i - 1].id.first);
    }
    memset(&all[1], FILLED, sizeof all[1]);
    assert_ok(ductile_list_pools(f.allocator, NULL, all, 1, &found));
    assert_u64(found, N_POOLS + 1);
    cr_assert_eq(*(unsigned char *)&all[1], FILLED, "more was written than there is room for");
    for (uint64_t i = 1; i <= N_POOLS; i++) {
        assert_ok(ductile_pool_release(f.allocator, (ductile_pool_id){i, 0}));
    }
    close_audited();
}
