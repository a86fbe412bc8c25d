/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles that were made large while there was room, and are free near the limit: they go back, the
 * topmost first, and a driver that fails ends it.
 */
#include "pool/growth/give_back.h"

#include "pool/streams/marks.h"
#include "tests/support/internals.h"
#include "vmm/driver/driver.h"

#define SIZE (128 * MIB)

enum { N_HELD = 110 * 8, N_GRANULES = 64 }; /* blocks, 110 GiB of the 128; granules of a block */

static ductile_addr blocks[N_HELD];

/* Every other block is free. */
static void open_tight(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 128 * GIB});
    for (int i = 0; i < N_HELD; i++) {
        blocks[i] = take(SIZE, 0);
    }
    for (int i = 0; i < N_HELD; i += 2) {
        give(blocks[i]);
    }
    (void)take(SIZE + 512, 0); /* records the marker, and looks at the room */
    cr_assert(dpool_is_tight(f.allocator));
}

TestSuite(give_back, .init = open_tight);

static uint64_t shrink(uint64_t most) {
    grow_lock();
    dpool_poll_marks(f.allocator);
    uint64_t n = dpool_give_back_large(f.allocator, arena_of(0), most);
    grow_unlock();
    return n;
}

Test(give_back, large_handles_go_back_as_many_as_were_asked_for) {
    uint64_t held = reserved();
    uint64_t n = shrink(2 * N_GRANULES);
    cr_assert(n >= 2 * N_GRANULES && n < 3 * N_GRANULES, "%llu granules", (unsigned long long)n);
    assert_u64(reserved(), held - n * FIXTURE_GRANULE);
    close_audited();
}

/* One call of that name fails: nothing is tried behind the block that it was for. */
static void expect_end_at(const char *call) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = 1, .code = 1};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
    uint64_t n = shrink(8 * N_GRANULES);
    assert_u64(ductile_virtual_faults_fired(f.gpu), 1);
    cr_assert(n > 0 && n <= N_GRANULES, "%llu granules", (unsigned long long)n);
    assert_ok(ductile_virtual_inject(f.gpu, NULL));
    assert_fine(audit_allocator(f.allocator, NULL));
    (void)ductile_destroy(f.allocator);
    fixture_abandon(&f);
}

Test(give_back, an_unmap_that_fails_ends_it) {
    expect_end_at("unmap");
}

Test(give_back, a_release_that_fails_ends_it) {
    expect_end_at("phys_release");
}
