/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planned faults hit the call they are planned for and no other; their effects are in claims.txt.
 * The log and the counts say what was called.
 */
#include "tests/support/rig.h"

#include <stdio.h>
#include <string.h>

static rig r;

static void open_rig(void) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.log_calls = 4;
    rig_open(&r, &options);
}

static void close_rig(void) {
    rig_close(&r);
}

TestSuite(virtual_faults, .init = open_rig, .fini = close_rig);

static const dvmm_phys_props plain;

static void assert_fired(uint64_t n) {
    assert_u64(ductile_virtual_faults_fired(r.gpu), n);
}

/* ---- Which call ---------------------------------------------------------------------------- */

Test(virtual_faults, any_call_counts_when_none_is_named) {
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    rig_fail(&r, NULL, 2, DVMM_UNKNOWN);
    assert_ok(dvmm_address_reserve(r.d, r.granule, &addr));
    assert_status(dvmm_phys_create(r.d, r.granule, &plain, &phys), DUCTILE_ERR_DRIVER);
    assert_u64((unsigned)dvmm_last_code(), DVMM_UNKNOWN);
    assert_ok(dvmm_address_free(r.d, addr, r.granule));
    assert_fired(1);
}

Test(virtual_faults, a_persistent_fault_stays_until_cleared) {
    dvmm_phys phys = 0;
    rig_fail_on(&r, "phys_create", 1, DVMM_OUT_OF_MEMORY);
    for (int i = 0; i < 5; i++) {
        assert_status(dvmm_phys_create(r.d, r.granule, &plain, &phys), DUCTILE_ERR_OUT_OF_MEMORY);
    }
    assert_fired(5);
    rig_mend(&r);
    assert_ok(dvmm_phys_create(r.d, r.granule, &plain, &phys));
    assert_ok(dvmm_phys_release(r.d, phys));
}

Test(virtual_faults, every_call_of_the_seam_can_fail) {
    for (dvmm_call call = 0; call < DVMM_N_CALLS; call++) {
        rig_fail(&r, dvmm_call_name(call), 1, DVMM_UNKNOWN);
        assert_fired(0);
    }
    rig_mend(&r);
}

Test(virtual_faults, plans_that_mean_nothing_are_refused) {
    const ductile_virtual_fault good = {
        .struct_size = sizeof(good), .call = "map", .nth = 1, .code = DVMM_UNKNOWN};
    ductile_virtual_fault bad[] = {good, good, good, good};
    bad[0].call = "mop";
    bad[1].nth = 0;
    bad[2].code = 0;
    bad[3].effect = 3;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(ductile_virtual_inject(r.gpu, &bad[i]), DUCTILE_ERR_INVALID_ARGUMENT);
    }
    assert_ok(ductile_virtual_inject(r.gpu, &good));
    rig_mend(&r);
}

Test(virtual_faults, a_sticky_fault_poisons_the_device, .fini = NULL) {
    dvmm_phys phys = 0;
    rig_fail(&r, "phys_create", 1, DVMM_ILLEGAL_ADDRESS);
    assert_status(dvmm_phys_create(r.d, r.granule, &plain, &phys), DUCTILE_ERR_DEVICE_LOST);
    assert_u64((unsigned)rig_state(&r).poisoned, DVMM_ILLEGAL_ADDRESS);
    assert_code(RAW(&r, stream_sync, NULL), DVMM_ILLEGAL_ADDRESS);
    assert_status(ductile_virtual_launch(r.gpu, NULL, NULL, 0), DUCTILE_ERR_DEVICE_LOST);
    rig_abandon(&r);
    open_rig();
}

/* ---- What it saw --------------------------------------------------------------------------- */

Test(virtual_faults, calls_are_counted_by_name) {
    rig_unrow(&r, rig_row(&r, 3), 3);
    assert_u64(ductile_virtual_count(r.gpu, "map"), 3);
    assert_u64(ductile_virtual_count(r.gpu, "unmap"), 1);
    assert_u64(ductile_virtual_count(r.gpu, "event_query"), 0);
    assert_u64(ductile_virtual_count(r.gpu, "no_such_call"), UINT64_MAX);
    assert_u64(rig_state(&r).calls, 3 * 4 + 3);
}

Test(virtual_faults, driving_the_device_is_no_driver_call) {
    ductile_stream stream = NULL;
    assert_ok(ductile_virtual_stream_create(r.gpu, &stream));
    assert_ok(ductile_virtual_launch(r.gpu, stream, NULL, 0));
    ductile_virtual_advance(r.gpu, 5);
    assert_ok(ductile_virtual_stream_sync(r.gpu, stream));
    assert_ok(ductile_virtual_stream_destroy(r.gpu, stream));
    assert_u64(rig_state(&r).calls, 0);
    assert_u64(rig_state(&r).time_ns, 0);
}

typedef struct sink {
    char text[1000];
    size_t length;
    size_t n_writes;
    size_t end_after;
} sink;

static int take(void *user, const char *text, size_t length) {
    sink *s = user;
    memcpy(s->text + s->length, text, length);
    s->length += length;
    s->text[s->length] = '\0';
    return ++s->n_writes == s->end_after;
}

Test(virtual_faults, the_log_keeps_the_latest_calls_in_order) {
    char line[100];
    sink s = {.end_after = 0};
    ductile_addr addr = rig_row(&r, 1);
    assert_code(RAW(&r, unmap, addr, 1), DVMM_INVALID_VALUE);
    rig_unrow(&r, addr, 1);
    assert_ok(ductile_virtual_write_log(r.gpu, take, &s));
    (void)snprintf(line, sizeof(line), "6 unmap 0x%llx 1 1\n7 unmap 0x%llx %llu 0\n", addr, addr,
                   (unsigned long long)r.granule);
    cr_assert_not_null(strstr(s.text, line), "%s is not in\n%s", line, s.text);
    assert_u64(s.n_writes, 4);
    cr_assert_eq(strncmp(s.text, "5 phys_release ", 15), 0, "%s", s.text);
}

Test(virtual_faults, a_writer_can_end_the_log) {
    sink s = {.end_after = 2};
    rig_unrow(&r, rig_row(&r, 1), 1);
    assert_ok(ductile_virtual_write_log(r.gpu, take, &s));
    assert_u64(s.n_writes, 2);
}
