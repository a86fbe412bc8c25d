/* SPDX-License-Identifier: Apache-2.0 */
/* When compaction is due. What it does is in tests/scenarios/compaction.txt. */
#include "pool/blocks/arena.h"
#include "tests/support/one_fixture.h"

#define G FIXTURE_GRANULE

/* [gap][live][free][live], and a dip that has ended: the gap has no free memory on both sides. Each
 * mark would move the clock of frees on, and so make memory unlike that merges later. */
Test(compact, records_no_mark_where_no_gap_can_be_filled) {
    fixture_setup setup = {.n_streams = 1, .conf = "sizes:16M"};
    open_fixture(&setup);
    ductile_addr low = take(8 * G, 0);
    (void)take(G, 0);
    ductile_addr high = take(8 * G, 0);
    (void)take(G, 0);
    give(low);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    give(high);
    (void)take(512, 0);
    uint64_t age = f.allocator->age;
    cr_assert(f.allocator->arenas->compaction.is_due);
    (void)take(512, 0);
    cr_assert_not(f.allocator->arenas->compaction.is_due);
    cr_assert_eq(f.allocator->age, age);
    close_audited();
}
