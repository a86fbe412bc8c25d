/* SPDX-License-Identifier: Apache-2.0 */
/* What does not go home. What does is in tests/scenarios/homes.txt. */
#include "tests/support/inside.h"

#include "pool/growth/homes.h"

#include <ductile_share.h>

#define G FIXTURE_GRANULE

/* [8 free][1 live][8 free]: no 12 are together until some move. */
static void divide(void) {
    ductile_addr first = take_granules(8, 0);
    (void)take_granules(1, 0);
    ductile_addr second = take_granules(8, 0);
    give(first);
    give(second);
}

/* Of the last four granules of the large block, which have moved, the middle two are pinned. */
Test(homes, pinned_memory_does_not_go_home) {
    open_fixture(&(fixture_setup){.conf = "sizes:tight,compact:off"});
    divide();
    give(take_granules(12, 0));
    ductile_addr before = take_granules(9, 0);
    ductile_addr pinned = take_granules(2, 0);
    ductile_addr after = take_granules(1, 0);
    assert_u64(pinned, before + 9 * G);
    assert_u64(after, pinned + 2 * G);
    assert_ok(ductile_pin(f.allocator, pinned));
    give(before);
    give(pinned);
    give(after);
    grow_lock();
    cr_assert(dpool_go_home(f.allocator, arena_of(0)));
    grow_unlock();
    const dseg_segment *seg = block_at(pinned)->region->seg;
    uint32_t first = dseg_granule(seg, pinned);
    assert_u64(dseg_state_at(seg, first - 1), DSEG_RETIRING);
    assert_u64(dseg_state_at(seg, first), DSEG_MAPPED);
    assert_u64(dseg_state_at(seg, first + 1), DSEG_MAPPED);
    assert_u64(dseg_state_at(seg, first + 2), DSEG_RETIRING);
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, pinned));
    close_audited();
}

Test(homes, beside_a_second_stream_old_addresses_go) {
    open_fixture(&(fixture_setup){.n_streams = 2, .conf = "sizes:tight"});
    divide();
    give(take_granules(12, 0));
    ductile_addr apart[2] = {take_granules(8, 0), take_granules(8, 0)};
    give(apart[0]);
    give(apart[1]);
    cr_assert_gt(arena_of(0)->kept.count, 0);
    (void)take_granules(1, 1);
    (void)take_granules(2, 1);
    assert_u64(arena_of(0)->kept.count, 0);
    close_audited();
}

static void see(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    (void)event;
}

Test(homes, once_a_callback_is_told_nothing_goes_home) {
    open_fixture(&(fixture_setup){.conf = "sizes:tight"});
    uint64_t id = 0;
    divide();
    give(take_granules(12, 0));
    assert_ok(ductile_add_map_callback(f.allocator, see, NULL, 0, &id));
    grow_lock();
    cr_assert(!dpool_go_home(f.allocator, arena_of(0)));
    grow_unlock();
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    close_audited();
}
