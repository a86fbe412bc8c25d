/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a test file whose tests use one pair of allocators at a time: the pair, `t`, and short words
 * for what tests do with it. They assert, as those of one_fixture.h do.
 */
#ifndef TESTS_SUPPORT_ONE_PAIR_H
#define TESTS_SUPPORT_ONE_PAIR_H

#include "tests/support/expect.h"
#include "tests/support/two_ends.h"

static two_ends t; /* of the file that includes this */

static inline void close_ends(void) {
    assert_fine(two_ends_close(&t));
}

/* Of the exporter. */
static inline ductile_addr take(uint64_t bytes) {
    ductile_addr addr = 0;
    assert_ok(ductile_alloc(t.f.allocator, bytes, t.f.streams[0], &addr));
    return addr;
}

/* Behind all work of the first stream. */
static inline uint8_t byte_at(ductile_addr addr) {
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(t.f.gpu, &byte, addr, 1, t.f.streams[0]));
    return byte;
}

static inline void check_both(void) {
    char report[256] = "";
    cr_assert_eq(ductile_check(t.f.allocator, report, sizeof report), DUCTILE_OK, "%s", report);
    cr_assert_eq(ductile_check(t.importer, report, sizeof report), DUCTILE_OK, "%s", report);
}

#endif
