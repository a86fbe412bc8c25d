/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of ductile_virtual.h: a device whose work completes when its schedule says so,
 * whose calls can be made to fail, and which keeps count of what it saw. Users test their own
 * programs with it, so it is held to its words as the allocator is.
 */
#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"

#include <stdlib.h>
#include <string.h>

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

Test(virtual_device, defaults_are_an_h200s) {
    ductile_virtual_gpu *gpu = NULL;
    assert_ok(ductile_virtual_create(&gpu, NULL));
    ductile_virtual_state s = {.struct_size = sizeof s};
    assert_ok(ductile_virtual_get_state(gpu, &s));
    assert_u64(s.used_bytes + s.handles + s.mappings + s.reservations + s.events + s.violations, 0);
    cr_assert_eq(s.poisoned, 0);
    assert_ok(ductile_virtual_set_external_bytes(gpu, 139 * GIB));
    assert_status(ductile_virtual_set_external_bytes(gpu, 139 * GIB + 1),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_virtual_destroy(gpu);
}

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

Test(virtual_device, streams_are_counted_and_differ, .fini = close_fixture) {
    fixture_setup setup = {.n_streams = 5};
    assert_fine(fixture_open(&f, &setup));
    assert_u64(fixture_state(&f).streams, f.own_streams + 5);
    for (size_t i = 0; i < 5; i++) {
        cr_assert_not_null(f.streams[i]);
        for (size_t j = 0; j < i; j++) {
            cr_assert_neq(f.streams[i], f.streams[j]);
        }
    }
}

Test(virtual_device, equal_seeds_give_equal_addresses) {
    ductile_addr first = open_with_block(DUCTILE_SCHEDULE_RANDOM, 0, 1000);
    close_fixture();
    ductile_addr second = open_with_block(DUCTILE_SCHEDULE_RANDOM, 0, 1000);
    close_fixture();
    assert_u64(second, first);
}

/* ---- Contents and order -------------------------------------------------------------------- */

Test(virtual_work, what_is_uploaded_is_read_back, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_LAZY, 0, 5 * MIB);
    enum { N = 3 << 20 };
    uint8_t *bytes = malloc(N);
    uint8_t *got = calloc(1, N);
    cr_assert(bytes != NULL && got != NULL);
    for (size_t i = 0; i < N; i++) {
        bytes[i] = (uint8_t)(i * 7 + i / 4099);
    }
    assert_ok(ductile_virtual_upload(f.gpu, address + 1001, bytes, N, f.streams[0]));
    assert_ok(ductile_virtual_read_back(f.gpu, got, address + 1001, N, f.streams[0]));
    cr_assert_eq(memcmp(bytes, got, N), 0, "the bytes that came back are others");
    free(bytes);
    free(got);
}

Test(virtual_work, later_work_of_a_stream_wins, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_LAZY, 0, 10000);
    assert_ok(ductile_virtual_fill(f.gpu, address, 1, 10000, f.streams[0]));
    assert_ok(ductile_virtual_fill(f.gpu, address + 100, 2, 50, f.streams[0]));
    cr_assert_eq(byte_at(address + 99, 0), 1);
    cr_assert_eq(byte_at(address + 100, 0), 2);
    cr_assert_eq(byte_at(address + 149, 0), 2);
    cr_assert_eq(byte_at(address + 150, 0), 1);
}

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

Test(virtual_work, eager_work_is_done_at_once, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_EAGER, 0, 512);
    assert_ok(ductile_virtual_fill(f.gpu, address, 3, 512, f.streams[0]));
    cr_assert_eq(byte_at(address, 1), 3);
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

Test(virtual_work, the_schedule_can_change, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_LAZY, 0, 512);
    ductile_virtual_set_schedule(f.gpu, DUCTILE_SCHEDULE_EAGER, 0);
    assert_ok(ductile_virtual_stream_sync(f.gpu, f.streams[0]));
    assert_ok(ductile_virtual_fill(f.gpu, address, 4, 512, f.streams[0]));
    cr_assert_eq(byte_at(address, 1), 4);
}

Test(virtual_work, a_span_that_is_not_mapped_is_refused, .fini = close_fixture) {
    ductile_addr address = open_with_block(DUCTILE_SCHEDULE_EAGER, 0, FIXTURE_GRANULE);
    uint8_t byte = 0;
    ductile_addr beyond = address + 100 * FIXTURE_GRANULE;
    assert_status(ductile_virtual_fill(f.gpu, beyond, 1, 512, f.streams[0]), DUCTILE_ERR_DRIVER);
    assert_status(ductile_virtual_upload(f.gpu, beyond, &byte, 1, f.streams[0]),
                  DUCTILE_ERR_DRIVER);
    cr_assert_eq(fixture_state(&f).poisoned, 0);
}

Test(virtual_counts, external_memory_is_another_processes, .fini = close_fixture) {
    (void)open_with_block(DUCTILE_SCHEDULE_EAGER, 0, 10 * MIB);
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 200 * MIB));
    assert_status(ductile_virtual_set_external_bytes(f.gpu, 250 * MIB), DUCTILE_ERR_OUT_OF_MEMORY);
    ductile_addr address = 0;
    assert_status(ductile_alloc(f.allocator, 60 * MIB, f.streams[0], &address),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_ok(ductile_virtual_set_external_bytes(f.gpu, 0));
    assert_ok(ductile_alloc(f.allocator, 60 * MIB, f.streams[0], &address));
}
