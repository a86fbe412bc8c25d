/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a sleep of a large pool holds the grow lock. What sleeps are for is in
 * tests/scenarios/sleep_pool.txt and sleep.txt, who looks meanwhile in tests/orders.
 */
#include "pool/base/allocator.h"
#include "tests/support/one_fixture.h"

#include <ductile_sleep.h>

static const ductile_pool_id WEIGHTS = {0, 7};

/* A function that locks the grow lock calls this first. The linker sends calls of X to __wrap_X. */
dvmm_capture_mode __real_dvmm_capture_relax(dvmm_driver *d);
dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d);

static uint64_t unmaps_seen, most_unmaps;

dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d) {
    uint64_t unmaps = f.gpu != NULL ? count("unmap") : 0;
    most_unmaps = unmaps - unmaps_seen > most_unmaps ? unmaps - unmaps_seen : most_unmaps;
    unmaps_seen = unmaps;
    return __real_dvmm_capture_relax(d);
}

/* Other threads' slow requests get through between two holds of the grow lock. */
Test(sleep, a_large_pool_is_unmapped_in_parts) {
    open_fixture(&(fixture_setup){.capacity_bytes = 8 * GIB, .conf = "sizes:2M"});
    make_plain_pool(WEIGHTS);
    assert_ok(ductile_pool_begin(f.allocator, WEIGHTS, NULL, NULL));
    ductile_addr large = take(3 * GIB, 0);
    assert_ok(ductile_pool_end(f.allocator, WEIGHTS));
    uint64_t mappings = fixture_state(&f).mappings;
    most_unmaps = 0;
    assert_ok(ductile_sleep(f.allocator, WEIGHTS, DUCTILE_CONTENTS_DROP));
    dvmm_capture_restore(f.allocator->driver,
                         __wrap_dvmm_capture_relax(f.allocator->driver)); /* the last part */
    assert_u64(unmaps_seen, mappings);
    assert_u64(most_unmaps, 512);
    assert_ok(ductile_wake(f.allocator, WEIGHTS));
    give(large);
    release_plain_pool(WEIGHTS);
    close_audited();
}
