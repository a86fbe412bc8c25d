/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Very many pending blocks: what is done about them is counted in driver calls, and grows no faster
 * than they do. The device is lazy, so that all of them are pending until somebody waits.
 */
#include "tests/support/audit.h"
#include "tests/support/expect.h"

enum { N_BLOCKS = 100000, N_OTHERS = 3 };

static fixture f;

static void open_lazy(void) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = N_OTHERS + 1};
    assert_fine(fixture_open(&f, &setup));
}

static uint64_t calls_about_events(void) {
    return ductile_virtual_count(f.gpu, "event_query") + ductile_virtual_count(f.gpu, "event_sync");
}

/* Blocks side by side, all of them used by another stream, each with markers of its own. */
static void make_pending(void) {
    static ductile_addr block[N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++) {
        assert_ok(ductile_alloc(f.allocator, 1024, f.streams[0], &block[i]));
    }
    for (int i = 0; i < N_BLOCKS; i++) {
        assert_ok(ductile_free_on(f.allocator, block[i], f.streams[1 + i % N_OTHERS]));
    }
}

TestSuite(pending, .init = open_lazy, .timeout = 120);

Test(pending, request_that_needs_most_of_many_waits_once_for_each_stream) {
    make_pending();
    assert_u64(fixture_stats(f.allocator).pending_blocks, N_BLOCKS);
    uint64_t before = calls_about_events();
    ductile_addr large = 0;
    assert_ok(ductile_alloc(f.allocator, 240 * MIB, f.streams[0], &large));
    uint64_t calls = calls_about_events() - before;
    cr_assert(calls < 3 * (uint64_t)N_BLOCKS, "%llu calls for %d blocks", (unsigned long long)calls,
              N_BLOCKS);
    cr_assert(fixture_stats(f.allocator).stream_syncs <= 4 * N_OTHERS, "%llu host waits",
              (unsigned long long)fixture_stats(f.allocator).stream_syncs);
    assert_ok(ductile_free(f.allocator, large));
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

Test(pending, small_request_waits_for_as_much_as_it_lacks) {
    ductile_addr rest = 0;
    make_pending(); /* 98 MiB */
    assert_ok(ductile_alloc(f.allocator, 156 * MIB, f.streams[0], &rest));
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, 2 * MIB, f.streams[0], &address));
    cr_assert(fixture_stats(f.allocator).pending_blocks > N_BLOCKS / 2,
              "%llu blocks are left pending",
              (unsigned long long)fixture_stats(f.allocator).pending_blocks);
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

Test(pending, trim_of_many_is_linear) {
    make_pending();
    uint64_t before = calls_about_events();
    assert_ok(ductile_empty_cache(f.allocator));
    uint64_t calls = calls_about_events() - before;
    cr_assert(calls < 3 * (uint64_t)N_BLOCKS, "%llu calls for %d blocks", (unsigned long long)calls,
              N_BLOCKS);
    assert_u64(fixture_stats(f.allocator).reserved_bytes, 0);
    assert_fine(fixture_close(&f));
}
