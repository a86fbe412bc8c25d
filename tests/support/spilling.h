/* SPDX-License-Identifier: Apache-2.0 */
/* A small device of which requests may spill to the host. */
#ifndef DUCTILE_TESTS_SPILLING_H
#define DUCTILE_TESTS_SPILLING_H

#include "tests/support/one_fixture.h"

/* Of 256 MiB, 224 serve requests that may spill; the rest is for small ones. */
enum { ROOM = 256, FOR_SMALL = 32, MOST = ROOM - FOR_SMALL };

static inline void open_spilling(const char *conf) {
    const fixture_setup setup = {.conf = conf, .n_streams = 2};
    open_fixture(&setup);
}

static inline ductile_stats now(void) {
    return fixture_stats(f.allocator);
}

static inline void close_and_look(void) {
    assert_sound();
    close_audited();
}

static inline void assert_spilled(uint64_t mib) {
    assert_u64(now().spilled_bytes / MIB, mib);
}

#endif
