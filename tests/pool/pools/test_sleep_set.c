/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tags of pools, and what map callbacks are told of sets that sleep and wake. Which pools are in a
 * set, what becomes of them and of their contents is tests/scenarios/sleep.txt.
 */
#include "pool/base/allocator.h"
#include "tests/support/one_fixture.h"
#include "vmm/driver/driver.h"

#include <ductile_sleep.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#define assert_text(got, expected) cr_assert_str_eq(got, expected, "%s", got)

static const ductile_pool_id DEFAULT = {0, 0};
static const ductile_pool_id WEIGHTS = {1, 0};
static const ductile_pool_id CACHE = {2, 0};
enum { N_POOLS = 3 };

static ductile_addr take_in(ductile_pool_id pool, uint64_t size) {
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    ductile_addr block = take(size, 0);
    assert_ok(ductile_pool_end(f.allocator, pool));
    return block;
}

/* A block in each. */
static void open_all(void) {
    open_fixture(&(fixture_setup){
        .capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2});
    (void)take(3 * MIB, 0);
    (void)take_in(WEIGHTS, 3 * MIB);
    (void)take_in(CACHE, 3 * MIB);
    assert_ok(ductile_pool_set_tag(f.allocator, WEIGHTS, "weights", DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_pool_set_tag(f.allocator, CACHE, "cache", DUCTILE_CONTENTS_DROP));
}

TestSuite(sleep_set, .init = open_all, .fini = close_audited);

static ductile_pool_info info_of(ductile_pool_id id) {
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_ok(ductile_list_pools(f.allocator, &id, &info, 1, NULL));
    return info;
}

Test(sleep_set, a_refusal_always_says_something) {
    const ductile_sleep_request too_large = {.struct_size = sizeof too_large + 1};
    ductile_sleep_report r = {.struct_size = sizeof r};
    assert_status(ductile_sleep_set(f.allocator, NULL, &r), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_neq(r.message[0], '\0');
    r = (ductile_sleep_report){.struct_size = sizeof r};
    assert_status(ductile_wake_set(f.allocator, &too_large, &r), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_neq(r.message[0], '\0');
}

Test(sleep_set, a_tag_is_set_while_its_pool_is_awake) {
    ductile_allocator *a = f.allocator;
    char longest[DUCTILE_TAG_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    longest[DUCTILE_TAG_BYTES] = '\0';
    assert_status(ductile_pool_set_tag(a, CACHE, longest, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    longest[DUCTILE_TAG_BYTES - 1] = '\0';
    assert_ok(ductile_pool_set_tag(a, DEFAULT, longest, DUCTILE_CONTENTS_DROP));
    assert_text(info_of(DEFAULT).tag, longest);
    assert_u64(info_of(DEFAULT).policy, DUCTILE_CONTENTS_DROP);
    assert_ok(ductile_pool_set_tag(a, DEFAULT, NULL, DUCTILE_CONTENTS_POLICY));
    assert_text(info_of(DEFAULT).tag, "");
    assert_ok(ductile_sleep(a, CACHE, DUCTILE_CONTENTS_POLICY));
    assert_status(ductile_pool_set_tag(a, CACHE, "other", 0), DUCTILE_ERR_ASLEEP);
    assert_ok(ductile_wake(a, CACHE));
}

static void *sleep_default(void *unused) {
    assert_ok(ductile_sleep(f.allocator, DEFAULT, DUCTILE_CONTENTS_DROP));
    return unused;
}

/* In the middle of a hit: once, another thread begins to put the pool to sleep that it is served
 * from. */
static void sleep_meanwhile(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)call, (void)code, (void)address, (void)size;
    dvmm_set_trace(f.allocator->driver, NULL, NULL, false);
    cr_assert_eq(pthread_create(user, NULL, sleep_default, NULL), 0);
    while (info_of(DEFAULT).state != DUCTILE_POOL_FALLING_ASLEEP) {
        (void)sched_yield();
    }
}

/* The late thread has seen no route before the sleep began, and is served from the quick path. */
Test(sleep_set, a_hit_that_began_before_the_sleep_gets_nothing_that_sleeps) {
    pthread_t sleeper;
    ductile_addr late = 0, used = take(512, 0);
    fill(used, 1, 512, 1);
    assert_ok(ductile_free_ex(f.allocator, used, &f.streams[1], 1, NULL));
    for (int i = 0; i < 4; i++) { /* pending: the 1st, 2nd, 4th and 8th hit from here polls */
        dvmm_set_trace(f.allocator->driver, i == 3 ? sleep_meanwhile : NULL, &sleeper, true);
        (void)take(512, 0);
    }
    cr_assert_eq(pthread_join(sleeper, NULL), 0);
    atomic_store(&f.allocator->has_routes, false);
    assert_status(ductile_alloc(f.allocator, 512, f.streams[0], &late), DUCTILE_ERR_ASLEEP);
    atomic_store(&f.allocator->has_routes, true);
    assert_ok(ductile_wake(f.allocator, DEFAULT));
}

static uint64_t heard[2][N_POOLS]; /* by change and pool: bytes */
static bool tags_are_right;

static void hear(void *user, ductile_allocator *allocator, const ductile_map_event *event) {
    static const char *const tags[N_POOLS] = {"", "weights", "cache"};
    (void)user, (void)allocator;
    heard[event->change][event->pool.first] += event->size;
    tags_are_right &= strcmp(event->tag, tags[event->pool.first]) == 0;
}

Test(sleep_set, map_callbacks_hear_of_each_range_with_its_tag) {
    uint64_t id = 0, left = 0;
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    ductile_sleep_report report = {.struct_size = sizeof report};
    tags_are_right = true;
    assert_ok(ductile_add_map_callback(f.allocator, hear, NULL, 0, &id));
    assert_ok(ductile_sleep_set(f.allocator, &all, &report));
    for (size_t i = 0; i < N_POOLS; i++) {
        cr_assert_gt(heard[DUCTILE_MAP_LEAVING][i], 0);
        left += heard[DUCTILE_MAP_LEAVING][i];
    }
    assert_u64(left, report.bytes);
    assert_ok(ductile_wake_set(f.allocator, &all, &report));
    for (size_t i = 0; i < N_POOLS; i++) {
        assert_u64(heard[DUCTILE_MAP_MAPPED][i], heard[DUCTILE_MAP_LEAVING][i]);
    }
    cr_assert(tags_are_right);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
}

static char told[DUCTILE_TAG_BYTES];

static void rename_pool(void *user, ductile_allocator *allocator, const ductile_map_event *event) {
    (void)user;
    assert_ok(ductile_pool_set_tag(allocator, event->pool, "renamed", DUCTILE_CONTENTS_DROP));
    if (told[0] == '\0') { /* of the first handle */
        (void)strncpy(told, event->tag, sizeof told - 1);
    }
}

Test(sleep_set, the_tag_of_an_event_stays_while_a_callback_sees_it) {
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(f.allocator, rename_pool, NULL, 0, &id));
    (void)take_in(CACHE, 4 * MIB);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    assert_text(told, "cache");
    assert_text(info_of(CACHE).tag, "renamed");
}
