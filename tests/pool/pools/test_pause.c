/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume: host memory, and who holds locks meanwhile. What pauses are for is in
 * tests/scenarios/pauses.txt, and what becomes of one that fails in tests/scenarios/faults.txt.
 */
#include "pool/base/allocator.h"
#include "tests/support/one_fixture.h"
#include "vmm/capture_mode.h"
#include "vmm/driver/driver.h"

#include <ductile_share.h>

#define G FIXTURE_GRANULE
#define WEIGHTS ((ductile_pool_id){0, 7})

/* Below, at and above a granule, so that they share granules. */
static const uint64_t sizes[] = {512, G - 512, G, 3 * G + 4096, 100000};
enum { N_BLOCKS = sizeof sizes / sizeof *sizes };

static ductile_allocator *a;
static ductile_addr blocks[N_BLOCKS];

static void open_pool(const fixture_setup *setup, ductile_pool_kind kind) {
    open_fixture(setup);
    a = f.allocator;
    assert_ok(ductile_pool_retain(a, WEIGHTS));
    assert_ok(ductile_pool_set_kind(a, WEIGHTS, kind));
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        blocks[i] = take(sizes[i], 0);
    }
    assert_ok(ductile_pool_end(a, WEIGHTS));
}

static void open_small(ductile_pool_kind kind) {
    open_pool(&(fixture_setup){.capacity_bytes = 64 * MIB, .schedule = DUCTILE_SCHEDULE_LAZY},
              kind);
}

static void close_pool(void) {
    for (size_t i = 0; i < N_BLOCKS; i++) {
        give(blocks[i]);
    }
    release_plain_pool(WEIGHTS);
    close_audited();
}

TestSuite(pause);

Test(pause, neither_a_pool_nor_contents_are_taken_that_are_none) {
    const ductile_pool_id unknown = {5, 5};
    open_small(DUCTILE_POOL_PLAIN);
    assert_status(ductile_pause(a, unknown, DUCTILE_CONTENTS_DROP), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pause(a, WEIGHTS, (ductile_contents)5), DUCTILE_ERR_INVALID_ARGUMENT);
    close_pool();
}

/* To page-lock memory costs more than all copies: what a pause made serves the next. */
Test(pause, host_memory_is_made_once_and_goes_on_request) {
    uint64_t held = 0;
    uint64_t released = 0;
    open_small(DUCTILE_POOL_PLAIN);
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
        assert_ok(ductile_sleep_release(a, 0, &released));
        assert_u64(released, 0); /* it holds contents */
        assert_ok(ductile_resume(a, WEIGHTS));
    }
    assert_u64(count("host_register"), 1);
    assert_ok(ductile_sleep_reserve(a, 0, &held));
    cr_assert_gt(held, 0);
    assert_ok(ductile_sleep_release(a, 0, &released));
    assert_u64(released, held);
    assert_u64(count("host_unregister"), 1);
    close_pool();
}

Test(pause, host_memory_made_ahead_is_what_the_pause_takes) {
    uint64_t held = 0;
    open_small(DUCTILE_POOL_PLAIN);
    assert_ok(ductile_sleep_reserve(a, 40 * MIB, &held));
    assert_u64(held, 40 * MIB);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(count("host_register"), 1);
    assert_status(ductile_sleep_reserve(a, UINT64_MAX / 2, &held), DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    assert_u64(held, 40 * MIB);
    close_pool();
}

Test(pause, host_memory_of_the_option_is_made_with_the_allocator) {
    uint64_t held = 0;
    open_pool(&(fixture_setup){.capacity_bytes = 64 * MIB, .conf = "sleep_host_bytes:40M"},
              DUCTILE_POOL_PLAIN);
    assert_u64(count("host_register"), 1);
    assert_ok(ductile_sleep_reserve(a, 0, &held));
    assert_u64(held, 40 * MIB);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_KEEP));
    assert_ok(ductile_resume(a, WEIGHTS));
    assert_u64(count("host_register"), 1);
    close_pool();
}

/* ---- Beside others ------------------------------------------------------------------------- */

/* A function that locks the grow lock calls this first. The linker sends calls of X to __wrap_X. */
dvmm_capture_mode __real_dvmm_capture_relax(dvmm_driver *d);
dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d);

static uint64_t unmaps_seen, most_unmaps;

dvmm_capture_mode __wrap_dvmm_capture_relax(dvmm_driver *d) {
    uint64_t unmaps = f.gpu != NULL ? count("unmap") : 0;
    most_unmaps = unmaps - unmaps_seen > most_unmaps ? unmaps - unmaps_seen : most_unmaps;
    unmaps_seen = unmaps;
    return __real_dvmm_capture_relax(d);
}

/* Other threads' slow requests get through between two holds of the grow lock. */
Test(pause, a_large_pool_is_unmapped_in_parts) {
    open_pool(&(fixture_setup){.capacity_bytes = 8 * GIB, .conf = "sizes:tight"},
              DUCTILE_POOL_PLAIN);
    assert_ok(ductile_pool_begin(a, WEIGHTS, NULL, NULL));
    ductile_addr large = take(3 * GIB, 0);
    assert_ok(ductile_pool_end(a, WEIGHTS));
    uint64_t mappings = fixture_state(&f).mappings;
    most_unmaps = 0;
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    dvmm_capture_restore(a->driver, __wrap_dvmm_capture_relax(a->driver)); /* the last part */
    assert_u64(unmaps_seen, mappings);
    assert_u64(most_unmaps, 512);
    assert_ok(ductile_resume(a, WEIGHTS));
    give(large);
    assert_ok(ductile_pool_release(a, WEIGHTS));
    close_pool();
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
    assert_ok(ductile_walk(user, NULL, look_at_flags, NULL));
}

Test(pause, blocks_can_be_looked_at_on_the_way_there_and_back) {
    open_small(DUCTILE_POOL_CAPTURE);
    ductile_addr pinned = take(1, 0);
    assert_ok(ductile_pin(a, pinned));
    dvmm_set_trace(a->driver, look, a, true);
    assert_ok(ductile_pause(a, WEIGHTS, DUCTILE_CONTENTS_DROP));
    assert_ok(ductile_resume(a, WEIGHTS));
    dvmm_set_trace(a->driver, NULL, NULL, false);
    cr_assert_gt(n_looks, 10, "the pinned block was seen each time");
    assert_ok(ductile_unpin(a, pinned));
    give(pinned);
    close_pool();
}
