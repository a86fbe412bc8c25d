/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free index of an arena: exact best fit, that is the smallest FREE block that is large
 * enough, the lowest address among equals.
 *
 * Bins by size (size_class.h) with bitmaps above them; each bin is a treap ordered by (size,
 * address), whose priorities are hashes of the address. Nearly all bins hold a handful of blocks,
 * where a treap is as quick as a list; unlike a list it stays quick with 100,000 blocks of one
 * size. A red-black tree needs parent links, which would not fit the block's cache line.
 *
 * Beside the bins stands one block, the latest that became free: programs mostly free what they
 * will ask for next, or what lies beside it, and then neither call touches a tree. It counts as
 * part of the index in every respect; a search compares it with the best of the bins.
 *
 * Guarded by the hot lock. No call allocates memory.
 */
#ifndef DUCTILE_POOL_FREE_INDEX_H
#define DUCTILE_POOL_FREE_INDEX_H

#include "pool/block.h"
#include "pool/size_class.h"

enum { DPOOL_BIN_WORDS = (DPOOL_BINS + 63) / 64 };

_Static_assert(DPOOL_BIN_WORDS <= 64, "one summary word covers all bins");

typedef struct dpool_free_index {
    dpool_block *latest;
    uint64_t summary; /* bit w: words[w] is not 0 */
    uint64_t words[DPOOL_BIN_WORDS];
    dpool_block *bins[DPOOL_BINS];
    uint64_t n_blocks;
} dpool_free_index;

void dpool_index_insert(dpool_free_index *index, dpool_block *b);
void dpool_index_remove(dpool_free_index *index, dpool_block *b);

/* The best fit, removed from the index; NULL when no block is large enough. */
dpool_block *dpool_index_take(dpool_free_index *index, uint64_t size);

/*
 * The next block downwards in size: the largest with (size, address) below the given one, or the
 * largest of all when before is NULL. NULL at the end. Logarithmic.
 */
dpool_block *dpool_index_below(const dpool_free_index *index, const dpool_block *before);

/* True when the index holds exactly this block. */
bool dpool_index_holds(const dpool_free_index *index, const dpool_block *b);

/* Are the trees in order, and bins, bitmaps and count one with them? Linear (invariant A8). */
bool dpool_index_check(const dpool_free_index *index);

#endif
