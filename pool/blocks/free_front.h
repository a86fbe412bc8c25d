/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of the free index: the blocks that became free last, in slots without any order.
 * Programs mostly request what they have just freed, or free what lies beside it: on recorded
 * training runs nine out of ten blocks that leave the index are among the latest 32. One store
 * fills or empties a slot. The search compares the classes of all slots at once, without a branch
 * that depends on sizes, because mispredicted branches cost more here than all the comparisons.
 * Sizes themselves are compared only where classes are equal.
 *
 * A block in a slot stores its number; in any other block, `slot` may have any value.
 */
#ifndef DUCTILE_POOL_BLOCKS_FREE_FRONT_H
#define DUCTILE_POOL_BLOCKS_FREE_FRONT_H

#include "pool/blocks/block.h"
#include "pool/blocks/size_class.h"

#include "vmm/base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DPOOL_FRONT_SLOTS = 32, DPOOL_NO_SLOT = DPOOL_FRONT_SLOTS };

typedef struct dpool_front {
    _Alignas(16) uint16_t classes[DPOOL_FRONT_SLOTS]; /* of the slot's block; 0: empty */
    dpool_block *blocks[DPOOL_FRONT_SLOTS];           /* NULL: empty */
    uint64_t sizes[DPOOL_FRONT_SLOTS];                /* of the block: a search reads no block */
    ductile_addr addrs[DPOOL_FRONT_SLOTS];
    uint32_t used; /* bit i: slot i is taken */
    uint32_t hand; /* the slot that is emptied next when all are taken */
} dpool_front;

/* The slots of the smallest class that is at least `least`, a bit each; 0 when there is none.
 * Pre: 0 < least. */
static inline uint32_t dpool_front_fits_plain(const uint16_t *slots, unsigned least) {
    unsigned best = UINT16_MAX;
    for (int i = 0; i < DPOOL_FRONT_SLOTS; i++) {
        best = slots[i] >= least && slots[i] < best ? slots[i] : best;
    }
    uint32_t mask = 0;
    for (int i = 0; i < DPOOL_FRONT_SLOTS; i++) {
        mask |= (uint32_t)(slots[i] == best) << i;
    }
    return mask;
}

#if defined(__SSE2__)

/* The smallest of eight numbers, in the lower two lanes. */
static inline __m128i dpool_front_smallest(__m128i of) {
    of = _mm_min_epi16(of, _mm_shuffle_epi32(of, _MM_SHUFFLE(1, 0, 3, 2)));
    of = _mm_min_epi16(of, _mm_shuffle_epi32(of, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_min_epi16(of, _mm_shufflelo_epi16(of, _MM_SHUFFLE(2, 3, 0, 1)));
}

/* The slots of the smallest class that is at least `least`, a bit each; 0 when there is none. Pre:
 * 0 < least. Each class is compared by its excess over the request, moved down by 2^15: classes
 * that fit become the negative numbers, in order, and the search takes the least. */
static inline uint32_t dpool_front_fits(const uint16_t *classes, unsigned least) {
    const __m128i *slots = (const __m128i *)(const void *)classes;
    const __m128i base = _mm_set1_epi16((short)(least ^ 0x8000u));
    __m128i a = _mm_sub_epi16(slots[0], base);
    __m128i b = _mm_sub_epi16(slots[1], base);
    __m128i c = _mm_sub_epi16(slots[2], base);
    __m128i d = _mm_sub_epi16(slots[3], base);
    __m128i best = dpool_front_smallest(_mm_min_epi16(_mm_min_epi16(a, b), _mm_min_epi16(c, d)));
    if ((int16_t)_mm_cvtsi128_si32(best) >= 0) {
        return 0;
    }
    best = _mm_shuffle_epi32(best, 0);
    __m128i low = _mm_packs_epi16(_mm_cmpeq_epi16(a, best), _mm_cmpeq_epi16(b, best));
    __m128i high = _mm_packs_epi16(_mm_cmpeq_epi16(c, best), _mm_cmpeq_epi16(d, best));
    return (uint32_t)_mm_movemask_epi8(low) | (uint32_t)_mm_movemask_epi8(high) << 16;
}

#else

static inline uint32_t dpool_front_fits(const uint16_t *classes, unsigned least) {
    return dpool_front_fits_plain(classes, least);
}

#endif

/* The slot of the best fit where the classes leave a choice: among the fits, or, when all of them
 * are of the request's class and less than it, in the next class. DPOOL_NO_SLOT when no block is
 * large enough. */
unsigned dpool_front_choose(const dpool_front *front, uint32_t fits, unsigned class, uint64_t size);

/* The slot of the best fit of the front; DPOOL_NO_SLOT when no block is large enough. */
static inline unsigned dpool_front_best(const dpool_front *front, unsigned class, uint64_t size) {
    uint32_t fits = dpool_front_fits(front->classes, class);
    if (fits == 0) {
        return DPOOL_NO_SLOT;
    }
    unsigned slot = (unsigned)__builtin_ctz(fits);
    bool is_clear = (fits & (fits - 1)) == 0 && front->sizes[slot] >= size;
    return __builtin_expect(is_clear, 1) ? slot : dpool_front_choose(front, fits, class, size);
}

/* The slot that holds b; DPOOL_NO_SLOT when none does. */
static inline unsigned dpool_front_slot(const dpool_front *front, const dpool_block *b) {
    unsigned slot = b->slot % DPOOL_FRONT_SLOTS;
    return front->blocks[slot] == b ? slot : DPOOL_NO_SLOT;
}

/* Pre: the slot is taken. */
static inline void dpool_front_empty(dpool_front *front, unsigned slot) {
    front->classes[slot] = 0;
    front->blocks[slot] = NULL;
    front->used &= ~((uint32_t)1 << slot);
}

static inline bool dpool_front_is_full(const dpool_front *front) {
    return front->used == UINT32_MAX;
}

/* Empties the slot at the clock hand. Pre: all slots are taken. */
static inline dpool_block *dpool_front_evict(dpool_front *front) {
    unsigned slot = front->hand;
    dpool_block *b = front->blocks[slot];
    front->hand = (slot + 1) % DPOOL_FRONT_SLOTS;
    dpool_front_empty(front, slot);
    return b;
}

/* Takes an empty slot. Pre: one is empty. */
static inline unsigned dpool_front_take(dpool_front *front) {
    unsigned slot = (unsigned)__builtin_ctz(~front->used);
    front->used |= (uint32_t)1 << slot;
    return slot;
}

/* Puts b into a slot that was taken for it or held another block. */
static inline void dpool_front_put(dpool_front *front, unsigned slot, dpool_block *b) {
    front->classes[slot] = (uint16_t)dpool_class(b->size);
    front->blocks[slot] = b;
    front->sizes[slot] = b->size;
    front->addrs[slot] = b->addr;
    b->slot = slot;
}

#endif
