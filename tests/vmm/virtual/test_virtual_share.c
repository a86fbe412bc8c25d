/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: descriptors and access of other devices behave on the virtual GPU as the driver
 * documents them, above all what keeps memory alive. */
#include "tests/support/rig.h"

#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

static dvmm_phys make_shared(const rig *r, uint64_t n_granules) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    dvmm_phys phys = 0;
    assert_ok(dvmm_phys_create(r->d, n_granules * r->granule, &props, &phys));
    return phys;
}

static int export_fd(const rig *r, dvmm_phys phys) {
    dvmm_shared shared;
    assert_ok(dvmm_phys_export(r->d, phys, DVMM_SHARE_FD, &shared));
    cr_assert_geq(shared.fd, 0);
    return shared.fd;
}

Test(virtual_share, a_copy_in_another_process_keeps_the_memory) {
    rig r;
    rig_open(&r, NULL);
    dvmm_phys phys = make_shared(&r, 1);
    int fd = export_fd(&r, phys);
    int go[2];
    cr_assert_eq(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) { /* holds the descriptor until told to end */
        char c;
        (void)close(go[1]);
        ssize_t n = read(go[0], &c, 1);
        _exit((int)n);
    }
    (void)close(go[0]);
    (void)close(fd);
    assert_ok(dvmm_phys_release(r.d, phys));
    assert_u64(rig_state(&r).handles, 1);
    (void)close(go[1]);
    (void)waitpid(child, NULL, 0);
    assert_u64(rig_state(&r).handles, 0);
    rig_close(&r);
}

Test(virtual_share, fabric_is_offered_only_where_the_machine_has_it) {
    rig r;
    rig_open(&r, NULL);
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FABRIC};
    dvmm_phys phys = 0;
    assert_status(dvmm_phys_create(r.d, r.granule, &props, &phys), DUCTILE_ERR_DRIVER);
    rig_close(&r);
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.has_fabric = 1;
    rig_open(&r, &options);
    assert_ok(dvmm_phys_create(r.d, r.granule, &props, &phys));
    dvmm_shared shared;
    assert_ok(dvmm_phys_export(r.d, phys, DVMM_SHARE_FABRIC, &shared));
    dvmm_phys again = 0;
    assert_ok(dvmm_phys_import(r.d, &shared, &again));
    assert_ok(dvmm_phys_release(r.d, again));
    assert_ok(dvmm_phys_release(r.d, phys));
    assert_status(dvmm_phys_import(r.d, &shared, &again), DUCTILE_ERR_DRIVER);
    rig_close(&r);
}

Test(virtual_share, not_every_device_can_be_reached) {
    rig r;
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.n_devices = 3;
    options.unreachable_devices = 4;
    rig_open(&r, &options);
    bool can = false;
    assert_ok(dvmm_can_access_peer(r.d, 1, &can));
    cr_assert(can);
    assert_ok(dvmm_can_access_peer(r.d, 2, &can));
    cr_assert_not(can);
    assert_status(dvmm_can_access_peer(r.d, 3, &can), DUCTILE_ERR_NO_DEVICE);
    ductile_addr addr = rig_row(&r, 1);
    const int far[] = {1, 2};
    assert_ok(dvmm_set_access_for(r.d, addr, r.granule, DVMM_ACCESS_READ, far, 1));
    assert_status(dvmm_set_access_for(r.d, addr, r.granule, DVMM_ACCESS_NONE, far, 2),
                  DUCTILE_ERR_NO_DEVICE);
    cr_assert_eq(ductile_virtual_access(r.gpu, addr, 1), 1, "a refused call changed something");
    rig_unrow(&r, addr, 1);
    rig_close(&r);
}

Test(virtual_share, rdma_trap_springs_at_the_access) {
    rig r;
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.rdma = DUCTILE_VIRTUAL_RDMA_TRAP;
    rig_open(&r, &options);
    const dvmm_phys_props props = {.rdma = true};
    dvmm_phys phys = 0;
    assert_ok(dvmm_phys_create(r.d, r.granule, &props, &phys));
    ductile_addr addr = rig_reserve(&r, 1);
    assert_ok(dvmm_map(r.d, addr, r.granule, phys));
    assert_status(dvmm_set_access(r.d, addr, r.granule, DVMM_ACCESS_RW), DUCTILE_ERR_DRIVER);
    cr_assert_eq(dvmm_last_code(), DVMM_UNKNOWN);
    assert_ok(dvmm_phys_release(r.d, phys));
    rig_unrow(&r, addr, 1);
    rig_close(&r);
}
