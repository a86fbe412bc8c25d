/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes patterns to blocks of device memory, to each its own, and checks later whether they are
 * still there. On CUDA by kernels that count differing words on the device, so that nothing waits;
 * on the virtual GPU by fills and stamps, read back.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PATTERN_H
#define TESTS_SUPPORT_PATTERN_H

#include "tests/support/gpu_kernels.h"
#include "vmm/driver/driver.h"

typedef struct pattern_block {
    ductile_addr address;
    uint64_t size; /* bytes, a multiple of 4, at least 512 */
    uint64_t id;   /* of its pattern                       */
} pattern_block;

typedef struct pattern_tester {
    dvmm_driver *driver;  /* the caller's */
    gpu_kernels *gpu;     /* NULL on the virtual GPU */
    ductile_addr counter; /* CUDA: words that differed, on the device */
    uint64_t mismatches;  /* virtual: windows that differed */
    uint64_t counted;     /* by the last count */
} pattern_tester;

/* `ordinal` is for CUDA; the driver says which kind of device it is. */
const char *pattern_open(pattern_tester *p, dvmm_driver *driver, int ordinal);
void pattern_close(pattern_tester *p);

/* In stream order. */
const char *pattern_write(pattern_tester *p, const pattern_block *b, ductile_stream stream);
const char *pattern_check(pattern_tester *p, const pattern_block *b, ductile_stream stream);

/* A check that waits for the stream. Where something differed since the last count, the host reads
 * all of the block, and again when all work is done: the complaint says what differs. */
const char *pattern_expect(pattern_tester *p, const pattern_block *b, ductile_stream stream);

/* Writes over the pattern, as the last work of a user that is about to free the block. */
const char *pattern_overwrite(pattern_tester *p, const pattern_block *b, ductile_stream stream);

/* Keeps the stream at work for so long; nothing on the virtual GPU, whose schedule does that. */
const char *pattern_keep_busy(pattern_tester *p, ductile_stream stream, uint64_t ns);

/* Waits for all work; then how much differed since opening; or, that nothing did. */
const char *pattern_mismatches(pattern_tester *p, uint64_t *out);
const char *pattern_all_hold(pattern_tester *p);

#endif
