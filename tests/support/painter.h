/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paints blocks of device memory with patterns of their own and looks later whether they are still
 * there. On CUDA by kernels that count differing words on the device, so that nothing waits; on
 * the virtual GPU by fills and stamps, read back.
 *
 * Functions return NULL or a complaint.
 */
#ifndef TESTS_SUPPORT_PAINTER_H
#define TESTS_SUPPORT_PAINTER_H

#include "tests/support/gpu_kernels.h"
#include "vmm/driver/driver.h"

typedef struct canvas {
    ductile_addr address;
    uint64_t size; /* bytes, a multiple of 4, at least 512 */
    uint64_t id;   /* of its pattern                       */
} canvas;

typedef struct painter {
    dvmm_driver *driver;  /* the caller's */
    gpu_kernels *gpu;     /* NULL on the virtual GPU */
    ductile_addr counter; /* CUDA: words that differed, on the device */
    uint64_t mismatches;  /* virtual: windows that differed */
    uint64_t counted;     /* by the last count */
} painter;

/* `ordinal` is for CUDA; the driver says which kind of device it is. */
const char *painter_open(painter *p, dvmm_driver *driver, int ordinal);
void painter_close(painter *p);

/* In stream order. */
const char *paint(painter *p, const canvas *c, ductile_stream stream);
const char *look(painter *p, const canvas *c, ductile_stream stream);

/* The same, and waits for the stream. Where something differed since the last count, the host looks
 * at all of the block, and again when all work is done: the complaint says what differs. */
const char *expect_painted(painter *p, const canvas *c, ductile_stream stream);

/* Writes over it, as the last work of a user that is about to free it. */
const char *scribble(painter *p, const canvas *c, ductile_stream stream);

/* Keeps the stream at work for so long; nothing on the virtual GPU, whose schedule does that. */
const char *dawdle(painter *p, ductile_stream stream, uint64_t ns);

/* Waits for all work; then how much differed since opening. */
const char *painter_mismatches(painter *p, uint64_t *out);

#endif
