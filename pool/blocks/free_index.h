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
 * A few slots before the bins hold the blocks that became free last (free_front.h). A block that is
 * pushed out of them goes to the bins. A search compares the best fit of both.
 *
 * Guarded by the index lock. No call allocates memory.
 */
#ifndef DUCTILE_POOL_BLOCKS_FREE_INDEX_H
#define DUCTILE_POOL_BLOCKS_FREE_INDEX_H

#include "pool/blocks/free_front.h"
#include "pool/blocks/size_class.h"

enum { DPOOL_BIN_WORDS = DPOOL_BINS / 64 + 1 }; /* one more, always 0: behind the last bin */

_Static_assert(DPOOL_BIN_WORDS < 64, "one summary word covers all bins");

typedef struct dpool_free_index {
    dpool_front front;
    uint64_t summary; /* bit w: words[w] is not 0 */
    uint64_t n_binned;
    uint64_t words[DPOOL_BIN_WORDS];
    dpool_block *bins[DPOOL_BINS];
} dpool_free_index;

void dpool_bins_insert(dpool_free_index *index, dpool_block *b);

/* b had `size` bytes when it was inserted. */
void dpool_bins_remove(dpool_free_index *index, const dpool_block *b, uint64_t size);

/* The first bin from `bin` on that holds a block; DPOOL_BINS when there is none. */
static inline unsigned dpool_bins_next(const dpool_free_index *index, unsigned bin) {
    unsigned w = bin / 64;
    uint64_t word = index->words[w] >> bin % 64;
    if (word != 0) {
        return bin + (unsigned)__builtin_ctzll(word);
    }
    uint64_t later = index->summary >> w >> 1;
    if (later == 0) {
        return DPOOL_BINS;
    }
    w += 1 + (unsigned)__builtin_ctzll(later);
    return w * 64 + (unsigned)__builtin_ctzll(index->words[w]);
}

/* The better fit: the best of the bins or the other block (NULL: none).
 * Pre: that is large enough. */
dpool_block *dpool_bins_best(const dpool_free_index *index, uint64_t size, dpool_block *other);

/* Takes a slot of a full front. */
unsigned dpool_index_make_slot(dpool_free_index *index);

static inline uint64_t dpool_index_count(const dpool_free_index *index) {
    return index->n_binned + (uint64_t)__builtin_popcount(index->front.used);
}

/* The best fit, left in the index; NULL when no block is large enough. *slot: where the front holds
 * it; DPOOL_NO_SLOT when it is in a bin. */
static inline dpool_block *dpool_index_best_at(const dpool_free_index *index, uint64_t size,
                                               unsigned *slot) {
    const dpool_front *front = &index->front;
    unsigned class = dpool_class(size);
    *slot = dpool_front_best(front, class, size);
    if (__builtin_expect(*slot == DPOOL_NO_SLOT, 0)) {
        return dpool_bins_best(index, size, NULL);
    }
    dpool_block *b = front->blocks[*slot];
    unsigned last = front->classes[*slot] >> DPOOL_BIN_LOG2;
    if (__builtin_expect(dpool_bins_next(index, class >> DPOOL_BIN_LOG2) <= last, 0)) {
        dpool_block *best = dpool_bins_best(index, size, b);
        *slot = best == b ? *slot : DPOOL_NO_SLOT;
        return best;
    }
    return b;
}

static inline dpool_block *dpool_index_best(const dpool_free_index *index, uint64_t size) {
    unsigned slot = DPOOL_NO_SLOT;
    return dpool_index_best_at(index, size, &slot);
}

static inline void dpool_index_insert(dpool_free_index *index, dpool_block *b) {
    unsigned slot = dpool_front_is_full(&index->front) ? dpool_index_make_slot(index)
                                                       : dpool_front_take(&index->front);
    dpool_front_put(&index->front, slot, b);
}

static inline void dpool_index_remove(dpool_free_index *index, dpool_block *b) {
    unsigned slot = dpool_front_slot(&index->front, b);
    if (__builtin_expect(slot != DPOOL_NO_SLOT, 1)) {
        dpool_front_empty(&index->front, slot);
    } else {
        dpool_bins_remove(index, b, b->size);
    }
}

/* Of two neighbours that become one block: `gone` leaves the index, where it had `size` bytes, and
 * b enters; in the front it takes over the slot. They may be the same. */
static inline void dpool_index_replace(dpool_free_index *index, const dpool_block *gone,
                                       uint64_t size, dpool_block *b) {
    unsigned slot = dpool_front_slot(&index->front, gone);
    if (__builtin_expect(slot != DPOOL_NO_SLOT, 1)) {
        dpool_front_put(&index->front, slot, b);
    } else {
        dpool_bins_remove(index, gone, size);
        dpool_index_insert(index, b);
    }
}

/*
 * The next block downwards in size: the largest with (size, address) below the given one, or the
 * largest of all when before is NULL. NULL at the end. Logarithmic.
 */
dpool_block *dpool_index_below(const dpool_free_index *index, const dpool_block *before);

/* True when the index holds exactly this block. */
bool dpool_index_holds(const dpool_free_index *index, const dpool_block *b);

/* Are the trees in order, and do bins, bitmaps and count agree with them? Linear (invariant A8). */
bool dpool_index_check(const dpool_free_index *index);

#endif
