/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What needs no work to be seen: arguments, the default stream, many streams, two allocators that
 * share a device. Blocks that other streams use are in tests/scenarios/users.txt.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/world.h"

static world w;

static void close_world(void) {
    assert_fine(world_close(&w));
}

static void open_lazy(void) {
    fixture_setup setup = {.schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3};
    assert_fine(world_open(&w, &setup, true));
}

TestSuite(streams, .init = open_lazy, .fini = close_world);

static int free_reporting(ductile_addr address) {
    int is_pending = -1;
    assert_ok(ductile_free_reporting(w.f.allocator, address, &is_pending));
    return is_pending;
}

Test(streams, a_free_that_is_refused_reports_nothing) {
    int is_pending = 7;
    cr_assert_eq(ductile_free_reporting(w.f.allocator, 512, &is_pending),
                 DUCTILE_ERR_FOREIGN_POINTER);
    cr_assert_eq(is_pending, 0);
    cr_assert_eq(free_reporting(0), 0);
    is_pending = 7;
    cr_assert_eq(ductile_free_reporting(NULL, 0, &is_pending), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_eq(is_pending, 0);
    ductile_addr address = 0;
    assert_ok(ductile_alloc(w.f.allocator, 8192, w.f.streams[0], &address));
    cr_assert_eq(ductile_free_reporting(w.f.allocator, address, NULL),
                 DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_free(w.f.allocator, address)); /* it is live still */
}

Test(streams, record_stream_makes_no_driver_call) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    uint64_t calls = fixture_state(&w.f).calls;
    assert_ok(ductile_record_stream(w.f.allocator, w.m.blocks[0].address, w.f.streams[1]));
    assert_ok(ductile_record_stream(w.f.allocator, w.m.blocks[0].address, w.f.streams[2]));
    assert_u64(fixture_state(&w.f).calls, calls);
}

/* The default stream is a stream like any other, and needs no handle. */
Test(streams, null_is_the_default_stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(w.f.allocator, 1 << 20, NULL, &address));
    assert_ok(ductile_virtual_fill(w.f.gpu, address, 9, 1 << 20, NULL));
    assert_ok(ductile_record_stream(w.f.allocator, address, w.f.streams[0]));
    assert_ok(ductile_free(w.f.allocator, address));
    assert_fine(world_audit(&w));
}

Test(many_streams, sixty_four_share_a_device, .fini = close_world) {
    fixture_setup setup = {.capacity_bytes = 256 * MIB,
                           .schedule = DUCTILE_SCHEDULE_RANDOM,
                           .seed = 4,
                           .n_streams = 64};
    assert_fine(world_open(&w, &setup, true));
    for (size_t i = 0; i < 64; i++) {
        assert_fine(world_must_alloc(&w, 1000 + i, i));
    }
    assert_u64(fixture_stats(w.f.allocator).arenas, 64);
    assert_fine(world_free_all(&w));
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < 64; i++) {
            assert_fine(world_must_alloc(&w, 2 * MIB + i * 512, i));
            assert_fine(world_must_alloc(&w, 1000 + i, i));
            if (w.m.n > 64) {
                assert_fine(world_free(&w, i));
            }
        }
        assert_fine(world_verify_all(&w));
        assert_fine(world_free_all(&w));
        assert_fine(world_audit(&w));
    }
}

Test(two_allocators, share_a_device_and_give_way, .fini = close_world) {
    fixture_setup setup = {.capacity_bytes = 64 * MIB, .n_streams = 2};
    assert_fine(world_open(&w, &setup, true));
    ductile_allocator *other = NULL;
    ductile_addr theirs = 0;
    assert_fine(fixture_add_allocator(&w.f, NULL, &other));
    assert_ok(ductile_alloc(other, 40 * MIB, w.f.streams[1], &theirs));
    w.limit_bytes = 24 * MIB;
    assert_fine(world_must_alloc(&w, 24 * MIB, 0));
    ductile_addr refused = 0;
    assert_status(ductile_alloc(w.f.allocator, 2 * MIB, w.f.streams[0], &refused),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_free(other, theirs));
    assert_ok(ductile_empty_cache(other));
    assert_u64(fixture_state(&w.f).used_bytes, 24 * MIB);
    assert_fine(audit_allocator(other, NULL));
    assert_ok(ductile_destroy(other));
    w.limit_bytes = 64 * MIB;
    assert_fine(world_must_alloc(&w, 40 * MIB, 0));
    assert_fine(world_verify_all(&w));
    assert_fine(world_audit(&w));
}
