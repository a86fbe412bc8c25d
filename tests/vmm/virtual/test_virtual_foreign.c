/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of another context of this device, which the seam tells from ours. What covers their work
 * is in claims.txt. */
#include "tests/support/detection.h"

static ductile_stream foreign_stream(void) {
    ductile_stream stream = NULL;
    assert_ok(ductile_virtual_stream_create_foreign(r.gpu, &stream));
    return stream;
}

static uint64_t n_asked(void) {
    return ductile_virtual_count(r.gpu, "stream_is_ours");
}

Test(foreign_stream, is_told_from_ours) {
    ductile_stream blocking = NULL;
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_ok(ductile_virtual_stream_create_blocking(r.gpu, &blocking));
    cr_assert(dvmm_stream_is_ours(r.d, s1));
    cr_assert(dvmm_stream_is_ours(r.d, blocking));
    cr_assert(!dvmm_stream_is_ours(r.d, foreign_stream()));
    assert_u64(n_asked(), 3);
    rig_abandon(&r);
}

Test(foreign_stream, is_no_default_stream_which_nobody_asks_for) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    for (uintptr_t stream = 0; stream <= 2; stream++) {
        cr_assert(dvmm_stream_is_ours(r.d, (ductile_stream)stream));
    }
    assert_u64(n_asked(), 0);
    rig_abandon(&r);
}

Test(foreign_stream, is_every_stream_of_another_device) {
    ductile_stream theirs = NULL;
    rig_open_devices(&r, 2);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
    cr_assert(!dvmm_stream_is_ours(r.d, theirs));
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 0, &theirs));
    cr_assert(dvmm_stream_is_ours(r.d, theirs));
    rig_abandon(&r);
}

Test(foreign_stream, is_every_stream_when_the_driver_cannot_tell) {
    ductile_virtual_fault fault = {
        .struct_size = sizeof(fault), .call = "stream_is_ours", .nth = 1, .code = DVMM_UNKNOWN};
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    for (fault.effect = 0; fault.effect <= 1; fault.effect++) {
        assert_ok(ductile_virtual_inject(r.gpu, &fault));
        cr_assert(!dvmm_stream_is_ours(r.d, s1), "effect %d", fault.effect);
        cr_assert(dvmm_stream_is_ours(r.d, s1));
    }
    rig_abandon(&r);
}

Test(foreign_stream, is_one_that_does_not_exist_and_a_misuse) {
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_ok(dvmm_stream_destroy(r.d, s1));
    cr_assert(!dvmm_stream_is_ours(r.d, s1));
    saw_one(DUCTILE_VIOLATION_MISUSE);
    rig_abandon(&r);
}

Test(foreign_stream, cannot_be_created_without_a_place_for_it) {
    ductile_stream none = (ductile_stream)1;
    open_detecting(DUCTILE_SCHEDULE_EAGER);
    assert_status(ductile_virtual_stream_create_foreign(NULL, &none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_foreign(r.gpu, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    rig_abandon(&r);
}
