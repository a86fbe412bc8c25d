/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each block lay at an earlier moment of a recording: from the blocks in use then, what was
 * held at the end, and which memory was taken and given back between.
 */
#ifndef DUCTILE_BENCH_TRACE_REWIND_H
#define DUCTILE_BENCH_TRACE_REWIND_H

#include "bench/trace/recorded.h"

/* What is known of the memory in a range: whether it was held at the moment. */
typedef struct rewind_region {
    uint64_t address, size;
    uint64_t stream; /* of its segment */
    uint32_t pool;   /* of its segment: the caller's */
    bool was_held;
    bool is_expandable; /* it forms one segment with such neighbours */
} rewind_region;

typedef struct rewind_block {
    uint64_t address, size; /* as requested, or as rounded where that is known */
    uint32_t number;        /* the caller's */
    bool is_pending;
} rewind_block;

/* All zero is empty. */
typedef struct rewind_state {
    rewind_region *regions; /* of two that overlap, the earlier one tells */
    size_t n_regions;
    uint32_t regions_capacity;
    rewind_block *blocks;
    size_t n_blocks;
    uint32_t blocks_capacity;
} rewind_state;

/* Each returns false when the host has no memory. The spans that are found have the streams and
 * pools of their regions, and for a block its number + 1. */
bool rewind_add_region(rewind_state *r, rewind_region region);
bool rewind_add_block(rewind_state *r, rewind_block block);
/* Sorts the blocks. *out is not known where they contradict the regions. */
bool rewind_find(rewind_state *r, recorded_layout *out);
void rewind_drop(rewind_state *r);

#endif
