/* SPDX-License-Identifier: Apache-2.0 */
/* What is tried before a device is believed to support an option: here handles that are exported as
 * descriptors. */
#include "vmm/driver/probe.h"

#include "tests/support/device_fixture.h"

#include <string.h>

static device_fixture r;
static char reason[512];

static void open_device(void) {
    device_open(&r, NULL);
}

TestSuite(probe, .init = open_device);

static ductile_status probe(void) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    reason[0] = '\0';
    return dvmm_probe_props(r.d, &props, reason, sizeof reason);
}

static void assert_unsupported(const char *names) {
    assert_status(probe(), DUCTILE_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(reason, names), "\"%s\" does not name %s", reason, names);
}

Test(probe, that_succeeds_leaves_nothing) {
    assert_ok(probe());
    cr_assert_str_empty(reason);
    device_close(&r);
}

static const struct {
    const char *call, *name;
} steps[] = {{"address_reserve", "cuMemAddressReserve"},
             {"phys_create", "cuMemCreate"},
             {"map", "cuMemMap"},
             {"set_access", "cuMemSetAccess"},
             {"get_access", "cuMemGetAccess"},
             {"phys_export", "cuMemExportToShareableHandle"}};

enum { N_STEPS = sizeof steps / sizeof *steps };

Test(probe, names_each_call_that_is_refused) {
    for (size_t i = 0; i < N_STEPS; i++) {
        device_fail(&r, steps[i].call, 1, DVMM_NOT_SUPPORTED);
        assert_unsupported(steps[i].name);
    }
    device_close(&r);
}

Test(probe, takes_a_device_that_is_full_for_one_that_may_support_it) {
    for (size_t i = 0; i < N_STEPS; i++) {
        device_fail(&r, steps[i].call, 1, DVMM_OUT_OF_MEMORY);
        assert_ok(probe());
        cr_assert_str_empty(reason);
    }
    device_close(&r);
}

/* Nothing more is known of it: not "unsupported", which a caller may take for an answer. */
Test(probe, does_not_take_a_lost_device_for_one_that_cannot) {
    device_fail(&r, "phys_export", 1, DVMM_ILLEGAL_ADDRESS);
    assert_status(probe(), DUCTILE_ERR_DEVICE_LOST);
    device_abandon(&r);
}

/* The fourth call is set_access, and all behind it undo. */
Test(probe, tells_the_first_failure_when_undoing_fails_too) {
    device_fail_from(&r, NULL, 4, DVMM_UNKNOWN);
    assert_unsupported("cuMemSetAccess");
    device_recover(&r);
    device_abandon(&r);
}
