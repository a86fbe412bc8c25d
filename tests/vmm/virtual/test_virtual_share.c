/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: descriptors and access of other devices behave on the virtual GPU as the driver
 * documents them, above all what keeps memory alive. */
#include "tests/support/device_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

static device_fixture r;
static dvmm_phys phys;

static void close_device(void) {
    device_close(&r);
}

TestSuite(virtual_share, .fini = close_device);

static ductile_status create(dvmm_phys_props props) {
    return dvmm_phys_create(r.d, r.granule, &props, &phys);
}

Test(virtual_share, a_copy_in_another_process_keeps_the_memory) {
    dvmm_shared shared;
    int go[2];
    device_open(&r, NULL);
    assert_ok(create((dvmm_phys_props){.handle_types = DVMM_SHARE_FD}));
    assert_ok(dvmm_phys_export(r.d, phys, DVMM_SHARE_FD, &shared));
    cr_assert_geq(shared.fd, 0);
    cr_assert_eq(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) { /* holds the descriptor until told to end */
        char c;
        (void)close(go[1]);
        ssize_t n = read(go[0], &c, 1);
        _exit((int)n);
    }
    (void)close(go[0]);
    (void)close(shared.fd);
    assert_ok(dvmm_phys_release(r.d, phys));
    assert_u64(device_state(&r).handles, 1);
    (void)close(go[1]);
    (void)waitpid(child, NULL, 0);
    assert_u64(device_state(&r).handles, 0);
}

Test(virtual_share, fabric_is_offered_only_where_the_machine_has_it) {
    const dvmm_phys_props fabric = {.handle_types = DVMM_SHARE_FABRIC};
    ductile_virtual_options options;
    dvmm_phys again = 0;
    dvmm_shared shared;
    device_open(&r, NULL);
    assert_status(create(fabric), DUCTILE_ERR_DRIVER);
    device_close(&r);
    ductile_virtual_options_init(&options);
    options.has_fabric = 1;
    device_open(&r, &options);
    assert_ok(create(fabric));
    assert_ok(dvmm_phys_export(r.d, phys, DVMM_SHARE_FABRIC, &shared));
    assert_ok(dvmm_phys_import(r.d, &shared, &again));
    assert_ok(dvmm_phys_release(r.d, again));
    assert_ok(dvmm_phys_release(r.d, phys));
    assert_status(dvmm_phys_import(r.d, &shared, &again), DUCTILE_ERR_DRIVER);
}

Test(virtual_share, not_every_device_can_be_reached) {
    const int far[] = {1, 2};
    bool can = false;
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.n_devices = 3;
    options.unreachable_devices = 4;
    device_open(&r, &options);
    for (int device = 1; device <= 2; device++) {
        assert_ok(dvmm_can_access_peer(r.d, device, &can));
        cr_assert_eq(can, device == 1);
    }
    assert_status(dvmm_can_access_peer(r.d, 3, &can), DUCTILE_ERR_NO_DEVICE);
    ductile_addr addr = device_row(&r, 1);
    assert_ok(dvmm_set_access_for(r.d, addr, r.granule, DVMM_ACCESS_READ, far, 1));
    assert_status(dvmm_set_access_for(r.d, addr, r.granule, DVMM_ACCESS_NONE, far, 2),
                  DUCTILE_ERR_NO_DEVICE);
    cr_assert_eq(ductile_virtual_access(r.gpu, addr, 1), 1, "a refused call changed something");
    device_unrow(&r, addr, 1);
}

Test(virtual_share, rdma_trap_springs_at_the_access) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.rdma = DUCTILE_VIRTUAL_RDMA_TRAP;
    device_open(&r, &options);
    assert_ok(create((dvmm_phys_props){.rdma = true}));
    ductile_addr addr = device_reserve(&r, 1);
    assert_ok(dvmm_map(r.d, addr, r.granule, phys));
    assert_status(dvmm_set_access(r.d, addr, r.granule, DVMM_ACCESS_RW), DUCTILE_ERR_DRIVER);
    cr_assert_eq(dvmm_last_code(), DVMM_UNKNOWN);
    assert_ok(dvmm_phys_release(r.d, phys));
    device_unrow(&r, addr, 1);
}
