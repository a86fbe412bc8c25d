/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a test file whose tests use one fixture at a time: the fixture, `f`, and short words for what
 * tests do with it. They assert, so that a test reads as what it is about.
 */
#ifndef TESTS_SUPPORT_ONE_FIXTURE_H
#define TESTS_SUPPORT_ONE_FIXTURE_H

#include "tests/support/audit.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"

#include <ductile_pools.h>

static fixture f; /* of the file that includes this */

static inline void open_fixture(const fixture_setup *setup) {
    assert_fine(fixture_open(&f, setup));
}

/* At the end of each test: what fails in a .fini does not fail its test. */
static inline void close_audited(void) {
    assert_fine(audit_fixture(&f, NULL));
    assert_fine(audit_capture_mode(&f));
    assert_fine(fixture_close(&f));
}

static inline void assert_sound(void) {
    char report[256] = "";
    cr_assert_eq(ductile_check(f.allocator, report, sizeof report), DUCTILE_OK, "%s", report);
}

/* ---- Requests; `stream` is an index into f.streams ----------------------------------------- */

static inline ductile_addr take(uint64_t size, size_t stream) {
    ductile_addr address = 0;
    assert_ok(ductile_alloc(f.allocator, size, f.streams[stream], &address));
    return address;
}

static inline ductile_addr take_granules(uint64_t n, size_t stream) {
    return take(n * FIXTURE_GRANULE, stream);
}

static inline void give(ductile_addr address) {
    assert_ok(ductile_free(f.allocator, address));
}

/* Out of memory, and no address. */
static inline void assert_refused(uint64_t size, size_t stream) {
    ductile_addr none = 1;
    assert_status(ductile_alloc(f.allocator, size, f.streams[stream], &none),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    assert_u64(none, 0);
}

/* ---- Pools that may be asleep -------------------------------------------------------------- */

static inline void make_plain_pool(ductile_pool_id id) {
    assert_ok(ductile_pool_retain(f.allocator, id));
    assert_ok(ductile_pool_set_kind(f.allocator, id, DUCTILE_POOL_PLAIN));
}

/* The reference that its maker has, and that of its beginning. */
static inline void release_plain_pool(ductile_pool_id id) {
    assert_ok(ductile_pool_release(f.allocator, id));
    assert_ok(ductile_pool_release(f.allocator, id));
}

/* ---- Work ---------------------------------------------------------------------------------- */

/* A kernel that writes the memory. */
static inline void launch(ductile_addr address, uint64_t size, size_t stream) {
    const ductile_virtual_use use = {.address = address, .size = size, .writes = 1};
    assert_ok(ductile_virtual_launch(f.gpu, f.streams[stream], &use, 1));
}

static inline void fill(ductile_addr address, uint8_t value, uint64_t size, size_t stream) {
    assert_ok(ductile_virtual_fill(f.gpu, address, value, size, f.streams[stream]));
}

/* Behind all work of the stream. */
static inline uint8_t byte_at(ductile_addr address, size_t stream) {
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(f.gpu, &byte, address, 1, f.streams[stream]));
    return byte;
}

/* ---- Figures ------------------------------------------------------------------------------- */

/* Driver calls of that name so far. */
static inline uint64_t count(const char *call) {
    return ductile_virtual_count(f.gpu, call);
}

static inline uint64_t reserved(void) {
    return fixture_stats(f.allocator).reserved_bytes;
}

#endif
