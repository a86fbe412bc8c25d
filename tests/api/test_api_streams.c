/* SPDX-License-Identifier: Apache-2.0 */
/* A free that is refused, many streams, two allocators that share a device. Blocks that other
 * streams use are in tests/scenarios/users.txt. */
#include "tests/support/one_fixture.h"

static void open_lazy(void) {
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3});
}

TestSuite(streams, .init = open_lazy, .fini = close_audited);

static int free_reporting(ductile_addr address) {
    int is_pending = -1;
    assert_ok(ductile_free_ex(f.allocator, address, NULL, 0, &is_pending));
    return is_pending;
}

Test(streams, a_free_that_is_refused_reports_nothing) {
    int is_pending = 7;
    cr_assert_eq(ductile_free_ex(f.allocator, 512, NULL, 0, &is_pending),
                 DUCTILE_ERR_FOREIGN_POINTER);
    cr_assert_eq(is_pending, 0);
    cr_assert_eq(free_reporting(0), 0);
    is_pending = 7;
    cr_assert_eq(ductile_free_ex(NULL, 0, NULL, 0, &is_pending), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_eq(is_pending, 0);
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, 8192, f.streams[0], &address));
    cr_assert_eq(ductile_free_ex(f.allocator, address, NULL, 1, NULL),
                 DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_free(f.allocator, address)); /* it is live still */
}

Test(streams, a_free_names_all_streams_that_used_the_block) {
    ductile_addr address = 0;
    int is_pending = 0;
    assert_ok(ductile_alloc(f.allocator, 8192, f.streams[0], &address));
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[1], NULL, 0));
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[2], NULL, 0));
    assert_ok(ductile_free_ex(f.allocator, address, &f.streams[1], 2, &is_pending));
    cr_assert_eq(is_pending, 1);
    cr_assert_eq(fixture_stats(f.allocator).event_records, 2);
}

Test(many_streams, sixty_four_share_a_device) {
    enum { N = 64 };
    ductile_addr small[N];
    ductile_addr large[N];
    open_fixture(&(fixture_setup){.schedule = DUCTILE_SCHEDULE_RANDOM, .seed = 4, .n_streams = N});
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < N; i++) {
            small[i] = take(1000 + i, i);
            large[i] = take(2 * MIB + i * 512, i);
            fill(large[i], (uint8_t)i, 2 * MIB + i * 512, i);
            give(i % 2 == 0 ? small[i] : large[i]);
        }
        assert_u64(fixture_stats(f.allocator).arenas, N);
        for (size_t i = 0; i < N; i++) {
            cr_assert(i % 2 != 0 || byte_at(large[i], i) == i);
            give(i % 2 == 0 ? large[i] : small[i]);
        }
        assert_fine(audit_fixture(&f, NULL));
    }
    close_audited();
}

Test(two_allocators, share_a_device_and_give_way) {
    ductile_allocator *other = NULL;
    ductile_addr theirs = 0;
    open_fixture(&(fixture_setup){.capacity_bytes = 64 * MIB, .n_streams = 2});
    assert_fine(fixture_add_allocator(&f, NULL, &other));
    assert_ok(ductile_alloc(other, 40 * MIB, f.streams[1], &theirs));
    ductile_addr ours = take(24 * MIB, 0);
    fill(ours, 7, 24 * MIB, 0);
    assert_refused(2 * MIB, 0);
    assert_ok(ductile_free(other, theirs));
    assert_ok(ductile_trim(other, NULL, 0, NULL));
    assert_u64(fixture_state(&f).used_bytes, 24 * MIB);
    assert_fine(audit_allocator(other, NULL));
    assert_ok(ductile_destroy(other));
    (void)take(40 * MIB, 0);
    cr_assert_eq(byte_at(ours, 0), 7);
    close_audited();
}
