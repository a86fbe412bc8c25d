/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work of the virtual GPU completes when its schedule says so, and never out of order. What events,
 * waits and an unmap mean is in claims.txt and in rows of tests/conformance.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"
#include "tests/support/rng.h"

static device_fixture r;

/* ---- At random ----------------------------------------------------------------------------- */

/* How often it was asked until it was done. */
static int queries_of(dvmm_event event) {
    int n = 1;
    while (dvmm_event_query(r.d, event) == DUCTILE_ERR_NOT_READY) {
        cr_assert(n++ < 400, "not done after %d queries", n);
    }
    return n;
}

Test(virtual_order, random_work_is_done_sooner_or_later) {
    int n_early = 0;
    device_open_scheduled(&r, DUCTILE_SCHEDULE_RANDOM, 0, 5);
    ductile_stream stream = device_stream(&r);
    dvmm_event event = device_event(&r);
    for (int i = 0; i < 100; i++) {
        assert_ok(dvmm_event_record(r.d, event, stream));
        n_early += queries_of(event) == 1;
    }
    cr_assert(n_early > 20 && n_early < 80, "%d of 100 were done at once", n_early);
    device_abandon(&r);
}

Test(virtual_order, an_event_of_the_context_is_done_as_soon_as_the_dice_say_so_of_each_stream) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_RANDOM, 0, 11);
    dvmm_event event = device_event(&r);
    for (int i = 0; i < 64; i++) {
        assert_ok(ductile_virtual_launch(r.gpu, device_stream(&r), NULL, 0));
    }
    assert_ok(dvmm_context_record(r.d, event));
    cr_expect_gt(queries_of(event), 1, "64 streams were done at once");
    device_abandon(&r);
}

/* ---- Any order ----------------------------------------------------------------------------- */

/* Random waits between random streams: whatever the schedule, syncing all ends, and every event
 * that was recorded before a completed one in the same stream is complete. */
static void churn_streams(ductile_schedule schedule, uint64_t lag) {
    enum { STREAMS = 8, EVENTS = 64, STEPS = 5000 };
    device_open_scheduled(&r, schedule, lag, 11);
    ductile_stream streams[STREAMS];
    dvmm_event events[EVENTS];
    uint64_t recorded_at[EVENTS] = {0}; /* step; 0: never */
    size_t recorded_on[EVENTS] = {0};
    rng random = rng_seeded(3);
    for (size_t i = 0; i < STREAMS; i++) {
        streams[i] = device_stream(&r);
    }
    for (size_t i = 0; i < EVENTS; i++) {
        events[i] = device_event(&r);
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
        assert_ok(bench_stream_query(r.d, streams[i]));
        assert_ok(dvmm_stream_destroy(r.d, streams[i]));
    }
    for (size_t i = 0; i < EVENTS; i++) {
        assert_ok(dvmm_event_destroy(r.d, events[i]));
    }
    device_close(&r);
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
