/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of the free index: the blocks that became free last, in slots without any order.
 * Programs mostly ask for what they have just freed, or free what lies beside it: on recorded
 * training runs nine out of ten blocks that leave the index are among the latest 32. A slot is
 * filled and emptied by a store, and the best fit is found by comparing all slots at once, without
 * a branch that depends on sizes: what the processor cannot foresee costs more here than all the
 * comparisons.
 *
 * A block that is in a slot knows its number; of any other one `slot` may be anything.
 */
#ifndef DUCTILE_POOL_FREE_FRONT_H
#define DUCTILE_POOL_FREE_FRONT_H

#include "pool/block.h"
#include "pool/size_class.h"

#include "vmm/base/check.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { DPOOL_FRONT_SLOTS = 32, DPOOL_NO_SLOT = DPOOL_FRONT_SLOTS };

/* Sizes in units fit a signed 32-bit number; larger blocks (1 TiB) are none for the front. */
#define DPOOL_FRONT_MAX_UNITS ((uint64_t)INT32_MAX)

typedef struct dpool_front {
    _Alignas(16) uint32_t units[DPOOL_FRONT_SLOTS]; /* size of the slot's block; 0: empty */
    dpool_block *blocks[DPOOL_FRONT_SLOTS];         /* NULL: empty */
    uint32_t used;                                  /* bit i: slot i is taken */
    uint32_t hand; /* the slot that is emptied next when all are taken */
} dpool_front;

/* The slots of the smallest size that is at least `units`, a bit each; 0 when there is none. */
static inline uint32_t dpool_front_fits_plain(const uint32_t *slots, uint32_t units) {
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < DPOOL_FRONT_SLOTS; i++) {
        least = slots[i] >= units && slots[i] < least ? slots[i] : least;
    }
    uint32_t mask = 0;
    for (int i = 0; i < DPOOL_FRONT_SLOTS; i++) {
        mask |= (uint32_t)(slots[i] == least) << i;
    }
    return mask;
}

#if defined(__SSE2__)

static inline __m128i dpool_front_least(__m128i a, __m128i b) {
    __m128i below = _mm_cmplt_epi32(a, b);
    return _mm_or_si128(_mm_and_si128(below, a), _mm_andnot_si128(below, b));
}

/* 16 slots that equal `size`, a bit each. */
static inline uint32_t dpool_front_equal(const __m128i *slots, __m128i size) {
    __m128i low = _mm_packs_epi32(_mm_cmpeq_epi32(slots[0], size), _mm_cmpeq_epi32(slots[1], size));
    __m128i high =
        _mm_packs_epi32(_mm_cmpeq_epi32(slots[2], size), _mm_cmpeq_epi32(slots[3], size));
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(low, high));
}

/* As dpool_front_fits_plain. Sizes are compared by what they exceed the request by, moved down by
 * 2^31: those that fit are then the negative numbers, in order, and the least of all is sought. */
static inline uint32_t dpool_front_fits(const uint32_t *units_of, uint32_t units) {
    const __m128i *slots = (const __m128i *)(const void *)units_of;
    const __m128i base = _mm_set1_epi32((int)(units ^ 0x80000000u));
    __m128i even = _mm_sub_epi32(slots[0], base);
    __m128i odd = _mm_sub_epi32(slots[1], base);
    for (int i = 2; i < DPOOL_FRONT_SLOTS / 4; i += 2) {
        even = dpool_front_least(even, _mm_sub_epi32(slots[i], base));
        odd = dpool_front_least(odd, _mm_sub_epi32(slots[i + 1], base));
    }
    __m128i least = dpool_front_least(even, odd);
    least = dpool_front_least(least, _mm_shuffle_epi32(least, _MM_SHUFFLE(1, 0, 3, 2)));
    least = dpool_front_least(least, _mm_shuffle_epi32(least, _MM_SHUFFLE(2, 3, 0, 1)));
    if (_mm_cvtsi128_si32(least) >= 0) {
        return 0;
    }
    __m128i size = _mm_add_epi32(least, base);
    return dpool_front_equal(slots, size) | dpool_front_equal(slots + 4, size) << 16;
}

#else

static inline uint32_t dpool_front_fits(const uint32_t *units_of, uint32_t units) {
    return dpool_front_fits_plain(units_of, units);
}

#endif

/* The best fit of the front; NULL when no block is large enough. */
static inline dpool_block *dpool_front_best(const dpool_front *front, uint32_t units) {
    uint32_t fits = dpool_front_fits(front->units, units);
    if (fits == 0) {
        return NULL;
    }
    dpool_block *best = front->blocks[__builtin_ctz(fits)];
    while ((fits &= fits - 1) != 0) {
        dpool_block *b = front->blocks[__builtin_ctz(fits)];
        best = b->addr < best->addr ? b : best;
    }
    return best;
}

/* The slot that holds b; DPOOL_NO_SLOT when none does. */
static inline unsigned dpool_front_slot(const dpool_front *front, const dpool_block *b) {
    unsigned slot = b->slot % DPOOL_FRONT_SLOTS;
    return front->blocks[slot] == b ? slot : DPOOL_NO_SLOT;
}

/* Pre: the slot is taken. */
static inline void dpool_front_empty(dpool_front *front, unsigned slot) {
    front->units[slot] = 0;
    front->blocks[slot] = NULL;
    front->used &= ~((uint32_t)1 << slot);
}

static inline bool dpool_front_is_full(const dpool_front *front) {
    return front->used == UINT32_MAX;
}

/* Empties the slot whose turn it is. Pre: all are taken. */
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

static inline bool dpool_front_suits(const dpool_block *b) {
    return b->size / DPOOL_UNIT <= DPOOL_FRONT_MAX_UNITS;
}

/* Puts b into a slot that was taken for it or held another block. Pre: it suits. */
static inline void dpool_front_put(dpool_front *front, unsigned slot, dpool_block *b) {
    front->units[slot] = (uint32_t)(b->size / DPOOL_UNIT);
    front->blocks[slot] = b;
    b->slot = slot;
}

#endif
