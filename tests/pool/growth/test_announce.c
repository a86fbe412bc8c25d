/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map callbacks: who is told in which order, and what other threads can do meanwhile. What is told
 * is in tests/scenarios/callbacks.txt; that a table kept by them is always true is tests/model.
 */
#include "tests/support/limits.h"
#include "tests/support/one_fixture.h"
#include "tests/support/shadow.h"
#include "tests/support/two_ends.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GRANULE FIXTURE_GRANULE
#define CAPACITY (64 * MIB)

static shadow s;

static void open_listening(void) {
    const fixture_setup setup = {.capacity_bytes = CAPACITY, .n_streams = 2};
    memset(&s, 0, sizeof s);
    assert_fine(fixture_open(&f, &setup));
    assert_fine(shadow_open(&s, f.allocator, f.gpu));
}

static void close_listening(void) {
    s.beside = NULL;
    assert_fine(fixture_close(&f));
    assert_fine(shadow_complaint(&s));
    cr_assert_eq(s.n, 0, "%zu mappings were never said to leave", s.n);
}

TestSuite(announce, .init = open_listening, .fini = close_listening);

/* ---- What is told -------------------------------------------------------------------------- */

Test(announce, an_import_comes_and_leaves_as_one) {
    static shadow of_importer;
    two_ends t;
    memset(&of_importer, 0, sizeof of_importer);
    assert_fine(two_ends_open(&t, NULL, SOCK_STREAM));
    ductile_addr block = 0;
    assert_ok(ductile_alloc(t.f.allocator, 3 * GRANULE, t.f.streams[0], &block));
    assert_fine(shadow_open(&of_importer, t.importer, t.f.gpu));
    for (int i = 0; i < 2; i++) {
        passing p = two_ends_pass(&t, block);
        assert_ok(p.imported);
        cr_assert_eq(of_importer.n, 1);
        assert_fine(shadow_covers(&of_importer, p.addr, p.size));
        assert_ok(i == 0 ? ductile_import_close(t.importer, p.addr)
                         : ductile_free(t.importer, p.addr));
        cr_assert_eq(of_importer.n, 0);
        assert_fine(shadow_complaint(&of_importer));
        assert_ok(ductile_unexport(t.f.allocator, block));
    }
    assert_ok(ductile_free(t.f.allocator, block));
    assert_fine(two_ends_close(&t));
}

static void import_something(void *user, ductile_allocator *a, const ductile_map_event *e) {
    ductile_addr address = 1;
    uint64_t size = 0;
    (void)e;
    *(ductile_status *)user = ductile_import(a, -1, NULL, &address, &size);
}

Test(announce, an_import_inside_a_callback_is_refused) {
    ductile_status status = DUCTILE_OK;
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(f.allocator, import_something, &status, 0, &id));
    give(take_granules(5, 0));
    assert_status(status, DUCTILE_ERR_BUSY);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
}

/* ---- Who is told --------------------------------------------------------------------------- */

static char told[64];

static void write_down(void *user, ductile_allocator *a, const ductile_map_event *e) {
    (void)a;
    char name = *(const char *)user;
    char mark[2] = {e->change == DUCTILE_MAP_MAPPED ? name : (char)(name - 'a' + 'A'), '\0'};
    cr_assert_eq(e->struct_size, sizeof *e);
    cr_assert_eq(e->device, 0);
    (void)strncat(told, mark, sizeof told - strlen(told) - 1);
}

Test(announce, who_hears_first_that_memory_comes_hears_last_that_it_leaves) {
    static char names[] = {'a', 'b', 'c'};
    uint64_t ids[3];
    told[0] = '\0';
    assert_ok(ductile_add_map_callback(f.allocator, write_down, &names[2], 7, &ids[2]));
    assert_ok(ductile_add_map_callback(f.allocator, write_down, &names[0], -1, &ids[0]));
    assert_ok(ductile_add_map_callback(f.allocator, write_down, &names[1], -1, &ids[1]));
    give(take_granules(1, 0));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    cr_assert_str_eq(told, "abcCBA");
    assert_ok(ductile_remove_map_callback(f.allocator, ids[1]));
    give(take_granules(1, 0));
    cr_assert_str_eq(told, "abcCBAac");
    assert_ok(ductile_remove_map_callback(f.allocator, ids[0]));
    assert_ok(ductile_remove_map_callback(f.allocator, ids[2]));
    assert_status(ductile_remove_map_callback(f.allocator, ids[2]), DUCTILE_ERR_INVALID_ARGUMENT);
}

/* ---- What others can do meanwhile ---------------------------------------------------------- */

/* Everything that takes a lock, on a thread that the callback waits for. */
static void *use_everything(void *unused) {
    (void)unused;
    ductile_addr addr = take_granules(4, 1);
    give(addr);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_ok(set_limit(f.allocator, 20 * GRANULE));
    assert_ok(ductile_check(f.allocator, NULL, 0));
    return NULL;
}

static void wait_for_another(void *user, ductile_allocator *a, const ductile_map_event *e) {
    static _Thread_local bool is_inside;
    bool *done = user;
    (void)a;
    (void)e;
    if (*done || is_inside) {
        return;
    }
    *done = true;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, use_everything, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

/* Once with the window of a plan mapped and unpublished, once with its donors leaving, once in a
 * trim. The limit that the other thread sets is the limit afterwards. */
Test(announce, another_thread_can_allocate_trim_and_check_inside) {
    bool done = false;
    s.beside = wait_for_another;
    s.user = &done;
    ductile_addr blocks[8];
    for (size_t i = 0; i < 8; i++) {
        blocks[i] = take_granules(1, 0);
        done = i != 3; /* once on the way */
    }
    for (size_t i = 0; i < 8; i += 2) {
        give(blocks[i]);
    }
    done = false;
    ductile_addr large = take_granules(4, 0);
    cr_assert(done);
    assert_fine(shadow_is_true(&s, f.allocator));
    ductile_addr none = 0;
    ductile_addr more = take_granules(10, 0); /* 18 granules are live */
    assert_status(ductile_alloc(f.allocator, 10 * GRANULE, f.streams[0], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    give(more);
    give(large);
    assert_ok(set_limit(f.allocator, 0));
    done = false;
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    cr_assert(done);
    done = true;
    assert_fine(shadow_is_true(&s, f.allocator));
    assert_ok(ductile_check(f.allocator, NULL, 0));
}

/* ---- Pools --------------------------------------------------------------------------------- */

static const ductile_pool_id POOL = {5, 6};

static ductile_addr take_in_pool(uint64_t granules) {
    assert_ok(ductile_pool_begin(f.allocator, POOL, NULL, NULL));
    ductile_addr addr = take_granules(granules, 0);
    assert_ok(ductile_pool_end(f.allocator, POOL));
    assert_ok(ductile_pool_release(f.allocator, POOL));
    return addr;
}

static ductile_map_event latest;

static void keep_latest(void *user, ductile_allocator *a, const ductile_map_event *e) {
    (void)user;
    (void)a;
    latest = *e;
}

Test(announce, an_event_says_whose_memory_it_is) {
    s.beside = keep_latest;
    make_plain_pool(POOL);
    ductile_addr block = take_in_pool(1);
    cr_assert(latest.address == block && latest.size == GRANULE && latest.handle != 0);
    cr_assert_eq(latest.stream, f.streams[0]);
    cr_assert(latest.pool.first == POOL.first && latest.pool.second == POOL.second);
    uint64_t handle = latest.handle;
    assert_ok(ductile_sleep(f.allocator, POOL, DUCTILE_CONTENTS_DROP));
    cr_assert(latest.change == DUCTILE_MAP_LEAVING && latest.handle == handle);
    cr_assert(latest.stream == f.streams[0] && latest.pool.second == POOL.second);
    assert_ok(ductile_wake(f.allocator, POOL));
    cr_assert(latest.change == DUCTILE_MAP_MAPPED && latest.address == block);
    give(take_granules(1, 1));
    cr_assert_eq(latest.stream, f.streams[1]);
    cr_assert(latest.pool.first == 0 && latest.pool.second == 0);
}

static void unpin_once(void *user, ductile_allocator *a, const ductile_map_event *e) {
    ductile_addr *pinned = user;
    (void)e;
    if (*pinned != 0) {
        assert_ok(ductile_unpin(a, *pinned));
        *pinned = 0;
    }
}

/* It was not said to leave, so it stays. */
Test(announce, what_is_unpinned_while_a_sleep_tells_stays) {
    make_plain_pool(POOL);
    ductile_addr block = take_in_pool(1);
    ductile_addr pinned = take_in_pool(2);
    ductile_addr pin = pinned;
    assert_ok(ductile_pin(f.allocator, pinned));
    s.user = &pin;
    s.beside = unpin_once;
    assert_ok(ductile_sleep(f.allocator, POOL, DUCTILE_CONTENTS_DROP));
    cr_assert_eq(pin, 0);
    cr_assert_eq(s.n_left, 1);
    assert_fine(shadow_is_true(&s, f.allocator));
    assert_ok(ductile_wake(f.allocator, POOL));
    assert_fine(shadow_covers(&s, block, GRANULE));
    assert_fine(shadow_is_true(&s, f.allocator));
    /* It leaves the next time. */
    assert_ok(ductile_sleep(f.allocator, POOL, DUCTILE_CONTENTS_DROP));
    cr_assert_eq(s.n_left, 1 + 3);
    assert_fine(shadow_is_true(&s, f.allocator));
}

static sem_t is_leaving;
static sem_t may_go_on;

static void stop_in_leaving(void *user, ductile_allocator *a, const ductile_map_event *e) {
    bool *once = user;
    (void)a;
    if (e->change == DUCTILE_MAP_LEAVING && !*once) {
        *once = true;
        (void)sem_post(&is_leaving);
        (void)sem_wait(&may_go_on);
    }
}

static void *take_the_rest(void *out) {
    *(ductile_addr *)out = take_granules(24, 1);
    return NULL;
}

static void *sleep_pool(void *out) {
    *(ductile_status *)out = ductile_sleep(f.allocator, POOL, DUCTILE_CONTENTS_DROP);
    (void)sem_post(&is_leaving);
    return NULL;
}

/* The pool's free memory is on its way to another stream when the pool is put to sleep. */
Test(announce, a_sleep_waits_for_plans_that_take_of_the_pool) {
    bool once = false;
    ductile_addr large = 0;
    ductile_status slept = DUCTILE_ERR_BUSY;
    pthread_t taker;
    pthread_t sleeper;
    make_plain_pool(POOL);
    ductile_addr kept = take_in_pool(8);
    ductile_addr freed = take_in_pool(16);
    give(freed);
    give(take_in_pool(1)); /* marks what was freed */
    assert_fine(fixture_sync_all(&f));
    (void)sem_init(&is_leaving, 0, 0);
    (void)sem_init(&may_go_on, 0, 0);
    s.user = &once;
    s.beside = stop_in_leaving;
    cr_assert_eq(pthread_create(&taker, NULL, take_the_rest, &large), 0);
    (void)sem_wait(&is_leaving);
    cr_assert_eq(pthread_create(&sleeper, NULL, sleep_pool, &slept), 0);
    (void)usleep(100000);
    cr_assert_neq(sem_trywait(&is_leaving), 0, "the pool fell asleep under a plan");
    (void)sem_post(&may_go_on);
    cr_assert_eq(pthread_join(taker, NULL), 0);
    cr_assert_eq(pthread_join(sleeper, NULL), 0);
    assert_ok(slept);
    cr_assert_neq(large, 0);
    assert_fine(shadow_is_true(&s, f.allocator));
    assert_ok(ductile_check(f.allocator, NULL, 0));
    give(large);
    assert_ok(ductile_wake(f.allocator, POOL));
    assert_fine(shadow_covers(&s, kept, 8 * GRANULE));
}
