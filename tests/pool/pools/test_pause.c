/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume: host memory, and who holds locks meanwhile. What pauses are for is in
 * tests/scenarios/pauses.txt, and what becomes of one that fails in tests/scenarios/faults.txt.
 */
#include "pool/base/allocator.h"
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"
#include "vmm/capture_mode.h"
#include "vmm/driver/driver.h"
#include "vmm/driver/open_virtual.h"

#include <ductile_share.h>
#include <string.h>

#define G FIXTURE_GRANULE
#define N_BLOCKS 12

static const ductile_pool_id WEIGHTS = {0, 7};

static fixture f;
static ductile_allocator *a;

/* Sizes below, at and above a granule, so that blocks share granules with others and with gaps. */
static ductile_addr blocks[N_BLOCKS];
static const uint64_t sizes[N_BLOCKS] = {512,         G - 512, G,     3 * G + 4096, 100000, 1,
                                         5 * G - 512, 70000,   G / 2, 2 * G,        4096,   G / 2};

static void open_pool(ductile_pool_kind kind, bool with_holes) {
    fixture_setup setup = {
        .capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 3};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_pool_retain(a, WEIGHTS));
    assert_ok(ductile_pool_set_kind(a, WEIGHTS, kind));
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        ductile_stream stream = f.streams[i % 5 == 4];
        assert_ok(ductile_alloc(a, sizes[i], stream, &blocks[i]));
        assert_ok(ductile_virtual_fill(f.gpu, blocks[i], (uint8_t)(i + 1), sizes[i], stream));
    }
    assert_ok(ductile_pool_end(a, WEIGHTS));
    for (size_t i = 0; with_holes && i < N_BLOCKS; i += 3) {
        assert_ok(ductile_free(a, blocks[i]));
        blocks[i] = 0;
    }
}

static void assert_contents(void) {
    uint8_t bytes[64];
    assert_fine(fixture_sync_all(&f));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        uint64_t n = sizes[i] < sizeof bytes ? sizes[i] : sizeof bytes;
        for (uint64_t at = 0; blocks[i] != 0 && at + n <= sizes[i]; at += G / 2 + 512) {
            assert_ok(ductile_virtual_read_back(f.gpu, bytes, blocks[i] + at, n, f.streams[0]));
            for (size_t k = 0; k < n; k++) {
                cr_assert_eq(bytes[k], i + 1, "block %zu holds %d at %llu", i, bytes[k],
                             (unsigned long long)(at + k));
            }
        }
    }
}

static void close_pool(void) {
    assert_fine(audit_allocator(a, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_fine(fixture_sync_all(&f));
    assert_ok(ductile_empty_cache(a));
    assert_u64(fixture_stats(a).reserved_bytes, 0);
    ductile_pool_info info = {.struct_size = sizeof info};
    assert_status(ductile_pool_query(a, WEIGHTS, &info), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_fine(fixture_close(&f));
}

TestSuite(pause);

Test(pause, wrong_calls_are_refused) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    const ductile_pool_id unknown = {5, 5};
    assert_status(ductile_pause(a, unknown, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pause(a, WEIGHTS, (ductile_contents)5), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_resume(a, WEIGHTS), DUCTILE_ERR_AWAKE);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_status(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_ASLEEP);
    assert_status(ductile_pool_alloc_at(a, WEIGHTS, blocks[3], 512), DUCTILE_ERR_ASLEEP);
    ductile_addr address = 1;
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    assert_status(ductile_alloc(a, 512, f.streams[0], &address), DUCTILE_ERR_ASLEEP);
    assert_u64(address, 0);
    assert_ok(ductile_pool_end(a, WEIGHTS));
    assert_status(ductile_free(a, blocks[3] + 512), DUCTILE_ERR_INTERIOR_POINTER);
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_ok(ductile_pool_release(a, WEIGHTS));
    close_pool();
}

/* To page-lock memory costs more than all copies: what a pause made serves the next. */
Test(pause, host_memory_is_made_once_and_goes_on_request) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    uint64_t held = 0;
    uint64_t released = 0;
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
        assert_ok(ductile_sleep_release(a, 0, &released));
        assert_u64(released, 0); /* it holds contents */
        assert_ok(ductile_resume(a, WEIGHTS));
    }
    assert_u64(ductile_virtual_count(f.gpu, "host_register"), 1);
    assert_ok(ductile_sleep_reserve(a, 0, &held));
    cr_assert_gt(held, 0);
    assert_ok(ductile_sleep_release(a, 0, &released));
    assert_u64(released, held);
    assert_u64(ductile_virtual_count(f.gpu, "host_unregister"), 1);
    assert_contents();
    close_pool();
}

Test(pause, host_memory_made_ahead_is_what_the_pause_takes) {
    open_pool(DUCTILE_POOL_PLAIN, false);
    uint64_t held = 0;
    assert_ok(ductile_sleep_reserve(a, 40 * MIB, &held));
    assert_u64(held, 40 * MIB);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(ductile_virtual_count(f.gpu, "host_register"), 1);
    assert_status(ductile_sleep_reserve(a, UINT64_MAX / 2, &held), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(held, 40 * MIB);
    assert_contents();
    close_pool();
}

/* ---- Beside others ------------------------------------------------------------------------- */

/* A function that locks the grow lock calls this first. The linker sends calls of X to __wrap_X. */
dvmm_capture_mode __real_dvmm_capture_relax(dvmm_driver *d);
dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d);

static uint64_t unmaps_seen, most_unmaps;

dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d) {
    uint64_t unmaps = f.gpu != NULL ? ductile_virtual_count(f.gpu, "unmap") : 0;
    most_unmaps = unmaps - unmaps_seen > most_unmaps ? unmaps - unmaps_seen : most_unmaps;
    unmaps_seen = unmaps;
    return __real_dvmm_capture_relax(d);
}

/* Other threads' slow requests get through between two holds of the grow lock. */
Test(pause, a_large_pool_is_unmapped_in_parts) {
    fixture_setup setup = {.capacity_bytes = 8 * GIB, .conf = "sizes:tight"};
    assert_fine(fixture_open(&f, &setup));
    a = f.allocator;
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_alloc(a, GIB, f.streams[0], &blocks[i]));
    }
    assert_ok(ductile_pool_end(a, WEIGHTS));
    most_unmaps = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    (void)__wrap_dvmm_capture_relax(a->driver); /* the last part */
    assert_u64(unmaps_seen, 3 * GIB / G);
    assert_u64(most_unmaps, 512);
    assert_ok(ductile_resume(a, WEIGHTS));
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_free(a, blocks[i]));
    }
    assert_ok(ductile_pool_release(a, WEIGHTS));
    assert_fine(audit_allocator(a, NULL));
    assert_fine(fixture_close(&f));
}

/* ---- Who looks meanwhile ------------------------------------------------------------------- */

static uint64_t n_looks;

static int look_at_flags(void *user, const ductile_block_info *info) {
    (void)user;
    n_looks += (info->flags & DUCTILE_BLOCK_PINNED) != 0;
    return 0;
}

/* Another thread may look at any time between two driver calls: no more locks are held then. */
static void look(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    (void)call, (void)code, (void)address, (void)size;
    assert_ok(ductile_walk(user, look_at_flags, NULL));
}

Test(pause, blocks_can_be_looked_at_on_the_way_there_and_back) {
    open_pool(DUCTILE_POOL_CAPTURE, true);
    ductile_addr pinned = 0;
    assert_ok(ductile_alloc(a, 1, f.streams[0], &pinned));
    assert_ok(ductile_pin(a, pinned));
    n_looks = 0;
    dvmm_set_trace(a->driver, look, a, true);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, WEIGHTS));
    dvmm_set_trace(a->driver, NULL, NULL, false);
    cr_assert_gt(n_looks, 10, "the pinned block was seen each time");
    assert_ok(ductile_unpin(a, pinned));
    assert_ok(ductile_free(a, pinned));
    close_pool();
}
