/* SPDX-License-Identifier: Apache-2.0 */
/* What hits may do to the reserve of another thread. The linker puts them in: see __wrap_. */
#include "pool/blocks/room.h"
#include "tests/support/one_fixture.h"
#include "vmm/base/check.h"

static bool hits_come; /* once, right before addresses are reserved */

/* The linker sends calls of X to __wrap_X and those of __real_X to X. */
ductile_status __real_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out);
ductile_status __wrap_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out);

ductile_status __wrap_dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out) {
    bool come = hits_come;
    hits_come = false;
    while (come && f.allocator->nodes.n_spare > 0) {
        (void)take(512, 0);
    }
    return __real_dvmm_address_reserve(d, size, out);
}

/* The range needs a node for its one gap; while it is being reserved, hits use all nodes up. */
Test(room, of_a_new_range_survives_hits_that_take_its_node) {
    if (DUCTILE_CHECK >= 3) {
        cr_skip_test("every call checks the whole heap, for which it needs the lock of this one");
    }
    open_fixture(&(fixture_setup){.n_streams = 2, .conf = "compact:off"});
    give(take(64 * MIB, 0));
    hits_come = true;
    (void)take(MIB, 1);
    cr_assert(!hits_come, "no range was reserved");
    close_audited();
}
