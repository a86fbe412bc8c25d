/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: a tool must hear of each slow path as a range with the bytes that it is about, and no
 * range may be left open. The stand-in counts what it is told.
 */
#include "tests/support/nvtx_tool.h"
#include "tests/support/one_fixture.h"

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

static void close_beside(void) {
    close_audited();
    assert_balanced();
}

/* ---- Off, and without a tool ----------------------------------------------------------------- */

static void use_everything(void) {
    ductile_addr first = take_granules(3, 0);
    ductile_addr second = take(1000, 1);
    give(first);
    first = take_granules(5, 0);
    give(first);
    give(second);
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
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
    for (int i = 0; i < 2; i++) {
        static const char *const confs[] = {"nvtx:off", "nvtx:ranges"};
        open_beside(NULL, confs[i]);
        use_everything();
        close_audited();
    }
    cr_expect_str_empty(logged);
}

Test(nvtx, a_tool_that_cannot_be_loaded_is_logged_and_changes_nothing) {
    name_tool("no-such-tool.so");
    open_beside(NULL, "nvtx:ranges");
    cr_expect_not_null(strstr(logged, "no-such-tool.so"), "%s", logged);
    use_everything();
    close_audited();
}

Test(nvtx, a_number_that_is_no_value_is_refused) {
    ductile_options o;
    ductile_options_init(&o);
    o.driver = DUCTILE_DRIVER_VIRTUAL;
    o.nvtx = (ductile_nvtx)2;
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
    close_beside();
}

Test(nvtx, a_trim_holds_the_unmapping) {
    uint64_t bytes = 0;
    open_beside(FAKE_NVTX_WHOLE, "nvtx:ranges,sizes:tight");
    give(take_granules(4, 0));
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
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
    assert_ok(ductile_trim(f.allocator, NULL, 0, NULL));
    cr_expect_gt(tool->count("wait for a marker", NULL) + tool->count("wait for the device", NULL),
                 0);
    close_beside();
}

/* ---- Failing calls --------------------------------------------------------------------------- */

static void fail_each(const char *call) {
    uint64_t n_failed = 0;
    for (uint64_t nth = 1; nth <= 12; nth++) {
        const fixture_setup setup = {.conf = "nvtx:ranges,sizes:tight"};
        const ductile_virtual_fault fault = {
            .struct_size = sizeof fault, .call = call, .nth = nth, .code = 999};
        open_fixture(&setup);
        ductile_addr first = take_granules(2, 0);
        assert_ok(ductile_virtual_inject(f.gpu, &fault));
        ductile_addr second = 0;
        n_failed += ductile_alloc(f.allocator, 3 * FIXTURE_GRANULE, f.streams[0], &second) != 0;
        give(first);
        n_failed += ductile_trim(f.allocator, NULL, 0, NULL) != DUCTILE_OK;
        n_failed += ductile_destroy(f.allocator) != DUCTILE_OK;
        assert_balanced();
        fixture_abandon(&f);
    }
    cr_expect_gt(n_failed, 0, "%s never failed", call);
}

Test(nvtx, failing_driver_calls_leave_no_range) {
    load_tool(FAKE_NVTX_WHOLE);
    static const char *const calls[] = {"map", "unmap", "set_access", "context_sync"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        fail_each(calls[i]);
    }
}

Test(nvtx, two_allocators_tell_the_same_tool) {
    open_beside(FAKE_NVTX_WHOLE, "nvtx:ranges");
    ductile_allocator *second = NULL;
    const fixture_setup setup = {.conf = "nvtx:ranges"};
    assert_fine(fixture_add_allocator(&f, &setup, &second));
    ductile_addr block = 0;
    assert_ok(ductile_alloc(second, 4096, f.streams[0], &block));
    give(take(4096, 0));
    assert_u64(tool->count("miss", NULL), 2);
    assert_ok(ductile_destroy(second));
    close_beside();
}
