/* SPDX-License-Identifier: Apache-2.0 */
/* How detection is asked for, and what it reports. What it detects is in claims.txt. */
#include "tests/support/detection.h"

#include <string.h>

Test(detection, reports_both_sides) {
    open_detecting(DUCTILE_SCHEDULE_LAZY);
    begin(at, BLOCK);
    writes(s1, at, BLOCK);
    end(at);
    begin(at, BLOCK);
    use(s2, at, 512, 0);
    use(s2, at, 512, 0);
    ductile_virtual_violation v = {.struct_size = sizeof v};
    assert_ok(ductile_virtual_get_violation(r.gpu, 0, &v));
    cr_assert_eq(v.kind, DUCTILE_VIOLATION_REUSE);
    cr_assert(v.first.stream == s1 && v.first.writes && v.first.operation == 1);
    cr_assert(v.first.address == at && v.first.size == BLOCK && v.first.block == 1);
    cr_assert(v.second.stream == s2 && !v.second.writes && v.second.operation == 1);
    cr_assert(v.second.size == 512 && v.second.block == 2 && !v.second.is_host);
    cr_assert_eq(v.first.handle, v.second.handle);
    assert_status(ductile_virtual_get_violation(r.gpu, 2, &v), DUCTILE_ERR_INVALID_ARGUMENT);
    rig_abandon(&r);
}

Test(detection, of_races_of_one_owner_is_asked_for) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.detect = 1;
    rig_open_detecting(&r, &options);
    at = rig_row(&r, 1);
    begin(at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    saw_nothing();
    rig_abandon(&r);
}

Test(detection, is_off_unless_asked_for) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    rig_open_detecting(&r, &options);
    assert_u64((unsigned)rig_state(&r).detects, 0);
    at = rig_row(&r, 1);
    begin(at, BLOCK);
    writes(rig_stream(&r), at, BLOCK);
    unmap(at);
    saw_nothing();
    rig_abandon(&r);
}

Test(detection, level_is_checked) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.detect = 3;
    ductile_virtual_gpu *gpu;
    assert_status(ductile_virtual_create(&gpu, &options), DUCTILE_ERR_INVALID_ARGUMENT);
}

Test(detection, every_kind_has_a_name) {
    for (int kind = 0; kind <= DUCTILE_VIOLATION_OVERLAP; kind++) {
        cr_assert_neq(strcmp(ductile_virtual_violation_name((ductile_violation)kind), "unknown"),
                      0);
    }
    cr_assert_str_eq(ductile_virtual_violation_name((ductile_violation)99), "unknown");
}

/* Many streams, one after the other: what the host knows is forgotten, so nothing grows. */
Test(detection, of_streams_that_come_and_go_stays_small) {
    open_detecting(DUCTILE_SCHEDULE_LAGGING);
    for (int i = 0; i < 5000; i++) {
        ductile_stream stream = rig_stream(&r);
        writes(stream, at, BLOCK);
        sync(stream);
        assert_ok(ductile_virtual_stream_destroy(r.gpu, stream));
    }
    saw_nothing();
    rig_abandon(&r);
}
