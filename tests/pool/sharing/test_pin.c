/* SPDX-License-Identifier: Apache-2.0 */
/* That the allocator's check and a walk see pins. What pinned memory does is in
 * tests/scenarios/dedicated.txt. */
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

TestSuite(pin, .init = open_small, .fini = close_all);

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
    assert_ok(ductile_walk(f.allocator, NULL, see, &s));
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
    assert_ok(ductile_free_ex(f.allocator, pinned, &f.streams[1], 1, NULL));
    assert_seen(pinned, DUCTILE_BLOCK_PENDING, DUCTILE_BLOCK_PINNED);
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, DUCTILE_BLOCK_PINNED);
    assert_ok(ductile_unpin(f.allocator, pinned));
    assert_seen(pinned, DUCTILE_BLOCK_FREE, 0);
}
