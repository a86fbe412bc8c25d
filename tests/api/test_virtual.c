/* SPDX-License-Identifier: Apache-2.0 */
/* The device of ductile_virtual.h as users see it. All else of it is in tests/vmm/virtual. */
#include "tests/support/one_fixture.h"

Test(virtual_device, refuses_what_no_device_has) {
    ductile_virtual_options o;
    ductile_virtual_options_init(&o);
    o.granule_bytes = 3 << 20;
    ductile_virtual_gpu *gpu = (ductile_virtual_gpu *)&o;
    assert_status(ductile_virtual_create(&gpu, &o), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_null(gpu);
    assert_status(ductile_virtual_create(NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    ductile_virtual_destroy(NULL);
}

Test(virtual_device, equal_seeds_give_equal_addresses) {
    ductile_addr addresses[2];
    for (int i = 0; i < 2; i++) {
        open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 3});
        addresses[i] = take(1000, 0);
        close_audited();
    }
    assert_u64(addresses[1], addresses[0]);
}
