/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work of the virtual GPU: it completes when its schedule says so and never out of order, and work
 * that finds its memory gone poisons the device. What events, waits and an unmap mean, and what a
 * poisoned device still does, are rows of tests/conformance.
 */
#include "tests/support/rig.h"
#include "tests/support/rng.h"

#include <pthread.h>

static rig r;
static ductile_stream a, b;
static dvmm_event event;

/* Two streams and an event on a device of that schedule. */
static void open_scheduled(ductile_schedule schedule, uint64_t lag) {
    rig_open_scheduled(&r, schedule, lag, 5);
    a = rig_stream(&r);
    b = rig_stream(&r);
    event = rig_event(&r);
}

static void open_eager(void) {
    open_scheduled(DUCTILE_SCHEDULE_EAGER, 0);
}

static void open_lazy(void) {
    open_scheduled(DUCTILE_SCHEDULE_LAZY, 0);
}

static void close_rig(void) {
    if (r.gpu == NULL) {
        return;
    }
    assert_ok(dvmm_event_destroy(r.d, event));
    assert_ok(dvmm_stream_destroy(r.d, a));
    assert_ok(dvmm_stream_destroy(r.d, b));
    rig_close(&r);
}

TestSuite(virtual_streams, .fini = close_rig);

/* ---- Schedules ----------------------------------------------------------------------------- */

Test(virtual_streams, random_work_is_done_sooner_or_later) {
    open_scheduled(DUCTILE_SCHEDULE_RANDOM, 0);
    uint64_t n_early = 0;
    for (int i = 0; i < 100; i++) {
        assert_ok(dvmm_event_record(r.d, event, a));
        ductile_status first = dvmm_event_query(r.d, event);
        n_early += first == DUCTILE_OK;
        for (int tries = 0; first != DUCTILE_OK && tries < 200; tries++) {
            first = dvmm_event_query(r.d, event);
        }
        assert_ok(first);
    }
    cr_assert(n_early > 20 && n_early < 80, "%llu of 100 were done at once",
              (unsigned long long)n_early);
}

/* ---- Streams ------------------------------------------------------------------------------- */

/* As on hardware, where a cache keyed on the handle then mixes two streams. */
Test(virtual_streams, handle_of_a_destroyed_stream_is_refused_and_reused, .init = open_eager) {
    ductile_stream first = rig_stream(&r);
    assert_ok(dvmm_stream_destroy(r.d, first));
    assert_code(RAW(&r, stream_sync, first), DVMM_INVALID_HANDLE);
    ductile_stream second = rig_stream(&r);
    cr_assert_eq(first, second);
    assert_ok(dvmm_stream_destroy(r.d, second));
}

static const uintptr_t LEGACY = 1;
static const uintptr_t PER_THREAD = 2;

static ductile_status query(uintptr_t handle) {
    return dvmm_stream_query(r.d, (ductile_stream)handle);
}

static void *query_per_thread(void *out) {
    *(ductile_status *)out = query(PER_THREAD);
    return NULL;
}

static ductile_status query_per_thread_of_another(void) {
    ductile_status answer = DUCTILE_ERR_DRIVER;
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, query_per_thread, &answer), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    return answer;
}

Test(virtual_streams, each_thread_has_a_default_stream_of_its_own, .init = open_lazy) {
    ductile_addr addr = rig_row(&r, 1);
    assert_ok(dvmm_fill(r.d, addr, 1, r.granule, (ductile_stream)PER_THREAD));
    assert_status(query(PER_THREAD), DUCTILE_ERR_NOT_READY);
    assert_ok(query_per_thread_of_another());
    assert_ok(dvmm_stream_sync(r.d, (ductile_stream)PER_THREAD));
    rig_unrow(&r, addr, 1);
}

Test(virtual_streams, null_is_the_legacy_stream_of_all_threads, .init = open_lazy) {
    ductile_addr addr = rig_row(&r, 1);
    assert_ok(dvmm_fill(r.d, addr, 1, r.granule, NULL));
    assert_status(query(LEGACY), DUCTILE_ERR_NOT_READY);
    assert_ok(dvmm_stream_sync(r.d, (ductile_stream)LEGACY));
    assert_ok(query(0));
    rig_unrow(&r, addr, 1);
}

/* ---- Words of the host --------------------------------------------------------------------- */

static uint64_t *new_word(void) {
    void *memory = NULL;
    assert_ok(dvmm_host_alloc(r.d, 4096, &memory));
    return memory;
}

Test(virtual_streams, only_words_of_the_devices_host_memory_are_waited_for, .init = open_eager) {
    uint64_t elsewhere = 0;
    uint64_t *word = new_word();
    assert_code(RAW(&r, stream_wait_value, a, &elsewhere, 1), DVMM_INVALID_VALUE);
    assert_code(RAW(&r, stream_wait_value, a, word + 512, 1), DVMM_INVALID_VALUE);
    assert_code(RAW(&r, stream_wait_value, a, (uint64_t *)((char *)word + 4), 1),
                DVMM_INVALID_VALUE);
    assert_ok(dvmm_host_free(r.d, word));
    assert_code(RAW(&r, host_free, &elsewhere), DVMM_INVALID_VALUE);
}

Test(virtual_streams, freeing_a_word_in_use_is_a_violation, .init = open_eager) {
    uint64_t *word = new_word();
    assert_ok(dvmm_stream_wait_value(r.d, a, word, 1));
    assert_ok(dvmm_host_free(r.d, word));
    assert_u64(rig_state(&r).violations, 1);
    assert_ok(dvmm_stream_sync(r.d, a));
}

/* ---- Any order ----------------------------------------------------------------------------- */

/* Random waits between random streams: whatever the schedule, syncing all ends, and every event
 * that was recorded before a completed one in the same stream is complete. */
static void churn_streams(ductile_schedule schedule, uint64_t lag) {
    enum { STREAMS = 8, EVENTS = 64, STEPS = 5000 };
    rig_open_scheduled(&r, schedule, lag, 11);
    ductile_stream streams[STREAMS];
    dvmm_event events[EVENTS];
    uint64_t recorded_at[EVENTS] = {0}; /* step; 0: never */
    size_t recorded_on[EVENTS] = {0};
    rng random = rng_seeded(3);
    for (size_t i = 0; i < STREAMS; i++) {
        streams[i] = rig_stream(&r);
    }
    for (size_t i = 0; i < EVENTS; i++) {
        events[i] = rig_event(&r);
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
        size_t s = rng_below(&random, STREAMS);
        size_t e = rng_below(&random, EVENTS);
        if (recorded_at[e] == 0 || rng_below(&random, 2) == 0) {
            assert_ok(dvmm_event_record(r.d, events[e], streams[s]));
            recorded_at[e] = step;
            recorded_on[e] = s;
        } else {
            assert_ok(dvmm_stream_wait_event(r.d, streams[s], events[e]));
        }
        ductile_virtual_advance(r.gpu, 1);
        if (step % 100 == 0 && recorded_at[e] != 0) {
            assert_ok(dvmm_event_sync(r.d, events[e]));
        }
        for (size_t i = 0; i < EVENTS && step % 50 == 0; i++) {
            bool is_earlier = recorded_at[i] != 0 && recorded_on[i] == recorded_on[e] &&
                              recorded_at[i] < recorded_at[e];
            if (is_earlier && dvmm_event_query(r.d, events[e]) == DUCTILE_OK) {
                assert_ok(dvmm_event_query(r.d, events[i]));
            }
        }
    }
    assert_ok(dvmm_context_sync(r.d));
    for (size_t i = 0; i < STREAMS; i++) {
        assert_ok(dvmm_stream_query(r.d, streams[i]));
        assert_ok(dvmm_stream_destroy(r.d, streams[i]));
    }
    for (size_t i = 0; i < EVENTS; i++) {
        assert_ok(dvmm_event_destroy(r.d, events[i]));
    }
    rig_close(&r);
}

Test(virtual_order, work_of_a_stream_keeps_its_order_lazily) {
    churn_streams(DUCTILE_SCHEDULE_LAZY, 0);
}

Test(virtual_order, work_of_a_stream_keeps_its_order_at_random) {
    churn_streams(DUCTILE_SCHEDULE_RANDOM, 0);
}

Test(virtual_order, work_of_a_stream_keeps_its_order_with_a_lag) {
    churn_streams(DUCTILE_SCHEDULE_LAGGING, 17);
}

/* ---- Threads ------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

/* What a thread saw; asserted after joining. */
typedef struct worker {
    pthread_t thread;
    ductile_status first_failure;
} worker;

static void note(worker *w, ductile_status status) {
    if (w->first_failure == DUCTILE_OK) {
        w->first_failure = status;
    }
}

static void map_and_unmap(worker *w, ductile_addr addr, ductile_stream stream, dvmm_event mine) {
    dvmm_phys_props props = {0};
    dvmm_phys phys = 0;
    note(w, dvmm_phys_create(r.d, r.granule, &props, &phys));
    note(w, dvmm_map(r.d, addr, r.granule, phys));
    note(w, dvmm_set_access(r.d, addr, r.granule, DVMM_ACCESS_RW));
    note(w, dvmm_fill(r.d, addr, 1, r.granule, stream));
    note(w, dvmm_event_record(r.d, mine, stream));
    note(w, dvmm_event_sync(r.d, mine));
    note(w, dvmm_unmap(r.d, addr, r.granule));
    note(w, dvmm_phys_release(r.d, phys));
}

static void *work(void *argument) {
    worker *w = argument;
    ductile_addr addr = 0;
    ductile_stream stream = NULL;
    dvmm_event mine = NULL;
    note(w, dvmm_address_reserve(r.d, r.granule, &addr));
    note(w, dvmm_stream_create(r.d, &stream));
    note(w, dvmm_event_create(r.d, &mine));
    for (int i = 0; i < ROUNDS && w->first_failure == DUCTILE_OK; i++) {
        map_and_unmap(w, addr, stream, mine);
    }
    note(w, dvmm_event_destroy(r.d, mine));
    note(w, dvmm_stream_destroy(r.d, stream));
    note(w, dvmm_address_free(r.d, addr, r.granule));
    return NULL;
}

Test(virtual_order, threads_share_a_device) {
    worker workers[THREADS] = {0};
    rig_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(workers[i].thread, NULL), 0);
        assert_ok(workers[i].first_failure);
    }
    assert_u64(rig_state(&r).violations, 0);
    rig_close(&r);
}
