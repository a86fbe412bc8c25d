/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shadow allocator: a sorted array of live intervals and nothing clever. It does not predict
 * where a block will lie; it says whether where it lies is admissible. Tests compare the real
 * allocator with it after every operation.
 */
#ifndef TESTS_SUPPORT_MODEL_H
#define TESTS_SUPPORT_MODEL_H

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One live block as its user sees it. */
typedef struct model_block {
    ductile_addr address;
    uint64_t requested; /* bytes asked for                                                  */
    uint64_t size;      /* the same, rounded up to DUCTILE_ALIGNMENT; what it must not share */
    size_t stream;      /* index of the stream it was allocated on                           */
    uint32_t recorded;  /* bit i: stream i was recorded on it                                */
    uint8_t pattern;    /* the byte it is filled with, when contents are checked             */
    uint8_t captured;   /* what a graph fills it with when it is launched; 0: none does      */
    bool is_blank;      /* its contents are undefined                                        */
    bool is_unmarkable; /* a stream was recorded that no free can mark, as its thread is gone */
    bool is_asleep, is_dedicated;
    unsigned pool; /* 0: none; else the caller's number of its private pool */
} model_block;

/* Owner: one test. Blocks ascend by address and are disjoint. */
typedef struct model {
    model_block *blocks;
    size_t n, capacity;
    uint64_t requested_bytes; /* sum over blocks */
    bool has_sleeping_pool;   /* which may hold mapped memory that no block shows */
} model;

void model_init(model *m);
void model_fini(model *m);

/* Bytes rounded up to DUCTILE_ALIGNMENT; saturates at the highest multiple. */
uint64_t model_rounded(uint64_t size);

/* Adds a block; NULL, or why the allocator should not have handed it out: not aligned, address 0,
 * overlapping a live one. */
const char *model_add(model *m, const model_block *block);

/* Removes and returns the block at index i. */
model_block model_remove(model *m, size_t i);

/* Index of the live block that starts at `address`; m->n when there is none. */
size_t model_find(const model *m, ductile_addr address);

/* Granules that live blocks touch: memory no allocator can use for another granule's worth. */
uint64_t model_pinned_granules(const model *m, uint64_t granule);

#endif
