/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: a tool that holds what it is told must hold, at any moment, exactly the live blocks,
 * and no range that has not ended. The stand-in aborts at a mistake; the tests compare what it
 * holds with what the allocator shows.
 */
#include "tests/support/nvtx_tool.h"
#include "tests/support/one_fixture.h"
#include "tests/support/rng.h"

#include <ductile_pools.h>

#include <stdio.h>
#include <string.h>

static char logged[1024];

static void keep_log(void *user, ductile_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)snprintf(logged, sizeof logged, "%s", line);
}

static void open_beside(const char *path, const char *conf) {
    if (path != NULL) {
        load_tool(path);
    }
    const fixture_setup setup = {.conf = conf, .n_streams = 3, .log = keep_log};
    open_fixture(&setup);
}

static void assert_balanced(void) {
    assert_u64(tool->n_pushed, tool->n_popped);
}

/* ---- What is registered is what is live ------------------------------------------------------ */

typedef struct cursor {
    uint64_t region;
    uint64_t live_bytes;
    char why[128];
} cursor;

/* The regions of one block follow each other without a gap. */
static int compare_block(void *user, const ductile_block_info *b) {
    cursor *c = user;
    if (b->state != DUCTILE_BLOCK_LIVE) {
        return 0;
    }
    c->live_bytes += b->requested_size;
    uint64_t at = b->address;
    while (at < b->address + b->requested_size) {
        const fake_nvtx_region *r = tool->region(c->region++);
        if (r == NULL || r->addr != at || strncmp(r->name, "ductile block ", 14) != 0) {
            (void)snprintf(c->why, sizeof c->why, "no region at %#llx, or another",
                           (unsigned long long)at);
            return 1;
        }
        at += r->size;
    }
    return 0;
}

static int by_address(const void *a, const void *b) {
    const ductile_block_info *left = a;
    const ductile_block_info *right = b;
    return (left->address > right->address) - (left->address < right->address);
}

enum { MOST_BLOCKS = 4096 };

typedef struct listing {
    ductile_block_info blocks[MOST_BLOCKS];
    size_t n;
} listing;

static int list_block(void *user, const ductile_block_info *b) {
    listing *l = user;
    cr_assert_lt(l->n, (size_t)MOST_BLOCKS);
    l->blocks[l->n++] = *b;
    return 0;
}

/* A walk is in the order of addresses only within each range. */
static void assert_told_of_what_is_live(void) {
    static listing all;
    cursor c = {.region = 0};
    all.n = 0;
    assert_ok(ductile_walk(f.allocator, list_block, &all));
    qsort(all.blocks, all.n, sizeof all.blocks[0], by_address);
    for (size_t i = 0; i < all.n && c.why[0] == '\0'; i++) {
        (void)compare_block(&c, &all.blocks[i]);
    }
    cr_assert_str_empty(c.why, "%s", c.why);
    assert_u64(tool->n_regions, c.region);
    assert_balanced();
}

static void assert_told_of_nothing(void) {
    assert_balanced();
    assert_u64(tool->n_heaps, 0);
    assert_u64(tool->n_regions, 0);
}

/* Closing passes the leak gate; the tool is left with nothing, too. */
static void close_beside(void) {
    close_audited();
    assert_told_of_nothing();
}

/* ---- Off, and without a tool ----------------------------------------------------------------- */

static void use_everything(void) {
    ductile_addr first = take_granules(3, 0);
    ductile_addr second = take(1000, 1);
    give(first);
    first = take_granules(5, 0);
    give(first);
    give(second);
    assert_ok(ductile_empty_cache(f.allocator));
}

Test(nvtx, off_is_the_default_and_makes_no_call) {
    open_beside(FAKE_NVTX_WHOLE, NULL);
    use_everything();
    assert_refused(GIB, 0);
    close_audited();
    cr_expect(!tool->is_attached);
    assert_u64(tool->n_calls, 0);
}

Test(nvtx, without_a_tool_every_value_works) {
    cr_assert_eq(unsetenv("NVTX_INJECTION64_PATH"), 0);
    for (int i = 0; i < 3; i++) {
        static const char *const confs[] = {"nvtx:off", "nvtx:ranges", "nvtx:memory"};
        open_beside(NULL, confs[i]);
        use_everything();
        close_audited();
    }
    cr_expect_str_empty(logged);
}

Test(nvtx, a_tool_that_cannot_be_loaded_is_logged_and_changes_nothing) {
    name_tool("no-such-tool.so");
    open_beside(NULL, "nvtx:memory");
    cr_expect_not_null(strstr(logged, "no-such-tool.so"), "%s", logged);
    use_everything();
    close_audited();
}

Test(nvtx, a_tool_without_memory_is_logged_and_gets_ranges) {
    open_beside(FAKE_NVTX_WITHOUT_MEMORY, "nvtx:memory");
    cr_expect_not_null(strstr(logged, "takes no registration of memory"), "%s", logged);
    use_everything();
    close_audited();
    assert_balanced();
    cr_expect_gt(tool->n_pushed, 0);
    assert_u64(tool->n_heaps_ever, 0);
}

Test(nvtx, a_number_that_is_no_value_is_refused) {
    ductile_options o;
    ductile_options_init(&o);
    o.driver = DUCTILE_DRIVER_VIRTUAL;
    o.nvtx = (ductile_nvtx)3;
    o.log = keep_log;
    ductile_allocator *a = NULL;
    assert_status(ductile_create(&a, &o), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(logged, "nvtx"), "%s", logged);
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

Test(nvtx, a_miss_is_a_range_of_what_was_asked_for_and_a_hit_is_none) {
    uint64_t bytes = 0;
    open_beside(FAKE_NVTX_WHOLE, "nvtx:ranges,sizes:tight");
    ductile_addr block = take(3 * MIB, 0);
    assert_u64(tool->count("miss", &bytes), 1);
    assert_u64(bytes, 3 * MIB);
    assert_u64(tool->count("grow", NULL), 1);
    give(block);
    uint64_t before = tool->n_calls;
    block = take(3 * MIB, 0);
    give(block);
    assert_u64(tool->n_calls, before);
    assert_u64(tool->n_heaps_ever, 0);
    close_beside();
}

Test(nvtx, a_trim_holds_the_unmapping) {
    uint64_t bytes = 0;
    open_beside(FAKE_NVTX_WHOLE, "nvtx:ranges,sizes:tight");
    give(take_granules(4, 0));
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(tool->count("trim", NULL), 1);
    cr_expect_geq(tool->count("unmap", &bytes), 1);
    assert_u64(bytes, 4 * FIXTURE_GRANULE);
    close_beside();
}

Test(nvtx, a_request_that_is_refused_ends_all_its_ranges) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:ranges,limit_bytes:16M");
    ductile_addr block = take_granules(4, 0);
    launch(block, FIXTURE_GRANULE, 0);
    assert_refused(64 * MIB, 1);
    assert_refused(16 * MIB, 1);
    cr_expect_geq(tool->count("miss", NULL), 2);
    cr_expect_geq(tool->count("pressure: wait for all work", NULL), 1);
    assert_balanced();
    give(block);
    close_beside();
}

Test(nvtx, a_wait_is_a_range) {
    load_tool(FAKE_NVTX_WHOLE);
    const fixture_setup setup = {
        .conf = "nvtx:ranges", .schedule = DUCTILE_SCHEDULE_LAZY, .n_streams = 2};
    open_fixture(&setup);
    ductile_addr block = take_granules(2, 0);
    launch(block, FIXTURE_GRANULE, 1);
    assert_ok(ductile_record_stream(f.allocator, block, f.streams[1]));
    give(block);
    assert_ok(ductile_empty_cache(f.allocator));
    cr_expect_gt(tool->count("wait for a marker", NULL) + tool->count("wait for the device", NULL),
                 0);
    close_beside();
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static void expect_one_region(ductile_addr addr, uint64_t size, const char *name) {
    assert_u64(tool->n_regions, 1);
    assert_u64(tool->region(0)->addr, addr);
    assert_u64(tool->region(0)->size, size);
    cr_expect_not_null(strstr(tool->region(0)->name, name), "%s", tool->region(0)->name);
}

Test(nvtx, a_block_is_a_region_of_the_bytes_asked_for_however_it_was_found) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    ductile_addr block = take(1000, 0); /* a miss */
    expect_one_region(block, 1000, "block 1 of stream");
    give(block);
    assert_u64(tool->n_regions, 0);
    block = take(777, 0); /* a hit */
    expect_one_region(block, 777, "block 2 of stream");
    give(block);
    assert_ok(ductile_alloc_dedicated(f.allocator, 5000, f.streams[0], &block));
    expect_one_region(block, 5000, "block 3 of stream");
    int is_pending = 0;
    assert_ok(ductile_free_reporting(f.allocator, block, &is_pending));
    assert_u64(tool->n_regions_ever, 3);
    assert_told_of_what_is_live();
    close_beside();
}

Test(nvtx, a_block_over_several_handles_is_a_region_in_each) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory,sizes:tight");
    ductile_addr block = take(5 * MIB, 0);
    assert_u64(tool->n_heaps, 3);
    assert_u64(tool->n_regions, 3);
    assert_u64(tool->region(2)->addr, block + 4 * MIB);
    assert_u64(tool->region(2)->size, MIB);
    assert_told_of_what_is_live();
    give(block);
    close_beside();
}

Test(nvtx, heaps_are_the_memory_that_is_mapped) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    ductile_addr block = take_granules(6, 0);
    assert_u64(tool->heap_bytes(), fixture_stats(f.allocator).mapped_bytes);
    assert_u64(tool->n_heaps, fixture_state(&f).mappings);
    give(block);
    assert_ok(ductile_empty_cache(f.allocator));
    assert_u64(tool->heap_bytes(), 0);
    close_beside();
}

Test(nvtx, a_free_of_no_block_makes_no_call) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    ductile_addr block = take(4096, 0);
    uint64_t before = tool->n_calls;
    assert_status(ductile_free(f.allocator, block + 512), DUCTILE_ERR_INTERIOR_POINTER);
    assert_status(ductile_free(f.allocator, 0x1000), DUCTILE_ERR_FOREIGN_POINTER);
    assert_u64(tool->n_calls, before);
    give(block);
    before = tool->n_calls;
    assert_status(ductile_free(f.allocator, block), DUCTILE_ERR_NOT_LIVE);
    assert_u64(tool->n_calls, before);
    close_beside();
}

/* `effect`: 1 if the call does its work before it fails. */
static void fail_once_with(const char *call, uint64_t nth, int effect) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = nth, .code = 999, .effect = effect};
    assert_ok(ductile_virtual_inject(f.gpu, &fault));
}

static void fail_once(const char *call, uint64_t nth) {
    fail_once_with(call, nth, 0);
}

Test(nvtx, a_block_whose_fill_fails_leaves_no_region) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory,zero:on");
    give(take(4096, 0));
    fail_once("fill", 1);
    ductile_addr none = 1;
    cr_expect_neq(ductile_alloc(f.allocator, 4096, f.streams[0], &none), DUCTILE_OK);
    assert_u64(tool->n_regions, 0);
    assert_u64(tool->n_regions_ever, 2);
    assert_balanced();
    assert_ok(ductile_destroy(f.allocator));
    fixture_abandon(&f);
}

Test(nvtx, live_blocks_of_an_allocator_that_is_destroyed_end) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    (void)take(4096, 0);
    (void)take_granules(3, 1);
    close_beside();
}

Test(nvtx, a_pause_ends_the_regions_of_a_pool_and_a_resume_begins_them) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    const ductile_pool_id pool = {0, 7};
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    ductile_addr one = take(5000, 0);
    ductile_addr two = take_granules(2, 0);
    assert_ok(ductile_pool_end(f.allocator, pool));
    ductile_addr other = take(512, 0);
    assert_ok(ductile_pause(f.allocator, pool, DUCTILE_PAUSE_KEEP_CONTENTS));
    expect_one_region(other, 512, "block 3");
    give(two); /* while paused */
    assert_ok(ductile_resume(f.allocator, pool));
    assert_told_of_what_is_live();
    assert_u64(tool->n_regions, 2);
    give(one);
    give(other);
    assert_ok(ductile_pool_release(f.allocator, pool));
    close_beside();
}

static void pause_with_failing_unmap(int effect) {
    const ductile_pool_id pool = {0, 7};
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory,sizes:tight");
    assert_ok(ductile_pool_begin(f.allocator, pool, NULL, NULL));
    ductile_addr block = take_granules(4, 0);
    assert_ok(ductile_pool_end(f.allocator, pool));
    fail_once_with("unmap", 2, effect);
    assert_ok(ductile_pause(f.allocator, pool, 0));
    assert_u64(tool->n_regions, effect == 0 ? 1 : 0); /* of the handle that stayed */
    assert_ok(ductile_resume(f.allocator, pool));
    assert_told_of_what_is_live();
    give(block);
    assert_ok(ductile_pool_release(f.allocator, pool));
    assert_fine(fixture_close(&f)); /* the audit trusts what calls return */
    assert_told_of_nothing();
}

Test(nvtx, memory_that_a_pause_cannot_unmap_keeps_its_regions) {
    pause_with_failing_unmap(0);
}

Test(nvtx, memory_that_a_pause_unmaps_with_an_error_loses_its_regions) {
    pause_with_failing_unmap(1);
}

Test(nvtx, a_block_put_at_an_address_is_a_region) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    const ductile_pool_id everything = {0, 0};
    ductile_addr block = take(8192, 0);
    give(block);
    assert_ok(ductile_pool_alloc_at(f.allocator, everything, block + 512, 700));
    expect_one_region(block + 512, 700, "block 2 of stream");
    assert_status(ductile_pool_alloc_at(f.allocator, everything, block, 1024), DUCTILE_ERR_BUSY);
    assert_told_of_what_is_live();
    give(block + 512);
    close_beside();
}

Test(nvtx, heaps_that_the_tool_refuses_are_logged_and_blocks_are_served) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    tool->refuses_heaps = true;
    ductile_addr block = take_granules(2, 0);
    cr_expect_not_null(strstr(logged, "did not take "), "%s", logged);
    assert_u64(tool->n_regions, 0);
    give(block);
    close_beside();
}

Test(nvtx, two_allocators_tell_the_same_tool) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:memory");
    ductile_allocator *second = NULL;
    const fixture_setup setup = {.conf = "nvtx:memory"};
    assert_fine(fixture_add_allocator(&f, &setup, &second));
    ductile_addr block = 0;
    assert_ok(ductile_alloc(second, 4096, f.streams[0], &block));
    ductile_addr own = take(4096, 0);
    assert_u64(tool->n_regions, 2);
    assert_ok(ductile_destroy(second));
    expect_one_region(own, 4096, "block 1");
    give(own);
    close_beside();
}

/* ---- Random programs ------------------------------------------------------------------------- */

enum { N_LIVE = 48, N_STEPS = 4000 };

static void random_step(rng *r, ductile_addr *live) {
    size_t i = rng_below(r, N_LIVE);
    if (live[i] != 0) {
        give(live[i]);
        live[i] = 0;
    } else if (rng_percent(r, 1)) {
        assert_ok(ductile_trim(f.allocator, rng_below(r, 64 * MIB), NULL));
    } else {
        uint64_t size = rng_percent(r, 70) ? 1 + rng_below(r, 100000) : 1 + rng_below(r, 12 * MIB);
        ductile_status status =
            ductile_alloc(f.allocator, size, f.streams[rng_below(r, 3)], &live[i]);
        cr_assert(status == DUCTILE_OK || status == DUCTILE_ERR_OUT_OF_MEMORY ||
                  status == DUCTILE_ERR_DRIVER);
    }
}

/* `failing`: a driver call that fails now and then; NULL: none does. */
static void run_random(const char *conf, const char *failing) {
    ductile_addr live[N_LIVE] = {0};
    rng r = rng_seeded(11);
    open_beside(FAKE_NVTX_WHOLE, conf);
    for (int i = 0; i < N_STEPS; i++) {
        if (failing != NULL && i % 10 == 0) {
            fail_once(failing, 1 + rng_below(&r, 8));
        }
        random_step(&r, live);
        if (i % 20 == 0) {
            assert_told_of_what_is_live();
        }
    }
    assert_told_of_what_is_live();
    cr_expect_gt(count("map"), 200);
    close_beside();
}

Test(nvtx, random_programs_with_small_handles_tell_of_each_block) {
    run_random("nvtx:memory,sizes:tight,limit_bytes:96M", NULL);
}

Test(nvtx, random_programs_with_large_handles_tell_of_each_block) {
    run_random("nvtx:memory,max_handle_bytes:8M,limit_bytes:128M", NULL);
}

Test(nvtx, random_programs_whose_maps_fail_tell_of_each_block) {
    run_random("nvtx:memory,sizes:tight,limit_bytes:96M", "map");
}

Test(nvtx, random_programs_whose_grants_fail_tell_of_each_block) {
    run_random("nvtx:memory,sizes:tight,limit_bytes:96M", "set_access");
}

/* ---- Failing calls --------------------------------------------------------------------------- */

static void fail_each(const char *call) {
    uint64_t n_failed = 0;
    for (uint64_t nth = 1; nth <= 12; nth++) {
        const fixture_setup setup = {.conf = "nvtx:memory,sizes:tight"};
        open_fixture(&setup);
        ductile_addr first = take_granules(2, 0);
        fail_once(call, nth);
        ductile_addr second = 0;
        n_failed += ductile_alloc(f.allocator, 3 * FIXTURE_GRANULE, f.streams[0], &second) != 0;
        give(first);
        n_failed += ductile_trim(f.allocator, 0, NULL) != DUCTILE_OK;
        assert_told_of_what_is_live();
        n_failed += ductile_destroy(f.allocator) != DUCTILE_OK;
        assert_told_of_nothing();
        fixture_abandon(&f);
    }
    cr_expect_gt(n_failed, 0, "%s never failed", call);
}

Test(nvtx, failing_driver_calls_leave_no_region_and_no_range) {
    load_tool(FAKE_NVTX_WHOLE);
    static const char *const calls[] = {"map", "unmap", "set_access", "context_sync"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_each(calls[i]);
    }
}
