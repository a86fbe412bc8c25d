/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bytes of the virtual GPU are: any mixture of fills, uploads and copies reads back as on
 * a plain array, and they fit the host. Whose they are is in claims.txt; what is refused is in rows
 * of tests/conformance (misuse).
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"
#include "tests/support/rng.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

static device_fixture r;
static ductile_stream stream;

static void open_device(void) {
    device_open_scheduled(&r, DUCTILE_SCHEDULE_LAZY, 0, 0);
    stream = device_stream(&r);
}

static void close_device(void) {
    assert_ok(dvmm_stream_destroy(r.d, stream));
    device_close(&r);
}

TestSuite(virtual_content, .init = open_device, .fini = close_device);

static uint8_t byte_at(ductile_addr addr) {
    uint8_t byte = 0;
    assert_ok(bench_read_back(r.d, &byte, addr, 1, stream));
    return byte;
}

static void fill(ductile_addr addr, uint8_t value, uint64_t size) {
    assert_ok(dvmm_fill(r.d, addr, value, size, stream));
}

/* ---- What is refused ----------------------------------------------------------------------- */

/* As hardware does, and only for memory that the driver knows. */
Test(virtual_content, a_copy_across_the_edge_of_page_locked_memory_is_refused) {
    enum { N = 4096 };
    static uint8_t bytes[3 * N];
    ductile_addr addr = device_row(&r, 1);
    assert_ok(dvmm_host_register(r.d, bytes, N));
    assert_ok(dvmm_host_register(r.d, bytes + N, N));
    assert_ok(dvmm_upload(r.d, addr, bytes, N, stream));
    assert_ok(dvmm_upload(r.d, addr, bytes + 2 * N, N, stream));
    assert_status(dvmm_upload(r.d, addr, bytes, N + 1, stream), DUCTILE_ERR_DRIVER);
    assert_status(dvmm_upload(r.d, addr, bytes + N + 1, N, stream), DUCTILE_ERR_DRIVER);
    assert_status(dvmm_download(r.d, bytes + 1, addr, N, stream), DUCTILE_ERR_DRIVER);
    assert_ok(dvmm_download(r.d, bytes + N, addr, N, stream));
    assert_ok(dvmm_stream_sync(r.d, stream));
    assert_ok(dvmm_host_unregister(r.d, bytes));
    assert_ok(dvmm_host_unregister(r.d, bytes + N));
    device_unrow(&r, addr, 1);
}

/* ---- When the host's bytes are read -------------------------------------------------------- */

/* So who issues a copy must leave page-locked memory alone until it has waited. */
Test(virtual_content, a_copy_from_page_locked_memory_reads_it_when_it_runs) {
    static uint8_t locked[2];
    uint8_t other[2] = {1, 2};
    ductile_addr addr = device_row(&r, 1);
    memcpy(locked, other, 2);
    assert_ok(dvmm_host_register(r.d, locked, 2));
    assert_ok(dvmm_upload(r.d, addr, locked, 2, stream));
    assert_ok(dvmm_upload(r.d, addr + 2, other, 2, stream));
    memset(locked, 7, 2);
    memset(other, 7, 2);
    assert_ok(dvmm_stream_sync(r.d, stream));
    cr_expect_eq(byte_at(addr), 7);
    cr_expect_eq(byte_at(addr + 1), 7);
    cr_expect_eq(byte_at(addr + 2), 1);
    cr_expect_eq(byte_at(addr + 3), 2);
    assert_ok(dvmm_host_unregister(r.d, locked));
    device_unrow(&r, addr, 1);
}

Test(virtual_content, host_memory_must_not_go_while_a_copy_from_it_is_under_way) {
    static const uint8_t bytes[2] = {1, 2};
    ductile_addr addr = device_row(&r, 1);
    assert_ok(dvmm_host_register(r.d, (void *)(uintptr_t)bytes, 2));
    assert_ok(dvmm_upload(r.d, addr, bytes, 2, stream));
    assert_ok(dvmm_host_unregister(r.d, (void *)(uintptr_t)bytes));
    cr_expect_eq(device_state(&r).violations, 1);
    device_unrow(&r, addr, 1);
}

/* ---- Against an array ---------------------------------------------------------------------- */

enum { GRANULES = 6, GRANULE = 64 << 10, SPAN = GRANULES * GRANULE };

/* The array that must hold the same, and the device's copy of it. */
static uint8_t expected[SPAN];
static uint8_t got[SPAN];

static void random_fill(rng *random, ductile_addr addr) {
    uint64_t at = rng_below(random, SPAN);
    uint64_t size = rng_below(random, SPAN - at + 1);
    uint8_t value = (uint8_t)rng_below(random, 3);
    fill(addr + at, value, size);
    memset(expected + at, value, size);
}

static void random_upload(rng *random, ductile_addr addr) {
    uint8_t bytes[3000];
    uint64_t at = rng_below(random, SPAN - sizeof(bytes));
    uint64_t size = rng_below(random, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)rng_next(random);
    }
    assert_ok(dvmm_upload(r.d, addr + at, bytes, size, stream));
    memcpy(expected + at, bytes, size);
    memset(bytes, 0xEE, sizeof(bytes)); /* they were taken at the call */
}

static void random_copy(rng *random, ductile_addr addr) {
    uint64_t half = SPAN / 2;
    uint64_t size = rng_below(random, half);
    uint64_t low = rng_below(random, half - size);
    uint64_t high = half + rng_below(random, half - size);
    bool upwards = rng_below(random, 2) == 0;
    uint64_t to = upwards ? high : low;
    uint64_t from = upwards ? low : high;
    assert_ok(bench_copy(r.d, addr + to, addr + from, size, stream));
    memcpy(expected + to, expected + from, size);
}

/* Handles of one, two and three granules under one span. */
static ductile_addr uneven_span(void) {
    ductile_addr addr = device_reserve(&r, GRANULES);
    device_back(&r, addr, 1);
    device_back(&r, addr + r.granule, 2);
    device_back(&r, addr + 3 * r.granule, 3);
    return addr;
}

Test(virtual_content, any_mixture_reads_back_as_on_an_array) {
    close_device();
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    options.granule_bytes = GRANULE;
    device_open(&r, &options);
    stream = device_stream(&r);
    ductile_addr addr = uneven_span();
    rng random = rng_seeded(21);
    for (int step = 0; step < 3000; step++) {
        switch (rng_below(&random, 4)) {
        case 0:
            random_fill(&random, addr);
            break;
        case 1:
            random_copy(&random, addr);
            break;
        default:
            random_upload(&random, addr);
        }
        if (step % 10 == 0) {
            assert_ok(bench_read_back(r.d, got, addr, SPAN, stream));
            cr_assert_eq(memcmp(expected, got, SPAN), 0, "step %d: the bytes are others", step);
        }
    }
    device_unrow(&r, addr, GRANULES);
}

/* ---- Size ---------------------------------------------------------------------------------- */

/* Every granule of a full H200 in handles of its own, filled in parts: the host holds a
 * description, not the bytes. */
Test(virtual_content, a_full_device_fits_the_host) {
    uint64_t n = dvmm_get_caps(r.d)->total_bytes / r.granule;
    ductile_virtual_set_schedule(r.gpu, DUCTILE_SCHEDULE_EAGER, 0);
    struct mallinfo2 before = mallinfo2();
    ductile_addr addr = device_row(&r, n);
    cr_assert(device_state(&r).handles == n && device_state(&r).mappings == n);
    assert_u64(device_state(&r).used_bytes, n * r.granule);
    for (uint64_t i = 0; i < n; i++) {
        fill(addr + i * r.granule, (uint8_t)i, r.granule);
        fill(addr + i * r.granule + 512, (uint8_t)(i + 1), r.granule / 2);
    }
    struct mallinfo2 after = mallinfo2();
    cr_assert_lt(after.uordblks + after.hblkhd, before.uordblks + before.hblkhd + (64u << 20));
    assert_u64(byte_at(addr + 1000 * r.granule + 512), (1000 + 1) % 256);
    assert_u64(byte_at(addr + 1000 * r.granule), 1000 % 256);
    device_unrow(&r, addr, n);
}
