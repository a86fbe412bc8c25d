/* SPDX-License-Identifier: Apache-2.0 */
/* The probe of what an option needs of the device: it says which call failed, takes a full device
 * for one that may be able to, and leaves nothing behind that the driver let go of. */
#include "tests/support/rig.h"
#include "vmm/export.h"

#include <stdio.h>
#include <string.h>

static rig r;
static char reason[512];

static void open_rig(void) {
    rig_open(&r, NULL);
    reason[0] = '\0';
}

TestSuite(probe_props, .init = open_rig);

static ductile_status probe(void) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    return dvmm_probe_props(r.d, &props, reason, sizeof reason);
}

static ductile_status probe_with(const char *call, int code) {
    rig_fail(&r, call, 1, code);
    ductile_status status = probe();
    rig_mend(&r);
    return status;
}

Test(probe_props, what_works_is_fine_and_leaves_nothing) {
    assert_ok(probe());
    cr_assert_str_empty(reason);
    rig_close(&r);
}

static const char *const steps[] = {"address_reserve", "phys_create", "map",
                                    "set_access",      "get_access",  "phys_export"};
#define N_STEPS (sizeof steps / sizeof steps[0])

Test(probe_props, each_call_that_is_refused_is_named) {
    static const char *const names[N_STEPS] = {
        "cuMemAddressReserve", "cuMemCreate",    "cuMemMap",
        "cuMemSetAccess",      "cuMemGetAccess", "cuMemExportToShareableHandle"};
    for (size_t i = 0; i < N_STEPS; i++) {
        assert_status(probe_with(steps[i], DVMM_NOT_SUPPORTED), DUCTILE_ERR_UNSUPPORTED);
        cr_assert_not_null(strstr(reason, names[i]), "%s: %s", steps[i], reason);
    }
    rig_close(&r);
}

Test(probe_props, a_device_that_is_full_may_still_support_it) {
    for (size_t i = 0; i < N_STEPS; i++) {
        assert_ok(probe_with(steps[i], DVMM_OUT_OF_MEMORY));
    }
    rig_close(&r);
}

/* Nothing more is known of it: not "unsupported", which a caller may take for an answer. */
Test(probe_props, a_lost_device_is_not_taken_for_one_that_cannot) {
    assert_status(probe_with("phys_export", DVMM_ILLEGAL_ADDRESS), DUCTILE_ERR_DEVICE_LOST);
    rig_abandon(&r);
}

Test(probe_props, the_first_failure_is_told_when_undoing_fails_too) {
    rig_fail_on(&r, NULL, 4, DVMM_UNKNOWN); /* set_access, and all that undoes */
    assert_status(probe(), DUCTILE_ERR_UNSUPPORTED);
    cr_assert_not_null(strstr(reason, "cuMemSetAccess"), "%s", reason);
    rig_mend(&r);
    rig_abandon(&r);
}
