/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callbacks that are asked for memory: in which order, how often, for how much, and what they may
 * do meanwhile. The device is full of live blocks, so that only a callback can help.
 */

#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define N_BLOCKS 16
#define BLOCK (16 * MIB)

static ductile_addr blocks[N_BLOCKS];
static size_t n_live;

static void open_full(void) {
    fixture_setup setup = {.capacity_bytes = N_BLOCKS * BLOCK, .n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
    for (n_live = 0; n_live < N_BLOCKS; n_live++) {
        assert_ok(ductile_alloc(f.allocator, BLOCK, f.streams[0], &blocks[n_live]));
    }
}

/* ---- Whom, when, how often ----------------------------------------------------------------- */

typedef struct asked {
    int name;
    uint64_t missing;
    ductile_stream stream;
} asked;

static asked log_of_asked[64];
static size_t n_asked;

static void note(int name, uint64_t missing, ductile_stream stream) {
    if (n_asked < sizeof log_of_asked / sizeof *log_of_asked) {
        log_of_asked[n_asked] = (asked){name, missing, stream};
    }
    n_asked++;
}

static uint64_t give_nothing(void *user, ductile_allocator *a, uint64_t missing,
                             ductile_stream stream) {
    (void)a;
    note(*(int *)user, missing, stream);
    return 0;
}

static uint64_t free_one(void *user, ductile_allocator *a, uint64_t missing,
                         ductile_stream stream) {
    note(*(int *)user, missing, stream);
    if (n_live == 0 || ductile_free(a, blocks[n_live - 1]) != DUCTILE_OK) {
        return 0;
    }
    n_live--;
    return BLOCK;
}

static uint64_t lie(void *user, ductile_allocator *a, uint64_t missing, ductile_stream stream) {
    (void)a;
    note(*(int *)user, missing, stream);
    return 1;
}

static int names[] = {0, 1, 2, 3};

static uint64_t add(ductile_oom_fn fn, int name, int priority) {
    uint64_t id = 0;
    assert_ok(ductile_add_oom_callback(f.allocator, fn, &names[name], priority, &id));
    cr_assert_neq(id, 0);
    return id;
}

Test(oom_callbacks, are_asked_by_priority_then_by_age_with_what_is_missing) {
    open_full();
    (void)add(give_nothing, 2, 10);
    (void)add(give_nothing, 1, -5);
    (void)add(give_nothing, 3, 10);
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, 3 * MIB, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(n_asked, 3);
    for (size_t i = 0; i < n_asked; i++) {
        assert_u64((unsigned)log_of_asked[i].name, i + 1);
        assert_u64(log_of_asked[i].missing, 4 * MIB);
        cr_assert_eq(log_of_asked[i].stream, f.streams[0]);
    }
    close_audited();
}

Test(oom_callbacks, are_not_asked_while_anything_else_is_at_hand) {
    open_full();
    (void)add(give_nothing, 1, 0);
    assert_ok(ductile_free(f.allocator, blocks[3]));
    assert_ok(ductile_alloc(f.allocator, BLOCK, f.streams[0], &blocks[3]));
    assert_u64(n_asked, 0);
    close_audited();
}

/* Half of the device is wanted, a callback gives one block at a time, the later one none. */
Test(oom_callbacks, are_asked_again_while_they_give_and_the_others_not_at_all) {
    open_full();
    (void)add(free_one, 1, 0);
    (void)add(give_nothing, 2, 1);
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, N_BLOCKS / 2 * BLOCK, f.streams[0], &address));
    assert_u64(n_asked, N_BLOCKS / 2);
    for (size_t i = 0; i < n_asked; i++) {
        assert_u64((unsigned)log_of_asked[i].name, 1);
        assert_u64(log_of_asked[i].missing, (N_BLOCKS / 2 - i) * BLOCK);
    }
    close_audited();
}

/* Memory freed by another stream's owner is not the requester's before its work is proven done:
 * the later rungs see to that. */
Test(oom_callbacks, may_give_memory_of_another_stream) {
    open_full();
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    (void)add(free_one, 1, 0);
    ductile_virtual_use use = {.address = blocks[N_BLOCKS - 1], .size = BLOCK, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[0], &use, 1));
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, BLOCK, f.streams[1], &address));
    close_audited();
}

Test(oom_callbacks, that_lie_are_asked_sixteen_times_and_the_request_is_refused) {
    open_full();
    (void)add(lie, 1, 0);
    (void)add(give_nothing, 2, 1);
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, BLOCK, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(n_asked, 17);
    assert_u64((unsigned)log_of_asked[16].name, 2);
    close_audited();
}

Test(oom_callbacks, that_were_removed_are_not_asked) {
    open_full();
    uint64_t first = add(give_nothing, 1, 0);
    (void)add(give_nothing, 2, 1);
    assert_ok(ductile_remove_oom_callback(f.allocator, first));
    assert_status(ductile_remove_oom_callback(f.allocator, first), DUCTILE_ERR_INVALID_ARGUMENT);
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, BLOCK, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(n_asked, 1);
    assert_u64((unsigned)log_of_asked[0].name, 2);
    close_audited();
}

Test(oom_callbacks, need_a_function_and_a_place_for_the_number) {
    open_full();
    uint64_t id = 7;
    assert_status(ductile_add_oom_callback(f.allocator, NULL, NULL, 0, &id),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(id, 0);
    assert_status(ductile_add_oom_callback(f.allocator, lie, NULL, 0, NULL),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_add_oom_callback(NULL, lie, NULL, 0, &id), DUCTILE_ERR_INVALID_ARGUMENT);
    close_audited();
}

/* ---- What they may do ---------------------------------------------------------------------- */

static ductile_status nested = DUCTILE_ERR_BUSY;
static ductile_addr nested_block;

/* Asks for what only a callback could give, so that the nested request is refused. */
static uint64_t allocate_inside(void *user, ductile_allocator *a, uint64_t missing,
                                ductile_stream stream) {
    note(*(int *)user, missing, stream);
    ductile_addr address = 0;
    nested = ductile_alloc(a, 2 * BLOCK, stream, &address);
    if (n_asked > 1 || ductile_free(a, blocks[--n_live]) != DUCTILE_OK ||
        ductile_alloc(a, BLOCK / 4, stream, &nested_block) != DUCTILE_OK) {
        return 0;
    }
    return BLOCK - BLOCK / 4;
}

Test(oom_callbacks, may_allocate_and_are_not_asked_by_what_they_allocate) {
    open_full();
    (void)add(allocate_inside, 1, 0);
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, BLOCK / 2, f.streams[0], &address));
    assert_u64(n_asked, 1);
    assert_status(nested, DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_free(f.allocator, nested_block));
    close_audited();
}

static const ductile_pool_id pool_in_use = {1, 1};
static ductile_status paused;

static uint64_t pause_pool(void *user, ductile_allocator *a, uint64_t missing,
                           ductile_stream stream) {
    note(*(int *)user, missing, stream);
    paused = ductile_pause(a, pool_in_use, DUCTILE_CONTENTS_DROP);
    return 0;
}

Test(oom_callbacks, cannot_pause_the_pool_that_asks) {
    open_full();
    (void)add(pause_pool, 1, 0);
    ductile_addr address = 0;
    assert_ok(ductile_pool_begin(f.allocator, pool_in_use, NULL, NULL));
    assert_status(ductile_alloc(f.allocator, BLOCK, f.streams[0], &address),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_pool_end(f.allocator, pool_in_use));
    assert_u64(n_asked, 1);
    assert_status(paused, DUCTILE_ERR_BUSY);
    close_audited();
}

static uint64_t own_id;
static ductile_status removed = DUCTILE_ERR_BUSY;
static uint64_t added_id;

static uint64_t remove_itself(void *user, ductile_allocator *a, uint64_t missing,
                              ductile_stream stream) {
    note(*(int *)user, missing, stream);
    removed = ductile_remove_oom_callback(a, own_id);
    return ductile_add_oom_callback(a, give_nothing, &names[3], 5, &added_id) == DUCTILE_OK ? 1 : 0;
}

Test(oom_callbacks, may_remove_themselves_and_add_others) {
    open_full();
    own_id = add(remove_itself, 1, 0);
    (void)add(give_nothing, 2, 1);
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, BLOCK, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(removed);
    assert_u64(n_asked, 3);
    assert_u64((unsigned)log_of_asked[2].name, 3);
    close_audited();
}

/* ---- Threads ------------------------------------------------------------------------------- */

static sem_t is_inside;
static sem_t may_leave;
static volatile bool has_left;

static uint64_t stay_inside(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)a;
    note(*(int *)user, missing, stream);
    (void)sem_post(&is_inside);
    (void)sem_wait(&may_leave);
    has_left = true;
    return 0;
}

static void *refused_request(void *user) {
    ductile_addr none = 1;
    *(ductile_status *)user = ductile_alloc(f.allocator, BLOCK, f.streams[0], &none);
    return NULL;
}

static void *remove_while_inside(void *user) {
    *(bool *)user = ductile_remove_oom_callback(f.allocator, own_id) == DUCTILE_OK && has_left;
    return NULL;
}

/* While a callback runs nothing is locked: others allocate and free meanwhile. */
Test(oom_callbacks, hold_nobody_up_and_removal_waits_until_they_are_left) {
    open_full();
    cr_assert_eq(sem_init(&is_inside, 0, 0), 0);
    cr_assert_eq(sem_init(&may_leave, 0, 0), 0);
    own_id = add(stay_inside, 1, 0);
    pthread_t requester;
    pthread_t remover;
    ductile_status status = DUCTILE_OK;
    bool removed_after = false;
    cr_assert_eq(pthread_create(&requester, NULL, refused_request, &status), 0);
    cr_assert_eq(sem_wait(&is_inside), 0);
    cr_assert_eq(pthread_create(&remover, NULL, remove_while_inside, &removed_after), 0);
    assert_ok(ductile_free(f.allocator, blocks[0]));
    assert_ok(ductile_alloc(f.allocator, BLOCK, f.streams[0], &blocks[0]));
    const struct timespec pause = {.tv_nsec = 20000000};
    (void)nanosleep(&pause, NULL); /* in which a removal that does not wait would be over */
    cr_assert_eq(sem_post(&may_leave), 0);
    cr_assert_eq(pthread_join(remover, NULL), 0);
    cr_assert_eq(pthread_join(requester, NULL), 0);
    cr_assert(removed_after, "removed while a thread was inside");
    assert_status(status, DUCTILE_ERR_OUT_OF_MEMORY);
    close_audited();
}
