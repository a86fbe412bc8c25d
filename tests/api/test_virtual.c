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
