/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of blocks: multiples of 512 bytes, counted in such units. Classes number the sizes in
 * order: 1,024 classes per power of two, or one for each size where there are fewer sizes. A bin of
 * the free index holds 8 classes.
 */
#ifndef DUCTILE_POOL_BLOCKS_SIZE_CLASS_H
#define DUCTILE_POOL_BLOCKS_SIZE_CLASS_H

#include "vmm/base/align.h"

#include <ductile.h>

#define DPOOL_UNIT ((uint64_t)DUCTILE_ALIGNMENT)

enum {
    DPOOL_SUB_LOG2 = 10, /* each power of two has 2^10 classes: sizes below 1 MiB one each */
    DPOOL_MAX_LOG2 = 40, /* sizes are below 2^40 units (512 TiB) */
    DPOOL_CLASSES = (DPOOL_MAX_LOG2 - DPOOL_SUB_LOG2 + 1) << DPOOL_SUB_LOG2,
    DPOOL_BIN_LOG2 = 3, /* classes of a bin */
    DPOOL_BINS = DPOOL_CLASSES >> DPOOL_BIN_LOG2
};

_Static_assert(DPOOL_CLASSES <= INT16_MAX, "the front compares classes as numbers of 16 bits");

/* Larger requests cannot be rounded without overflow; no device comes near. */
#define DPOOL_MAX_REQUEST ((uint64_t)1 << (DPOOL_MAX_LOG2 + 8))

_Static_assert(DPOOL_MAX_REQUEST / DUCTILE_ALIGNMENT < (uint64_t)1 << DPOOL_MAX_LOG2,
               "every request has a class");

static inline uint64_t dpool_round(uint64_t size) {
    return dti_round_up(size, DPOOL_UNIT);
}

/* Has no branch, because the order of sizes cannot be predicted. */
static inline unsigned dpool_class(uint64_t size) {
    uint64_t units = size / DPOOL_UNIT;
    uint64_t at_least = units | (uint64_t)1 << DPOOL_SUB_LOG2;
    unsigned shift = 63u - DPOOL_SUB_LOG2 - (unsigned)__builtin_clzll(at_least);
    return (shift << DPOOL_SUB_LOG2) + (unsigned)(units >> shift);
}

static inline unsigned dpool_bin(uint64_t size) {
    return dpool_class(size) >> DPOOL_BIN_LOG2;
}

#endif
