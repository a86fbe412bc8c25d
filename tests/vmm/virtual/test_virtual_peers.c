/* SPDX-License-Identifier: Apache-2.0 */
/* Work of another device of the machine reaches what is open to that device. What waits for it is
 * in claims.txt. */
#include "tests/support/rig.h"

static rig r;
static ductile_addr at; /* one granule, open to both devices */
static ductile_stream own, theirs;

static void open_machine(ductile_schedule schedule) {
    static const int both[] = {0, 1};
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.n_devices = 2;
    options.schedule = schedule;
    options.lag = 3;
    options.seed = 11;
    rig_open(&r, &options);
    at = rig_row(&r, 1);
    assert_ok(dvmm_set_access_for(r.d, at, r.granule, DVMM_ACCESS_RW, both, 2));
    own = rig_stream(&r);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 1, &theirs));
}

static void work(ductile_stream stream) {
    const ductile_virtual_use one = {at, 4096, 1};
    assert_ok(ductile_virtual_launch(r.gpu, stream, &one, 1));
}

static void unmap(void) {
    assert_ok(dvmm_unmap(r.d, at, r.granule));
}

static void saw_early_unmap(bool is_so) {
    assert_u64(ductile_virtual_violations_of(r.gpu, DUCTILE_VIOLATION_EARLY_UNMAP), is_so);
    assert_u64(rig_state(&r).violations, is_so);
}

Test(virtual_peers, they_reach_what_is_open_to_them) {
    uint8_t byte = 0;
    static const int peer[] = {1};
    open_machine(DUCTILE_SCHEDULE_EAGER);
    ductile_addr closed = rig_row(&r, 1);
    assert_status(dvmm_fill(r.d, closed, 1, 4096, theirs), DUCTILE_ERR_DRIVER);
    assert_status(dvmm_copy(r.d, at, closed, 4096, theirs), DUCTILE_ERR_DRIVER);
    assert_status(dvmm_upload(r.d, closed, &byte, 1, theirs), DUCTILE_ERR_DRIVER);
    assert_status(dvmm_read_back(r.d, &byte, closed, 1, theirs), DUCTILE_ERR_DRIVER);
    assert_ok(dvmm_fill(r.d, closed, 1, 4096, own));
    assert_ok(dvmm_set_access_for(r.d, closed, r.granule, DVMM_ACCESS_READ, peer, 1));
    assert_ok(dvmm_copy(r.d, at, closed, 4096, theirs));
    assert_status(dvmm_fill(r.d, closed, 1, 4096, theirs), DUCTILE_ERR_DRIVER);
    work(theirs);
    assert_ok(dvmm_stream_sync(r.d, theirs));
    const ductile_virtual_use one = {closed, 4096, 1};
    ductile_status status = ductile_virtual_launch(r.gpu, theirs, &one, 1);
    status = status == DUCTILE_OK ? dvmm_stream_sync(r.d, theirs) : status;
    assert_status(status, DUCTILE_ERR_DEVICE_LOST);
    rig_abandon(&r);
}

Test(virtual_peers, machine_has_only_so_many_devices) {
    ductile_stream none = theirs;
    open_machine(DUCTILE_SCHEDULE_EAGER);
    assert_status(ductile_virtual_stream_create_on(r.gpu, 2, &none), DUCTILE_ERR_NO_DEVICE);
    cr_assert_null(none);
    assert_status(ductile_virtual_stream_create_on(r.gpu, -1, &none), DUCTILE_ERR_NO_DEVICE);
    assert_status(ductile_virtual_stream_create_on(NULL, 1, &none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_virtual_stream_create_on(r.gpu, 1, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_virtual_stream_create_on(r.gpu, 0, &none)); /* one like any of ours */
    work(none);
    assert_ok(dvmm_context_sync(r.d));
    unmap();
    saw_early_unmap(false);
    rig_abandon(&r);
}
