/* SPDX-License-Identifier: Apache-2.0 */
/* Events behind all work of the context: when they are done, how the call fails, what it costs.
 * What they wait for and prove is in claims.txt. */
#include "tests/support/detection.h"

static dvmm_event record(void) {
    dvmm_event event = rig_event(&r);
    assert_ok(dvmm_context_record(r.d, event));
    return event;
}

Test(context_event, of_many_streams_is_done_as_soon_as_the_dice_say_so_of_each) {
    enum { N = 64, ROLLS = 400 };
    open_detecting(DUCTILE_SCHEDULE_RANDOM);
    for (int i = 0; i < N; i++) {
        writes(rig_stream(&r), at + (uint64_t)i * BLOCK, BLOCK);
    }
    dvmm_event event = record();
    int n = 0;
    while (dvmm_event_query(r.d, event) == DUCTILE_ERR_NOT_READY) {
        cr_assert(n++ < ROLLS, "not done after %d queries", n);
    }
    cr_expect_gt(n, 1, "64 streams were done at once");
    rig_abandon(&r);
}

Test(context_event, leaves_captures_of_another_device_alone) {
    ductile_stream theirs = NULL;
    rig_open_devices(&r, 2);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
    assert_ok(dvmm_capture_begin(r.d, theirs, DVMM_CAPTURE_GLOBAL));
    assert_ok(dvmm_context_record(r.d, rig_event(&r)));
    assert_ok(dvmm_capture_end(r.d, theirs));
    rig_abandon(&r);
}

/* ---- The call ------------------------------------------------------------------------------ */

Test(context_event, is_unsupported_on_a_driver_that_lacks_it) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    rig_open(&r, &options);
    cr_assert(dvmm_has_context_events(r.d));
    rig_abandon(&r);
    options.no_context_events = 1;
    rig_open(&r, &options);
    cr_assert(!dvmm_has_context_events(r.d));
    assert_status(dvmm_context_record(r.d, rig_event(&r)), DUCTILE_ERR_UNSUPPORTED);
    rig_abandon(&r);
}

Test(context_event, of_no_event_is_a_misuse) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_code(RAW(&r, context_record, (dvmm_event)&r), DVMM_INVALID_HANDLE);
    saw_one(DUCTILE_VIOLATION_MISUSE);
    rig_abandon(&r);
}

Test(context_event, costs_what_was_measured) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    dvmm_event event = rig_event(&r);
    uint64_t before = dvmm_clock_ns(r.d);
    assert_ok(dvmm_context_record(r.d, event));
    assert_u64(dvmm_clock_ns(r.d) - before, 200);
    rig_abandon(&r);
}

Test(context_event, fails_as_planned_and_then_proves_nothing) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof(fault), .call = "context_record", .nth = 2, .code = DVMM_UNKNOWN};
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_ok(ductile_virtual_inject(r.gpu, &fault));
    dvmm_event event = record();
    assert_status(dvmm_context_record(r.d, event), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(r.gpu), 1);
    rig_abandon(&r);
}
