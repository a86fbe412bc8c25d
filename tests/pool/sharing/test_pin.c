/* SPDX-License-Identifier: Apache-2.0 */
/* That a walk shows pins. What pinned memory does is in tests/scenarios/dedicated.txt. */
#include "tests/support/one_fixture.h"

#include <ductile_pools.h>
#include <ductile_share.h>

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
    open_fixture(&(fixture_setup){.capacity_bytes = 32 * MIB, .n_streams = 2});
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
    close_audited();
}
