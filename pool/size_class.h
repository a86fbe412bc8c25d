/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes of blocks: multiples of 512 bytes, counted in units of that. Bins of the free index:
 * one for each size up to 1 MiB, then 32 per power of two.
 */
#ifndef DUCTILE_POOL_SIZE_CLASS_H
#define DUCTILE_POOL_SIZE_CLASS_H

#include "vmm/base/align.h"

#include <ductile.h>

#define DPOOL_UNIT ((uint64_t)DUCTILE_ALIGNMENT)

enum {
    DPOOL_EXACT_LOG2 = 11, /* sizes below 2^11 units (1 MiB) have a bin each */
    DPOOL_EXACT_BINS = 1 << DPOOL_EXACT_LOG2,
    DPOOL_SUB_LOG2 = 5,  /* above, each power of two has 2^5 bins */
    DPOOL_MAX_LOG2 = 40, /* sizes are below 2^40 units (512 TiB) */
    DPOOL_BINS = DPOOL_EXACT_BINS + ((DPOOL_MAX_LOG2 - DPOOL_EXACT_LOG2) << DPOOL_SUB_LOG2)
};

/* Larger requests cannot be rounded without overflow; no device comes near. */
#define DPOOL_MAX_REQUEST ((uint64_t)1 << (DPOOL_MAX_LOG2 + 8))

_Static_assert(DPOOL_MAX_REQUEST / DUCTILE_ALIGNMENT < (uint64_t)1 << DPOOL_MAX_LOG2,
               "every request has a bin");

static inline uint64_t dpool_round(uint64_t size) {
    return dti_round_up(size, DPOOL_UNIT);
}

/* Rounds up to one of `divisions` steps between powers of two, as PyTorch's option does. */
uint64_t dpool_round_power2(uint64_t size, uint32_t divisions);

static inline unsigned dpool_bin(uint64_t size) {
    uint64_t units = size / DPOOL_UNIT;
    if (units < DPOOL_EXACT_BINS) {
        return (unsigned)units;
    }
    unsigned log2 = 63u - (unsigned)__builtin_clzll(units);
    unsigned sub = (unsigned)(units >> (log2 - DPOOL_SUB_LOG2)) & ((1u << DPOOL_SUB_LOG2) - 1);
    return DPOOL_EXACT_BINS + ((log2 - DPOOL_EXACT_LOG2) << DPOOL_SUB_LOG2) + sub;
}

#endif
