/* SPDX-License-Identifier: Apache-2.0 */
/* What memory that goes home is: as young as where it was, not pinned, and no callback hears of it.
 * That it comes back to addresses where it has served is tests/scenarios/homes.txt; random programs
 * are tests/model. */
#include "tests/support/inside.h"

#include "pool/growth/homes.h"

#include <ductile_share.h>

#define G FIXTURE_GRANULE

static void open_with(fixture_setup setup) {
    setup.conf = setup.conf != NULL ? setup.conf : "sizes:tight";
    open_fixture(&setup);
}

/* [8 free][1 live][8 free]: no 12 are together until some move. */
static ductile_addr divide(void) {
    ductile_addr first = take_granules(8, 0);
    ductile_addr wall = take_granules(1, 0);
    ductile_addr second = take_granules(8, 0);
    give(first);
    give(second);
    return wall;
}

static uint64_t kept(void) {
    return arena_of(0)->kept.count;
}

/* One that needs memory to be together, and two that need it apart. */
static void step(void) {
    ductile_addr large = take_granules(12, 0);
    launch(large, 12 * G, 0);
    give(large);
    ductile_addr first = take_granules(8, 0);
    ductile_addr second = take_granules(8, 0);
    launch(first, 8 * G, 0);
    launch(second, 8 * G, 0);
    give(first);
    give(second);
}

static void send_home(void) {
    grow_lock();
    cr_assert(dpool_go_home(f.allocator, arena_of(0)));
    grow_unlock();
}

Test(homes, memory_that_goes_home_is_as_young_as_where_it_was) {
    open_with((fixture_setup){.n_streams = 2, .schedule = DUCTILE_SCHEDULE_LAZY});
    (void)divide();
    ductile_addr large = take_granules(12, 0);
    assert_fine(fixture_sync_all(&f)); /* what was free before is proven */
    launch(large, 12 * G, 0);
    give(large);
    send_home();
    cr_assert_gt(fixture_stats(f.allocator).readdressed_handles, 0);
    for (int i = 0; i < 4; i++) {
        launch(take_granules(2, 1), 2 * G, 1); /* another stream gets nothing that is in use */
    }
    close_audited();
}

/* Of the last four granules of the large block, which have moved, the middle two are pinned. */
Test(homes, pinned_memory_does_not_go_home) {
    open_with((fixture_setup){.n_streams = 1, .conf = "sizes:tight,compact:off"});
    (void)divide();
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
    send_home();
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
    open_with((fixture_setup){.n_streams = 2});
    (void)divide();
    step();
    cr_assert_gt(kept(), 0);
    (void)take_granules(1, 1);
    (void)take_granules(2, 1);
    assert_u64(kept(), 0);
    close_audited();
}

static void see(void *user, ductile_allocator *a, const ductile_map_event *event) {
    (void)user;
    (void)a;
    (void)event;
}

Test(homes, where_a_callback_is_told_nothing_is_kept) {
    open_with((fixture_setup){.n_streams = 1});
    uint64_t id = 0;
    assert_ok(ductile_add_map_callback(f.allocator, see, NULL, 0, &id));
    (void)divide();
    step();
    step();
    assert_u64(kept(), 0);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    close_audited();
}

Test(homes, once_a_callback_is_told_nothing_goes_home) {
    open_with((fixture_setup){.n_streams = 1});
    uint64_t id = 0;
    (void)divide();
    give(take_granules(12, 0));
    assert_ok(ductile_add_map_callback(f.allocator, see, NULL, 0, &id));
    grow_lock();
    cr_assert(!dpool_go_home(f.allocator, arena_of(0)));
    grow_unlock();
    step();
    assert_u64(kept(), 0);
    assert_ok(ductile_remove_map_callback(f.allocator, id));
    close_audited();
}
