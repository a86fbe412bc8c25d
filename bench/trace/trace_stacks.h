/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where blocks were allocated: the texts of call stacks, each kept once. A text has one frame a
 * line, the innermost first: "FUNCTION FILE:LINE".
 */
#ifndef DUCTILE_BENCH_TRACE_TRACE_STACKS_H
#define DUCTILE_BENCH_TRACE_TRACE_STACKS_H

#include "bench/base/hash_map.h"
#include "bench/base/spill.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All texts together. A recording with more has blocks whose stack is not known. */
#define TRACE_STACKS_MAX_BYTES ((size_t)256 << 20)

/* All zero is empty. A stack's number counts from 1; 0: not known. */
typedef struct trace_stacks {
    char **texts; /* of number n at n - 1 */
    size_t n;
    uint32_t capacity;
    size_t bytes;
    hash_map numbers;   /* from a text's hash, or where that is taken from the next free one */
    uint32_t *of_block; /* by the builder's number of a block */
    size_t capacity_blocks;
    size_t n_blocks; /* the blocks behind it have none */
    spill of_block_file;
} trace_stacks;

/* The number of a text, new or known; 0: the texts take too much. False: no host memory. */
bool trace_stacks_add(trace_stacks *s, const char *text, size_t length, uint32_t *number);
/* The block was allocated there. False: no host memory. */
bool trace_stacks_note(trace_stacks *s, uint32_t block, uint32_t number);
uint32_t trace_stacks_of(const trace_stacks *s, uint32_t block);
void trace_stacks_drop(trace_stacks *s);

#endif
