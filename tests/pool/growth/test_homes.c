/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that goes home, and comes back to addresses where it has served. */
#include "tests/support/inside.h"

#include "pool/growth/homes.h"
#include "tests/support/rng.h"

#include <ductile_share.h>

#define G FIXTURE_GRANULE

enum { STEPS = 12, OPERATIONS = 3000, SLOTS = 12 };

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

static uint64_t mapping_calls(void) {
    ductile_stats s = fixture_stats(f.allocator);
    return s.creates + s.maps + s.unmaps;
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

Test(homes, a_step_that_repeats_needs_no_driver_call) {
    open_with((fixture_setup){.n_streams = 1});
    (void)divide();
    step();
    step();
    uint64_t enough = mapping_calls();
    uint64_t held = reserved();
    for (int i = 0; i < STEPS; i++) {
        step();
    }
    assert_u64(mapping_calls(), enough);
    assert_u64(reserved(), held);
    cr_assert_gt(kept(), 0);
    close_audited();
}

/* A handle with two addresses is not gone before both are unmapped. */
Test(homes, what_sleeps_keeps_no_address_mapped) {
    open_with((fixture_setup){.n_streams = 1});
    (void)divide();
    step();
    step();
    cr_assert_gt(kept(), 0);
    assert_ok(ductile_pause(f.allocator, (ductile_pool_id){0, 0}, DUCTILE_CONTENTS_KEEP));
    assert_u64(fixture_state(&f).used_bytes, 0);
    assert_u64(kept(), 0);
    assert_ok(ductile_resume(f.allocator, (ductile_pool_id){0, 0}));
    step();
    close_audited();
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
    for (int i = 0; i < 4; i++) {
        launch(take_granules(2, 1), 2 * G, 1); /* another stream gets nothing that is in use */
    }
    close_audited();
}

Test(homes, a_trim_unmaps_old_addresses_first) {
    open_with((fixture_setup){.n_streams = 1});
    ductile_addr wall = divide();
    step();
    cr_assert_gt(kept(), 0);
    give(wall);
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    assert_u64(reserved(), 0);
    assert_u64(fixture_stats(f.allocator).retiring_bytes, 0);
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

Test(homes, a_device_that_is_enabled_later_reaches_what_comes_back) {
    open_with((fixture_setup){.n_streams = 1, .n_devices = 2});
    ductile_stream peer;
    assert_ok(ductile_virtual_stream_create_on(f.gpu, 1, &peer));
    (void)divide();
    step();
    cr_assert_gt(kept(), 0);
    assert_ok(ductile_enable_peer(f.allocator, 1));
    ductile_addr large = take_granules(12, 0);
    const ductile_virtual_use use = {.address = large, .size = 12 * G, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, peer, &use, 1));
    assert_ok(ductile_virtual_stream_sync(f.gpu, peer));
    give(large);
    step();
    assert_ok(ductile_virtual_stream_destroy(f.gpu, peer));
    close_audited();
}

/* ---- At random ------------------------------------------------------------------------------ */

typedef struct slot {
    ductile_addr address;
    uint64_t size;
    uint8_t value;
} slot;

static void put(slot *s, rng *random) {
    s->size = (1 + rng_below(random, 24 * 8)) * (G / 8);
    s->value = (uint8_t)rng_below(random, 256);
    if (ductile_alloc(f.allocator, s->size, f.streams[0], &s->address) == DUCTILE_OK) {
        ductile_virtual_block_begin(f.gpu, s->address, s->size);
        fill(s->address, s->value, s->size, 0);
    }
}

static void drop(slot *s, bool looks) {
    if (looks) {
        assert_u64(byte_at(s->address, 0), s->value);
        assert_u64(byte_at(s->address + s->size - 1, 0), s->value);
    }
    ductile_virtual_block_end(f.gpu, s->address);
    give(s->address);
    s->address = 0;
}

/* Memory comes and goes, now and then nearly all of it; contents stay, nothing is unmapped under
 * work, and what is mapped besides stays below half of what is mapped. */
static void play(ductile_schedule schedule, uint64_t seed) {
    open_with((fixture_setup){
        .n_streams = 1, .schedule = schedule, .lag = 20, .seed = seed, .capacity_bytes = 160 * G});
    rng random = rng_seeded(seed);
    slot slots[SLOTS] = {{0}};
    uint64_t most_kept = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        slot *s = &slots[rng_below(&random, i % 200 < 190 ? SLOTS : 2)];
        for (slot *at = slots; at < slots + SLOTS && i % 200 == 190; at++) {
            if (at->address != 0) {
                drop(at, true);
            }
        }
        if (s->address != 0) {
            drop(s, rng_below(&random, 8) == 0);
        } else {
            put(s, &random);
        }
        ductile_stats stats = fixture_stats(f.allocator);
        most_kept = dti_max(most_kept, stats.retiring_bytes);
        cr_assert_leq(stats.reserved_bytes, 160 * G);
        if (i % 50 == 0) {
            assert_sound();
        }
    }
    cr_assert_gt(most_kept, 0);
    for (slot *at = slots; at < slots + SLOTS; at++) {
        if (at->address != 0) {
            drop(at, true);
        }
    }
    cr_assert_gt(f.allocator->sizes.stamp, 0); /* memory looked for its home */
    close_audited();
}

Test(homes, contents_stay_while_memory_goes_home) {
    static const ductile_schedule schedules[] = {DUCTILE_SCHEDULE_EAGER, DUCTILE_SCHEDULE_LAGGING,
                                                 DUCTILE_SCHEDULE_LAZY, DUCTILE_SCHEDULE_RANDOM};
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            play(schedules[i], seed);
        }
    }
}
