/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs can get access. What those that have it reach is in tests/scenarios/peers.txt. */
#include "tests/support/audit.h"
#include "tests/support/expect.h"

#include <ductile_share.h>

/* Devices 1 and 2 reach this one, device 3 does not, device 4 does not exist. */
static ductile_virtual_gpu *gpu;
static ductile_allocator *a;

static void open_all(void) {
    ductile_virtual_options device;
    ductile_virtual_options_init(&device);
    device.capacity_bytes = 64 * MIB;
    device.n_devices = 4;
    device.unreachable_devices = 8;
    assert_ok(ductile_virtual_create(&gpu, &device));
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = gpu;
    assert_ok(ductile_create(&a, &options));
}

static void close_all(void) {
    assert_ok(ductile_destroy(a));
    ductile_virtual_state s = {.struct_size = sizeof s};
    assert_ok(ductile_virtual_get_state(gpu, &s));
    cr_assert(s.handles == 0 && s.mappings == 0 && s.reservations == 0 && s.violations == 0);
    ductile_virtual_destroy(gpu);
}

TestSuite(peers, .init = open_all, .fini = close_all);

static ductile_addr take(uint64_t granules) {
    ductile_addr addr = 0;
    assert_ok(ductile_alloc(a, granules * FIXTURE_GRANULE, NULL, &addr));
    return addr;
}

Test(peers, who_cannot_reach_or_is_not_there_is_told) {
    (void)take(1);
    assert_status(ductile_enable_peer(a, 3), DUCTILE_ERR_UNSUPPORTED);
    assert_status(ductile_enable_peer(a, 4), DUCTILE_ERR_NO_DEVICE);
    assert_ok(ductile_enable_peer(a, 1));
    assert_ok(ductile_enable_peer(a, 1));
}
