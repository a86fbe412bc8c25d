/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another process, mapped in a range of its own, on a machine of three devices. */
#include "segments/foreign.h"

#include "tests/support/device_fixture.h"

#include <unistd.h>

static device_fixture r;
static dvmm_handle_store store;
static dseg_foreign mapped;

/* A handle that was exported and let go of, as of a process that has ended. */
static dvmm_shared export_one(void) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    dvmm_phys phys = 0;
    dvmm_shared shared;
    assert_ok(dvmm_phys_create(r.d, 2 * r.granule, &props, &phys));
    assert_ok(dvmm_phys_export(r.d, phys, DVMM_SHARE_FD, &shared));
    assert_ok(dvmm_phys_release(r.d, phys));
    return shared;
}

static void open_mapped(void) {
    device_open_devices(&r, 3);
    dvmm_store_init(&store, r.d, r.granule, UINT64_MAX, (dvmm_phys_props){0});
    dvmm_shared shared = export_one();
    assert_ok(dseg_foreign_open(&store, 2 * r.granule, UINT64_MAX, DVMM_ACCESS_RW, &mapped));
    assert_ok(dseg_foreign_add(&store, &mapped, 2 * r.granule, &shared));
    assert_ok(dseg_foreign_grant(&store, &mapped));
    cr_assert_eq(close(shared.fd), 0);
}

static void close_mapped(void) {
    assert_ok(dseg_foreign_undo(&store, &mapped));
    dvmm_store_fini(&store);
    device_close(&r);
}

TestSuite(foreign_memory, .init = open_mapped);

static void assert_access(int first, int second, int third) {
    const int expected[] = {first, second, third};
    for (int device = 0; device < 3; device++) {
        cr_assert_eq(ductile_virtual_access(r.gpu, mapped.range.addr, device), expected[device],
                     "of device %d", device);
    }
}

Test(foreign_memory, is_the_own_devices_alone_at_first) {
    assert_access(3, 0, 0);
    close_mapped();
}

Test(foreign_memory, access_is_given_to_one_device_and_taken_from_it_alone) {
    assert_ok(dseg_foreign_set_device(&store, &mapped, 2, true));
    assert_access(3, 0, 3);
    assert_ok(dseg_foreign_set_device(&store, &mapped, 1, true));
    assert_access(3, 3, 3);
    assert_ok(dseg_foreign_set_device(&store, &mapped, 2, false));
    assert_access(3, 3, 0);
    close_mapped();
}
