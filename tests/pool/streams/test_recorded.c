/* SPDX-License-Identifier: Apache-2.0 */
/* What a sleep costs behind very many spans. What it waits for is in
 * tests/scenarios/sleep_pool.txt. */
#include "tests/support/cpu_time.h"
#include "tests/support/one_fixture.h"

#include <stdlib.h>

#define N_SPANS 40000

static const ductile_pool_id POOL = {0, 7};

static ductile_stream theirs; /* of another GPU */

static double seconds_to_sleep_behind(size_t n_spans) {
    ductile_addr *freed = calloc(n_spans, sizeof *freed);
    assert_ok(ductile_pool_begin(f.allocator, POOL, NULL, NULL));
    ductile_addr live = take(512, 0);
    for (size_t i = 0; i < n_spans; i++) {
        freed[i] = take(512, 0);
    }
    assert_ok(ductile_pool_end(f.allocator, POOL));
    for (size_t i = 0; i < n_spans; i++) {
        assert_ok(ductile_free_ex(f.allocator, freed[i], &theirs, 1, NULL));
    }
    free(freed);
    double start = cpu_seconds();
    assert_ok(ductile_sleep(f.allocator, POOL, DUCTILE_CONTENTS_DROP));
    double seconds = cpu_seconds() - start;
    assert_ok(ductile_wake(f.allocator, POOL));
    give(live);
    assert_ok(ductile_pool_release(f.allocator, POOL));
    return seconds;
}

/* Each is asked for by its own marker,
 * and those that are done are not passed again for the next. */
Test(recorded, a_sleep_waits_behind_however_many_spans) {
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB,
                                  .schedule = DUCTILE_SCHEDULE_LAZY,
                                  .n_devices = 2,
                                  .conf = "record_stream:wait"});
    assert_ok(ductile_virtual_stream_create_on(f.gpu, 1, &theirs));
    assert_ok(ductile_enable_peer(f.allocator, 1));
    double few = seconds_to_sleep_behind(N_SPANS / 4);
    double many = seconds_to_sleep_behind(N_SPANS);
    cr_assert(many < linear_cost(few), "%f s for four times as many as took %f s", many, few);
    assert_ok(ductile_virtual_stream_destroy(f.gpu, theirs));
    close_audited();
}
