/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equal blocks stand in regular strides: a step's blocks of one size, freed, all lie equally far
 * apart. The tree of their bin must stay as shallow there as with addresses by chance, also for
 * strides that a multiplicative hash keeps in order, such as Fibonacci numbers.
 *
 * The shape of a treap depends on what it holds and not on the order of insertion.
 */
#include "pool/blocks/free_index.h"
#include "tests/support/expect.h"

#include <criterion/parameterized.h>
#include <stdlib.h>

#define FIRST_ADDRESS ((ductile_addr)1 << 48)

enum {
    N_BLOCKS = 20000,
    BLOCK_UNITS = 307,
    /* 2 ln n + O(1) is the mean depth of a random tree, and about 4.3 ln n the greatest of all. */
    MOST_MEAN_DEPTH = 30,
    MOST_DEPTH = 60
};

typedef struct depths {
    uint64_t sum;
    uint64_t most;
} depths;

/* Recursion to the left alone; as deep as the tree. */
static void measure(const dpool_block *b, uint64_t depth, depths *d) {
    for (; b != NULL; b = b->right) {
        depth++;
        d->sum += depth;
        d->most = depth > d->most ? depth : d->most;
        measure(b->left, depth, d);
    }
}

static dpool_block *blocks_apart(uint64_t stride_units) {
    dpool_block *blocks = calloc(N_BLOCKS, sizeof *blocks);
    cr_assert_not_null(blocks);
    for (uint64_t i = 0; i < N_BLOCKS; i++) {
        blocks[i].addr = FIRST_ADDRESS + i * stride_units * DPOOL_UNIT;
        blocks[i].size = BLOCK_UNITS * DPOOL_UNIT;
        blocks[i].state = DPOOL_FREE;
    }
    return blocks;
}

/* Fibonacci numbers, powers of two, their neighbours, twice the block's size, and others. */
static uint64_t strides[] = {4181, 17711, 6765, 10946, 2584, 1597, 1024, 4096,
                             8192, 4095,  4097, 610,   614,  1000, 5120, 12288};

ParameterizedTestParameters(free_index, equal_blocks_in_strides_stay_shallow) {
    return cr_make_param_array(uint64_t, strides, sizeof strides / sizeof *strides, NULL);
}

ParameterizedTest(uint64_t *stride, free_index, equal_blocks_in_strides_stay_shallow) {
    dpool_free_index *index = calloc(1, sizeof *index);
    cr_assert_not_null(index);
    dpool_block *blocks = blocks_apart(*stride);
    for (size_t i = 0; i < N_BLOCKS; i++) {
        dpool_index_insert(index, &blocks[i]);
    }
    depths d = {0, 0};
    measure(index->bins[dpool_bin(BLOCK_UNITS * DPOOL_UNIT)], 0, &d);
    uint64_t mean = d.sum / N_BLOCKS;
    cr_assert_leq(mean, MOST_MEAN_DEPTH, "stride %llu: mean depth %llu",
                  (unsigned long long)*stride, (unsigned long long)mean);
    cr_assert_leq(d.most, MOST_DEPTH, "stride %llu: depth %llu", (unsigned long long)*stride,
                  (unsigned long long)d.most);
    free(blocks);
    free(index);
}
