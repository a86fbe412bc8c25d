/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory and streams: a block recorded on another stream is not reused before that work is done,
 * whatever order the device works in; many streams, and many that come once and never again; two
 * allocators that share a device.
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

Test(streams, recorded_work_keeps_a_freed_block_pending) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    ductile_addr address = w.m.blocks[0].address;
    assert_fine(world_use_on(&w, 0, 1));
    assert_fine(world_free(&w, 0));
    assert_u64(fixture_stats(w.f.allocator).pending_bytes, 8192);
    assert_fine(world_must_alloc(&w, 8192, 0));
    cr_assert_neq(w.m.blocks[0].address, address, "reused while another stream still works on it");
    assert_fine(world_verify_all(&w));
}

Test(streams, finished_work_gives_the_block_back) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    ductile_addr address = w.m.blocks[0].address;
    assert_fine(world_use_on(&w, 0, 1));
    assert_fine(world_free(&w, 0));
    assert_fine(fixture_sync_all(&w.f));
    assert_fine(world_must_alloc(&w, 30 * MIB, 0)); /* not a hit: looks at finished markers */
    assert_fine(world_must_alloc(&w, 8192, 0));
    assert_u64(fixture_stats(w.f.allocator).pending_bytes, 0);
    cr_assert_lt(model_find(&w.m, address), w.m.n, "memory of finished work was not used again");
}

Test(streams, free_on_is_record_and_free) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    assert_fine(world_free_on(&w, 0, 2));
    assert_u64(fixture_stats(w.f.allocator).pending_bytes, 8192);
    assert_fine(world_audit(&w));
}

static int free_reporting(ductile_addr address) {
    int is_pending = -1;
    assert_ok(ductile_free_reporting(w.f.allocator, address, &is_pending));
    return is_pending;
}

Test(streams, a_free_reports_whether_its_block_is_pending) {
    ductile_addr address[2];
    for (size_t i = 0; i < 2; i++) {
        assert_ok(ductile_alloc(w.f.allocator, 8192, w.f.streams[0], &address[i]));
    }
    assert_ok(ductile_record_stream(w.f.allocator, address[0], w.f.streams[1]));
    cr_assert_eq(free_reporting(address[0]), 1);
    assert_u64(fixture_stats(w.f.allocator).pending_blocks, 1);
    cr_assert_eq(free_reporting(address[1]), 0, "nobody else used it");
    assert_u64(fixture_stats(w.f.allocator).pending_blocks, 1);
    assert_fine(world_audit(&w));
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

Test(streams, recording_the_own_stream_does_nothing) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    ductile_addr address = w.m.blocks[0].address;
    assert_fine(world_use_on(&w, 0, 0));
    assert_fine(world_free(&w, 0));
    assert_u64(fixture_stats(w.f.allocator).pending_bytes, 0);
    assert_fine(world_must_alloc(&w, 8192, 0));
    assert_u64(w.m.blocks[0].address, address);
}

Test(streams, record_stream_makes_no_driver_call) {
    assert_fine(world_must_alloc(&w, 8192, 0));
    uint64_t calls = fixture_state(&w.f).calls;
    assert_ok(ductile_record_stream(w.f.allocator, w.m.blocks[0].address, w.f.streams[1]));
    assert_ok(ductile_record_stream(w.f.allocator, w.m.blocks[0].address, w.f.streams[2]));
    assert_u64(fixture_state(&w.f).calls, calls);
}

/* What one stream freed serves another, by waiting when there is no other way. */
Test(streams, memory_crosses_streams_under_pressure) {
    for (size_t round = 0; round < 6; round++) {
        assert_fine(world_must_alloc(&w, 256 * MIB, round % 3));
        assert_fine(world_verify_all(&w));
        assert_fine(world_free(&w, 0));
        assert_fine(world_audit(&w));
    }
}

Test(streams, pending_memory_serves_before_a_refusal) {
    for (size_t i = 0; i < 4; i++) {
        assert_fine(world_must_alloc(&w, 64 * MIB, 0));
        assert_fine(world_use_on(&w, i, 1 + i % 2));
    }
    assert_fine(world_free_all(&w));
    assert_fine(world_must_alloc(&w, 256 * MIB, 0));
    assert_fine(world_verify_all(&w));
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

/* ---- Many ---------------------------------------------------------------------------------- */

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

#define N_HOARDED 97

/* Takes a stream's handle out of use for a while, so that not every new stream has the same. */
static ductile_stream hoarded(const fixture *f, ductile_stream before) {
    ductile_stream stream = NULL;
    assert_ok(ductile_virtual_stream_create(f->gpu, &stream));
    if (before != NULL) {
        assert_ok(ductile_virtual_stream_destroy(f->gpu, before));
    }
    return stream;
}

/* A stream that lives for one block: its memory must come back without being told, and its
 * addresses too, though the device is as large as a real one. */
static void one_shot(const fixture *f, size_t n, bool tells) {
    ductile_stream hoard[N_HOARDED] = {NULL};
    for (size_t i = 0; i < n; i++) {
        ductile_stream stream = NULL;
        ductile_addr address = 0;
        assert_ok(ductile_virtual_stream_create(f->gpu, &stream));
        ductile_status status = ductile_alloc(f->allocator, 300 * MIB, stream, &address);
        cr_assert(status == DUCTILE_OK, "stream %zu: %s", i, ductile_status_name(status));
        ductile_virtual_use use = {.address = address, .size = 300 * MIB, .writes = 1};
        assert_ok(ductile_virtual_launch(f->gpu, stream, &use, 1));
        assert_ok(ductile_free(f->allocator, address));
        if (tells) {
            assert_ok(ductile_stream_done(f->allocator, stream));
        } else {
            assert_ok(ductile_virtual_stream_sync(f->gpu, stream));
        }
        assert_ok(ductile_virtual_stream_destroy(f->gpu, stream));
        hoard[i % N_HOARDED] = hoarded(f, hoard[i % N_HOARDED]);
    }
    for (size_t i = 0; i < N_HOARDED; i++) {
        (void)ductile_virtual_stream_destroy(f->gpu, hoard[i]);
    }
}

/* A few hundred of them would fill the device, and use up its addresses. */
static void once(size_t n, bool tells) {
    fixture_setup setup = {
        .capacity_bytes = 139 * GIB, .schedule = DUCTILE_SCHEDULE_LAGGING, .lag = 2};
    fixture f;
    assert_fine(fixture_open(&f, &setup));
    one_shot(&f, n, tells);
    cr_assert_eq(fixture_state(&f).poisoned, 0);
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(fixture_close(&f));
}

Test(many_streams, thousands_come_once_and_go) {
    once(2000, false);
}

Test(many_streams, hundreds_come_once_and_say_so) {
    once(IS_SANITIZED ? 600 : 1000, true);
}

/* Addresses are reserved for the whole process: 64 streams on each of 8 devices must fit, so as
 * many on one device must. */
Test(many_streams, addresses_last_for_sixty_four_on_each_of_eight_devices) {
    enum { N = 8 * 64 };
    static ductile_stream streams[N];
    fixture_setup setup = {.capacity_bytes = 139 * GIB};
    fixture f;
    assert_fine(fixture_open(&f, &setup));
    for (size_t i = 0; i < N; i++) {
        ductile_addr address = 0;
        assert_ok(ductile_virtual_stream_create(f.gpu, &streams[i]));
        ductile_status status = ductile_alloc(f.allocator, 200 * MIB, streams[i], &address);
        cr_assert(status == DUCTILE_OK, "stream %zu: %s", i, ductile_status_name(status));
    }
    assert_fine(audit_fixture(&f, NULL));
    for (size_t i = 0; i < N; i++) {
        assert_ok(ductile_virtual_stream_destroy(f.gpu, streams[i]));
    }
    assert_fine(fixture_close(&f));
}

/* ---- Two allocators ------------------------------------------------------------------------ */

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
