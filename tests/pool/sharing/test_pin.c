/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: pinned memory stays behind its address through everything that moves memory or gives
 * it back, and goes its usual way again after the last unpin. */
#include "pool/blocks/arena.h"
#include "pool/sharing/pin.h"
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

static void open_small(void) {
    open_fixture(&(fixture_setup){.capacity_bytes = 32 * MIB, .n_streams = 2});
}

static void close_all(void) {
    assert_fine(fixture_close(&f));
}

static uint32_t flags_at(ductile_addr addr) {
    ductile_block_info info = {.struct_size = sizeof info};
    assert_ok(ductile_query_block(f.allocator, addr, &info));
    return info.flags;
}

/* Memory is behind the address. */
static bool is_mapped(ductile_addr addr) {
    return ductile_virtual_access(f.gpu, addr, 0) == 3;
}

TestSuite(pin, .init = open_small, .fini = close_all);

Test(pin, a_trim_leaves_pinned_memory_where_it_is) {
    ductile_addr pinned = take_granules(2, 0);
    ductile_addr other = take_granules(3, 0);
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_ok(ductile_free(f.allocator, pinned));
    assert_ok(ductile_free(f.allocator, other));
    assert_ok(ductile_empty_cache(f.allocator));
    cr_assert(is_mapped(pinned));
    cr_assert_not(is_mapped(other));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 2 * FIXTURE_GRANULE);
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, pinned));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 0);
    assert_sound();
}

Test(pin, pinned_memory_is_reused_in_place) {
    ductile_addr pinned = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_ok(ductile_free(f.allocator, pinned));
    cr_assert_eq(take_granules(2, 0), pinned);
    cr_assert_eq(flags_at(pinned), DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, pinned));
    cr_assert_eq(flags_at(pinned), 0);
}

/* The device is full: what a large request needs can only come from free blocks. Between them lies
 * a pinned granule, in the middle of one free block. */
Test(pin, recycling_takes_the_memory_around_a_pin) {
    ductile_addr low = take_granules(4, 0);
    ductile_addr middle = take_granules(1, 0);
    ductile_addr high = take_granules(4, 0);
    ductile_addr wall = take_granules(7, 0);
    assert_ok(ductile_pin(f.allocator, middle));
    assert_ok(ductile_free(f.allocator, low));
    assert_ok(ductile_free(f.allocator, middle));
    assert_ok(ductile_free(f.allocator, high));
    assert_sound();
    ductile_addr large = take_granules(8, 1); /* the other stream's: all of it has to move */
    cr_assert_neq(large, 0);
    cr_assert(is_mapped(middle));
    assert_sound();
    ductile_addr refused = 0;
    assert_status(ductile_alloc(f.allocator, FIXTURE_GRANULE, f.streams[1], &refused),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    cr_assert_eq(take_granules(1, 0), middle, "its own stream reuses it in place");
    assert_ok(ductile_free(f.allocator, middle));
    assert_ok(ductile_unpin(f.allocator, middle));
    cr_assert_neq(take_granules(1, 1), 0, "unpinned, it serves anybody");
    (void)wall;
    assert_sound();
}

Test(pin, pins_of_one_address_add_up) {
    ductile_addr addr = take_granules(1, 0);
    assert_ok(ductile_pin(f.allocator, addr));
    assert_ok(ductile_pin(f.allocator, addr));
    assert_ok(ductile_unpin(f.allocator, addr));
    cr_assert_eq(flags_at(addr), DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, addr));
    cr_assert_eq(flags_at(addr), 0);
    assert_status(ductile_unpin(f.allocator, addr), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_u64(fixture_stats(f.allocator).pinned_bytes, 0);
}

/* A pin belongs to an address: what two blocks of different sizes pinned there stays until both
 * are unpinned, in whatever order. */
Test(pin, a_larger_block_at_the_address_widens_the_pin) {
    ductile_addr addr = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, addr));
    assert_ok(ductile_free(f.allocator, addr));
    cr_assert_eq(take_granules(6, 0), addr);
    assert_ok(ductile_pin(f.allocator, addr));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, 6 * FIXTURE_GRANULE);
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, addr));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, 6 * FIXTURE_GRANULE);
    assert_ok(ductile_unpin(f.allocator, addr));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, 0);
    assert_sound();
}

Test(pin, blocks_that_share_a_granule_pin_it_once) {
    ductile_addr a = 0;
    ductile_addr b = 0;
    assert_ok(ductile_alloc(f.allocator, 4096, f.streams[0], &a));
    assert_ok(ductile_alloc(f.allocator, 4096, f.streams[0], &b));
    assert_ok(ductile_pin(f.allocator, a));
    assert_ok(ductile_pin(f.allocator, b));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, FIXTURE_GRANULE);
    assert_sound();
    assert_ok(ductile_unpin(f.allocator, a));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, FIXTURE_GRANULE);
    assert_ok(ductile_unpin(f.allocator, b));
    assert_u64(fixture_stats(f.allocator).pinned_bytes, 0);
}

/* Libraries may have used the memory on any stream until the unpin, and graphs until they went. */
Test(pin, a_trim_gives_back_a_graphs_memory_that_was_unpinned_after_its_pool) {
    static const ductile_pool_id pool = {1, 2};
    ductile_addr pinned = 0;
    assert_ok(ductile_set_captures(f.allocator, DUCTILE_CAPTURES_UNANNOUNCED));
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    pinned = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_ok(ductile_pool_end(f.allocator, pool));
    assert_ok(ductile_free(f.allocator, pinned));
    assert_ok(ductile_pool_release(f.allocator, pool));
    give(take_granules(2, 1));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 2 * FIXTURE_GRANULE);
    assert_ok(ductile_unpin(f.allocator, pinned));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 0);
    assert_sound();
}

Test(pin, what_is_no_live_block_is_told_apart) {
    ductile_addr addr = take_granules(2, 0);
    assert_status(ductile_pin(f.allocator, addr + 512), DUCTILE_ERR_INTERIOR_POINTER);
    assert_status(ductile_pin(f.allocator, 4096), DUCTILE_ERR_FOREIGN_POINTER);
    assert_ok(ductile_free(f.allocator, addr));
    assert_status(ductile_pin(f.allocator, addr), DUCTILE_ERR_NOT_LIVE);
    assert_status(ductile_unpin(f.allocator, addr), DUCTILE_ERR_NOT_LIVE);
    assert_status(ductile_pin(NULL, addr), DUCTILE_ERR_INVALID_ARGUMENT);
}

Test(pin, destroying_ends_all_pins) {
    ductile_addr addr = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, addr));
    assert_ok(ductile_free(f.allocator, addr));
}

/* ---- The check can see it ------------------------------------------------------------------ */

static void expect_broken(const char *id) {
    char report[256] = "";
    assert_status(ductile_check(f.allocator, report, sizeof report), DUCTILE_ERR_CORRUPT);
    cr_assert_eq(strncmp(report, id, strlen(id)), 0, "%s", report);
}

Test(pin, the_check_sees_a_pin_that_no_record_explains) {
    ductile_addr addr = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, addr));
    dpool_pin *pin = &f.allocator->pins.items[0];
    dvmm_handle *h = pin->seg->slots[pin->first].handle;
    h->n_pins++;
    expect_broken("P9:");
    h->n_pins--;
    h->n_exports++;
    expect_broken("P10:");
    h->n_exports--;
    f.allocator->store.totals.pinned_bytes++;
    expect_broken("P10:");
    f.allocator->store.totals.pinned_bytes--;
    f.allocator->counts.imported++;
    expect_broken("P11:");
    f.allocator->counts.imported--;
    pin->n_pins = 0;
    expect_broken("P9:");
    pin->n_pins = 1;
    assert_sound();
}

/* ---- Who sees it --------------------------------------------------------------------------- */

typedef struct seen {
    ductile_addr addr;
    ductile_block_state state;
    uint32_t flags;
} seen;

static int see(void *user, const ductile_block_info *info) {
    seen *s = user;
    if (info->address <= s->addr && s->addr < info->address + info->size) {
        s->state = info->state;
        s->flags = info->flags;
    }
    return 0;
}

static void assert_seen(ductile_addr addr, ductile_block_state state, uint32_t flags) {
    seen s = {.addr = addr};
    assert_ok(ductile_walk(f.allocator, see, &s));
    assert_u64(s.state, state);
    assert_u64(s.flags & DUCTILE_BLOCK_PINNED, flags);
}

/* The pin is of the memory, not of the block: it shows as long as memory is there. */
Test(pin, a_walk_shows_it_on_memory_that_was_freed) {
    ductile_addr pinned = take_granules(2, 0);
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_seen(pinned, DUCTILE_BLOCK_LIVE, DUCTILE_BLOCK_PINNED);
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_LAZY, 0);
    launch(pinned, FIXTURE_GRANULE, 1);
    assert_ok(ductile_free_on(f.allocator, pinned, f.streams[1]));
    assert_seen(pinned, DUCTILE_BLOCK_PENDING, DUCTILE_BLOCK_PINNED);
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_trim(f.allocator, 0, NULL));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, pinned));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, 0);
}

/* While its pool is paused a block has no memory to show, pinned or not. */
Test(pin, it_does_not_show_while_the_pool_is_paused) {
    const ductile_pool_id id = {2, 9};
    begin_plain_pool(id);
    ductile_addr pinned = take_granules(1, 0);
    ductile_addr plain = take_granules(1, 0);
    assert_ok(ductile_pool_end(f.allocator, id));
    assert_ok(ductile_pin(f.allocator, pinned));
    assert_ok(ductile_pause(f.allocator, id, DUCTILE_CONTENTS_DROP));
    assert_u64(flags_at(pinned) & DUCTILE_BLOCK_PINNED, 0);
    assert_u64(flags_at(plain), 0);
    assert_ok(ductile_resume(f.allocator, id));
    assert_u64(flags_at(pinned) & DUCTILE_BLOCK_PINNED, DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, pinned));
    give(pinned);
    give(plain);
    release_plain_pool(id);
}
