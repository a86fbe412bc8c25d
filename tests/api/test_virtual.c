/* SPDX-License-Identifier: Apache-2.0 */
/* The device of ductile_virtual.h as users see it. All else of it is in tests/vmm/virtual. */
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"

static fixture f;

static ductile_addr block;

static void close_fixture(void) {
    ductile_virtual_block_end(f.gpu, block);
    assert_fine(fixture_close(&f));
}

static ductile_addr open_with_block(ductile_schedule schedule, uint64_t lag, uint64_t size) {
    fixture_setup setup = {.schedule = schedule, .lag = lag, .seed = 3, .n_streams = 2};
    assert_fine(fixture_open(&f, &setup));
    assert_ok(ductile_alloc(f.allocator, size, f.streams[0], &block));
    ductile_virtual_block_begin(f.gpu, block, size); /* streams race for it here, on purpose */
    return block;
}

static uint8_t byte_at(ductile_addr address, size_t stream) {
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(f.gpu, &byte, address, 1, f.streams[stream]));
    return byte;
}

/* ---- Device -------------------------------------------------------------------------------- */

Test(virtual_device, refuses_what_no_device_has) {
    ductile_virtual_options o;
    ductile_virtual_options_init(&o);
    o.granule_bytes = 3 << 20;
    ductile_virtual_gpu *gpu = (ductile_virtual_gpu *)&o;
    assert_status(ductile_virtual_create(&gpu, &o), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_null(gpu);
    assert_status(ductile_virtual_create(NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
}

Test(virtual_device, destroy_of_null_does_nothing) {
    ductile_virtual_destroy(NULL);
}

Test(virtual_device, equal_seeds_give_equal_addresses) {
    ductile_addr first = open_with_block(DUCTILE_SCHEDULE_RANDOM, 0, 1000);
    close_fixture();
    ductile_addr second = open_with_block(DUCTILE_SCHEDULE_RANDOM, 0, 1000);
    close_fixture();
    assert_u64(second, first);
}

/* ---- Contents and order -------------------------------------------------------------------- */

/* Lazily nothing happens until a thread waits: another stream sees the old contents, which is
 * how a missing wait shows. */
Test(virtual_work, lazy_work_waits_for_a_wait, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_LAZY, 0, 512);
    assert_ok(ductile_virtual_fill(f.gpu, address, 1, 512, f.streams[0]));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    assert_ok(ductile_virtual_fill(f.gpu, address, 2, 512, f.streams[0]));
    ductile_virtual_advance(f.gpu, 1000000);
    cr_assert_eq(byte_at(address, 1), 1, "lazy work was done without a wait");
    assert_ok(ductile_virtual_stream_wait(f.gpu, f.streams[1], f.streams[0]));
    cr_assert_eq(byte_at(address, 1), 2, "a wait did not bring the work it waits for");
}

Test(virtual_work, lagging_work_is_done_after_its_lag, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_LAGGING, 5, 512);
    assert_ok(ductile_virtual_fill(f.gpu, address, 1, 512, f.streams[0]));
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    assert_ok(ductile_virtual_fill(f.gpu, address, 2, 512, f.streams[0]));
    ductile_virtual_advance(f.gpu, 4);
    cr_assert_eq(byte_at(address, 1), 1);
    ductile_virtual_advance(f.gpu, 1);
    cr_assert_eq(byte_at(address, 1), 2);
}
