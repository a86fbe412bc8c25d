/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: a stand-in for the driver that takes an event only on streams of the event's own
 * context, as the driver does. An event on a stream of another GPU is recorded behind an event of
 * theirs, on a stream of ours. A stream of another context is not ours; one of a green context is,
 * if the driver is new enough to tell.
 */
#include "tests/fake_cuda/open_fake.h"

TestSuite(driver_cuda_foreign, .init = open_fake, .fini = close_fake);

Test(driver_cuda_foreign, an_event_is_recorded_behind_another_contexts_stream) {
    dvmm_event event = NULL;
    cr_assert_eq(ops->event_create(ctx, &event), DVMM_SUCCESS);
    for (int i = 1; i <= 2; i++) {
        cr_assert_eq(ops->event_record(ctx, event, FAKE_FOREIGN_STREAM), DVMM_SUCCESS);
        cr_assert_eq(fake->foreign_waits, i);
        cr_assert_eq(fake->behind_waits, i);
        cr_assert_eq(fake->events, 1, "their event is still there");
        cr_assert_eq(fake->streams, 1, "one stream serves all of them");
        cr_assert_null(fake->current);
    }
    cr_assert_eq(ops->event_destroy(ctx, event), DVMM_SUCCESS);
}

/* It fails wherever it may: the error comes through, and nothing is left but the stream. */
Test(driver_cuda_foreign, an_event_that_cannot_be_recorded_there_is_not) {
    static const char *const steps[] = {"cuStreamGetCtx", "cuEventCreate", "cuEventRecord",
                                        "cuStreamCreate", "cuStreamWaitEvent"};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        dvmm_event event = NULL;
        int expected = i == 0 ? DVMM_INVALID_HANDLE : DVMM_OUT_OF_MEMORY;
        cr_assert_eq(ops->event_create(ctx, &event), DVMM_SUCCESS);
        plan_failure(steps[i], DVMM_OUT_OF_MEMORY);
        cr_assert_eq(ops->event_record(ctx, event, FAKE_FOREIGN_STREAM), expected, "%s", steps[i]);
        fake->failing = NULL;
        cr_assert_eq(fake->events, 1, "%s left an event", steps[i]);
        cr_assert_null(fake->current, "%s left a context", steps[i]);
        cr_assert_eq(ops->event_destroy(ctx, event), DVMM_SUCCESS);
    }
}

/* The context of theirs is the second that is made current: the first is ours. */
Test(driver_cuda_foreign, an_event_is_not_recorded_where_their_context_cannot_be_entered) {
    dvmm_event event = NULL;
    cr_assert_eq(ops->event_create(ctx, &event), DVMM_SUCCESS);
    plan_failure("cuCtxPushCurrent", DVMM_OUT_OF_MEMORY);
    fake->fail_from = 1;
    cr_assert_eq(ops->event_record(ctx, event, FAKE_FOREIGN_STREAM), DVMM_OUT_OF_MEMORY);
    fake->failing = NULL;
    cr_assert_eq(fake->events, 1);
    cr_assert_null(fake->current);
    cr_assert_eq(ops->event_destroy(ctx, event), DVMM_SUCCESS);
}

/* A stream of ours that the driver does not take is no foreign one. */
Test(driver_cuda_foreign, an_invalid_stream_of_ours_is_told_so_and_nothing_is_recorded_elsewhere) {
    dvmm_event event = NULL;
    ductile_stream stream = NULL;
    cr_assert_eq(ops->stream_create(ctx, &stream), DVMM_SUCCESS);
    cr_assert_eq(ops->event_create(ctx, &event), DVMM_SUCCESS);
    plan_failure("cuEventRecord", DVMM_INVALID_HANDLE);
    cr_assert_eq(ops->event_record(ctx, event, stream), DVMM_INVALID_HANDLE);
    cr_assert_eq(ops->event_record(ctx, event, FAKE_STREAM_OF_NONE), DVMM_INVALID_HANDLE);
    fake->failing = NULL;
    cr_assert_eq(fake->foreign_waits, 0);
    cr_assert_eq(fake->events, 1);
    cr_assert_eq(ops->event_destroy(ctx, event), DVMM_SUCCESS);
    cr_assert_eq(ops->stream_destroy(ctx, stream), DVMM_SUCCESS);
}

/* Its stream is left to the context's end: there is no way to reach it. */
Test(driver_cuda_foreign, a_close_that_cannot_enter_the_context_still_closes) {
    dvmm_event event = NULL;
    cr_assert_eq(ops->event_create(ctx, &event), DVMM_SUCCESS);
    cr_assert_eq(ops->event_record(ctx, event, FAKE_FOREIGN_STREAM), DVMM_SUCCESS);
    cr_assert_eq(ops->event_destroy(ctx, event), DVMM_SUCCESS);
    plan_failure("cuCtxPushCurrent", DVMM_ILLEGAL_STATE);
    dvmm_close(driver);
    cr_assert_eq(fake->contexts, 0);
    cr_assert_eq(fake->streams, 1);
    fake->streams = 0;
    fake->failing = NULL;
    driver = NULL; /* close_fake has nothing left to close */
}

/* ---- Whose a stream is ---------------------------------------------------------------------- */

static void expect_ours(ductile_stream stream, bool expected) {
    int is_ours = !expected;
    cr_assert_eq(ops->stream_is_ours(ctx, stream, &is_ours), DVMM_SUCCESS);
    cr_assert_eq(is_ours, expected);
    cr_assert_eq(dvmm_stream_is_ours(driver, stream), expected);
}

Test(driver_cuda_foreign, a_stream_of_a_green_context_is_ours_and_one_of_another_context_is_not) {
    ductile_stream stream = NULL;
    cr_assert_eq(ops->stream_create(ctx, &stream), DVMM_SUCCESS);
    expect_ours(stream, true);
    expect_ours(FAKE_GREEN_STREAM, true);
    expect_ours(FAKE_FOREIGN_STREAM, false);
    cr_assert_eq(ops->stream_destroy(ctx, stream), DVMM_SUCCESS);
}

Test(driver_cuda_foreign, a_stream_is_not_ours_when_asking_fails) {
    int is_ours = 1;
    plan_failure("cuStreamGetCtx_v2", DVMM_INVALID_VALUE);
    cr_assert_eq(ops->stream_is_ours(ctx, FAKE_GREEN_STREAM, &is_ours), DVMM_INVALID_VALUE);
    cr_assert(!is_ours);
    cr_assert(!dvmm_stream_is_ours(driver, FAKE_GREEN_STREAM));
    cr_assert(dvmm_stream_is_ours(driver, NULL));
    fake->failing = NULL;
}

/* The library is searched once in a process: what it lacks is planned before it is opened. */
TestSuite(driver_cuda_old, .init = load_fake, .fini = close_fake);

Test(driver_cuda_old, a_stream_of_a_green_context_is_not_known_for_ours) {
    ductile_stream stream = NULL;
    fake->hidden = "cuStreamGetCtx_v2";
    open_driver();
    cr_assert_eq(ops->stream_create(ctx, &stream), DVMM_SUCCESS);
    expect_ours(stream, true);
    expect_ours(FAKE_GREEN_STREAM, false);
    expect_ours(FAKE_FOREIGN_STREAM, false);
    cr_assert_eq(ops->stream_destroy(ctx, stream), DVMM_SUCCESS);
}
