/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the virtual GPU's detector: a device with two mapped granules and three streams. */
#ifndef TESTS_SUPPORT_DETECTION_H
#define TESTS_SUPPORT_DETECTION_H

#include "tests/support/rig.h"

#define BLOCK 4096

static rig r;
static ductile_addr at; /* two handles of one granule */
static ductile_stream s1, s2, s3;

static inline void open_detecting(int schedule) {
    rig_open_scheduled(&r, (ductile_schedule)schedule, 3, 11);
    at = rig_row(&r, 2);
    s1 = rig_stream(&r);
    s2 = rig_stream(&r);
    s3 = rig_stream(&r);
}

static inline void use(ductile_stream stream, ductile_addr address, uint64_t size, int writes) {
    ductile_virtual_use one = {address, size, writes};
    assert_ok(ductile_virtual_launch(r.gpu, stream, &one, 1));
}

static inline void writes(ductile_stream stream, ductile_addr address, uint64_t size) {
    use(stream, address, size, 1);
}

static inline void sync(ductile_stream stream) {
    assert_ok(ductile_virtual_stream_sync(r.gpu, stream));
}

static inline void begin(ductile_addr address, uint64_t size) {
    ductile_virtual_block_begin(r.gpu, address, size);
}

static inline void end(ductile_addr address) {
    ductile_virtual_block_end(r.gpu, address);
}

static inline void unmap(ductile_addr address) {
    assert_ok(dvmm_unmap(r.d, address, r.granule));
}

/* Exactly n violations, all of one kind. */
static inline void saw(ductile_violation kind, uint64_t n) {
    char text[256];
    ductile_virtual_last_violation(r.gpu, text, sizeof text);
    uint64_t all = rig_state(&r).violations;
    cr_assert_eq(all, n, "%llu violations, the last: %s", (unsigned long long)all, text);
    cr_assert_eq(ductile_virtual_violations_of(r.gpu, kind), n, "not %s but %s",
                 ductile_virtual_violation_name(kind), text);
}

static inline void saw_one(ductile_violation kind) {
    saw(kind, 1);
}

static inline void saw_nothing(void) {
    saw(DUCTILE_VIOLATION_MISUSE, 0);
}

#endif
