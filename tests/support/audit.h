/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything the public interface shows of an allocator, recounted and compared: its own check,
 * the identities of its statistics, the tiling of its ranges, the device's counts, and the live
 * blocks of a model. Only for moments when no other call is running.
 */
#ifndef TESTS_SUPPORT_AUDIT_H
#define TESTS_SUPPORT_AUDIT_H

#include "tests/support/fixture_virtual.h"
#include "tests/support/model.h"

/* What is recounted from a walk, by state of block. */
typedef struct recount {
    uint64_t bytes[DUCTILE_BLOCK_PAUSED + 1];
    uint64_t blocks[DUCTILE_BLOCK_PAUSED + 1];
    uint64_t requested_bytes;
    uint64_t segments;
    uint64_t address_bytes;
    uint64_t span_bytes; /* from the first to the last block that has memory, over ranges */
} recount;

/* Walks the allocator: blocks tile each range, free neighbours are merged. model may be NULL. */
const char *audit_walk(ductile_allocator *allocator, const model *m, recount *out);

/* ductile_check, statistics, walk, and the model when there is one. */
const char *audit_allocator(ductile_allocator *allocator, const model *m);

/* The same, and that the device agrees. Only when this allocator is alone on it. */
const char *audit_fixture(const fixture *f, const model *m);

#endif
