/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host copy whose driver loses a copy in, or says too early that it has waited: a look at the
 * memory sees both, and tells them apart.
 */
#include "tests/support/device_fixture.h"
#include "tests/support/pattern.h"
#include "vmm/base/align.h"
#include "vmm/host_copy.h"

#include <stdlib.h>
#include <string.h>

static device_fixture r;
static pattern_tester tester;
static dvmm_host_arena arena;
static dvmm_driver_ops planted; /* the device's, but for one call */
static pattern_block block = {.size = 64 << 10, .id = 5};
static ductile_stream stream;

static void open_all(void) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    stream = device_stream(&r);
    cr_assert_null(pattern_open(&tester, r.d, 0));
    dvmm_host_arena_init(&arena, r.d);
    block.address = device_row(&r, 1);
    cr_assert_null(pattern_write(&tester, &block, stream));
    assert_ok(dvmm_stream_sync(r.d, stream));
    planted = *r.d->ops;
}

static void close_all(void) {
    r.d->ops = r.ops;
    assert_ok(dvmm_context_sync(r.d));
    assert_ok(dvmm_host_arena_fini(&arena));
    pattern_close(&tester);
    device_unrow(&r, block.address, 1);
    assert_ok(dvmm_stream_destroy(r.d, stream));
    device_close(&r);
}

TestSuite(memory_look, .init = open_all, .fini = close_all);

static bool wants(void *user, ductile_addr addr) {
    (void)user;
    return addr == block.address;
}

/* Away and back; in between other memory is there. */
static void bring_back(void) {
    dvmm_host_copy saved = {0};
    dvmm_piece *piece = calloc(1, sizeof *piece);
    ductile_addr until = 0;
    cr_assert_not_null(piece);
    *piece = (dvmm_piece){.addr = block.address, .size = block.size};
    assert_ok(dvmm_host_copy_save(&saved, &arena, piece, 1));
    assert_ok(dvmm_host_copy_wait_next(&saved, &until));
    assert_ok(dvmm_fill(r.d, block.address, 0, block.size, stream));
    assert_ok(dvmm_stream_sync(r.d, stream));
    r.d->ops = &planted;
    assert_ok(dvmm_host_copy_begin_restore(&saved));
    assert_ok(dvmm_host_copy_restore_between(&saved, block.address, block.address + block.size,
                                             wants, NULL));
    assert_ok(dvmm_host_copy_end_restore(&saved));
    dvmm_host_copy_drop(&saved);
    r.d->ops = r.ops;
}

static int lose(void *ctx, ductile_addr to, const void *from, uint64_t size, ductile_stream on) {
    (void)ctx;
    (void)to;
    (void)from;
    (void)size;
    (void)on;
    return DVMM_SUCCESS;
}

static int return_at_once(void *ctx, ductile_stream on) {
    (void)ctx;
    (void)on;
    return DVMM_SUCCESS;
}

/* Zeros of the stamps in it are right. */
static void expect_told(const char *again) {
    const char *told = pattern_expect(&tester, &block, stream);
    cr_assert_not_null(told);
    const char *counted = strstr(told, "differed; ");
    cr_assert_not_null(counted);
    long n = strtol(counted + strlen("differed; "), NULL, 10);
    cr_expect(n > 65536 - 48 && n < 65536, "%s", told);
    cr_expect_not_null(strstr(told, " of 65536 bytes differ, 0 to 65"), "%s", told);
    cr_expect_not_null(strstr(told, "on; there stands 00 for 05 (0x00: "), "%s", told);
    cr_expect_not_null(strstr(told, again), "%s", told);
}

Test(memory_look, what_came_back_is_right) {
    bring_back();
    cr_expect_null(pattern_expect(&tester, &block, stream));
}

Test(memory_look, a_copy_that_is_lost_is_told) {
    planted.upload = lose;
    bring_back();
    expect_told("a second look finds the same");
}

Test(memory_look, a_copy_that_comes_late_is_told_from_one_that_is_lost) {
    planted.stream_sync = return_at_once;
    bring_back();
    expect_told("a second look finds 0 that differ");
}
