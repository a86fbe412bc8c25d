/* SPDX-License-Identifier: Apache-2.0 */
/* Callbacks that are asked for memory: wrong arguments, and other threads meanwhile. When each is
 * asked and how often, and what it may do, is in tests/scenarios/asked.txt. */
#include "tests/support/one_fixture.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#define BLOCK (16 * MIB)

static uint64_t id;
static sem_t is_inside;
static sem_t may_leave;
static volatile bool has_left;
static ductile_stream asked_for;

static uint64_t stay_inside(void *user, ductile_allocator *a, uint64_t missing,
                            ductile_stream stream) {
    (void)user, (void)a, (void)missing;
    asked_for = stream;
    (void)sem_post(&is_inside);
    (void)sem_wait(&may_leave);
    has_left = true;
    return 0;
}

Test(oom_callbacks, need_a_function_and_a_place_for_the_number) {
    open_fixture(NULL);
    id = 7;
    assert_status(ductile_add_oom_callback(f.allocator, NULL, NULL, 0, &id),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(id, 0);
    assert_status(ductile_add_oom_callback(f.allocator, stay_inside, NULL, 0, NULL),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_add_oom_callback(NULL, stay_inside, NULL, 0, &id),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    close_audited();
}

static void *refused_request(void *user) {
    ductile_addr none = 1;
    *(ductile_status *)user = ductile_alloc(f.allocator, BLOCK, f.streams[1], &none);
    return NULL;
}

static void *remove_while_inside(void *user) {
    *(bool *)user = ductile_remove_oom_callback(f.allocator, id) == DUCTILE_OK && has_left;
    return NULL;
}

/* While a callback runs nothing is locked: others allocate and free meanwhile. */
Test(oom_callbacks, hold_nobody_up_and_removal_waits_until_they_are_left) {
    pthread_t requester;
    pthread_t remover;
    ductile_status status = DUCTILE_OK;
    bool removed_after = false;
    open_fixture(&(fixture_setup){.capacity_bytes = 2 * BLOCK, .n_streams = 2});
    ductile_addr block = take(BLOCK, 0);
    (void)take(BLOCK, 0);
    cr_assert_eq(sem_init(&is_inside, 0, 0), 0);
    cr_assert_eq(sem_init(&may_leave, 0, 0), 0);
    assert_ok(ductile_add_oom_callback(f.allocator, stay_inside, NULL, 0, &id));
    cr_assert_eq(pthread_create(&requester, NULL, refused_request, &status), 0);
    cr_assert_eq(sem_wait(&is_inside), 0);
    cr_assert_eq(pthread_create(&remover, NULL, remove_while_inside, &removed_after), 0);
    give(block);
    (void)take(BLOCK, 0);
    const struct timespec pause = {.tv_nsec = 20000000};
    (void)nanosleep(&pause, NULL); /* in which a removal that does not wait would be over */
    cr_assert_eq(sem_post(&may_leave), 0);
    cr_assert_eq(pthread_join(remover, NULL), 0);
    cr_assert_eq(pthread_join(requester, NULL), 0);
    cr_assert(removed_after, "removed while a thread was inside");
    assert_status(status, DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(asked_for, f.streams[1]);
    close_audited();
}
