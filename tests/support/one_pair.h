/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For a test file whose tests use one pair of allocators at a time: the pair, `t`, and short words
 * for what tests do with it. They assert, as those of one_fixture.h do.
 */
#ifndef TESTS_SUPPORT_ONE_PAIR_H
#define TESTS_SUPPORT_ONE_PAIR_H

#include "tests/support/expect.h"
#include "tests/support/two_ends.h"

#include <pthread.h>

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

/* Of the exporter: all its blocks of the tag, or of the block where that is NULL. */
static inline passing passing_of(const char *tag, ductile_addr block) {
    return (passing){.from = t.f.allocator,
                     .to = t.importer,
                     .out = t.out,
                     .in = t.in,
                     .stream = t.f.streams[0],
                     .tag = tag,
                     .block = block,
                     .access = DUCTILE_IMPORT_READ_WRITE};
}

static inline void fill(ductile_addr addr, uint8_t value, uint64_t size) {
    assert_ok(ductile_virtual_fill(t.f.gpu, addr, value, size, t.f.streams[0]));
}

/* Behind all work of the first stream. */
static inline uint8_t byte_at(ductile_addr addr) {
    uint8_t byte = 0;
    assert_ok(ductile_virtual_read_back(t.f.gpu, &byte, addr, 1, t.f.streams[0]));
    return byte;
}

/* What is there before something that is to leave nothing behind. */
typedef struct traces {
    size_t descriptors;
    ductile_virtual_state state;
} traces;

static inline traces traces_now(void) {
    ductile_virtual_state now = fixture_state(&t.f); /* looks which descriptors are closed */
    return (traces){count_descriptors(), now};
}

static inline void assert_nothing_left(const traces *before) {
    traces now = traces_now();
    cr_assert_eq(now.descriptors, before->descriptors);
    assert_u64(now.state.reservations, before->state.reservations);
    assert_u64(now.state.mappings, before->state.mappings);
    assert_u64(now.state.violations, before->state.violations);
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 0);
}

static inline pthread_t begin_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

static inline void end_thread(pthread_t thread) {
    cr_assert_eq(pthread_join(thread, NULL), 0);
}

static inline void check_both(void) {
    char report[256] = "";
    cr_assert_eq(ductile_check(t.f.allocator, report, sizeof report), DUCTILE_OK, "%s", report);
    cr_assert_eq(ductile_check(t.importer, report, sizeof report), DUCTILE_OK, "%s", report);
}

#endif
