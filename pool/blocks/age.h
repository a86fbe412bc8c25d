/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ages: when memory was freed, by a clock of the whole allocator that moves on just before each
 * proof is recorded (streams/marks.h). What was freed at an age below that of a proof was freed
 * before it was recorded.
 *
 * A block stores the age of its youngest part. Where parts of different ages merge, the ages of
 * their granules are written down beside the region, and the block is marked as mixed: so a small
 * block that is freed beside old memory hides none of it. A granule has the age of its youngest
 * part. Blocks that are not mixed cost nothing.
 *
 * Guarded by the index lock. No call allocates memory.
 */
#ifndef DUCTILE_POOL_BLOCKS_AGE_H
#define DUCTILE_POOL_BLOCKS_AGE_H

#include "pool/blocks/arena.h"

#include "segments/granules.h"

/* The block was freed now, or is treated so. */
static inline void dpool_make_young_locked(const ductile_allocator *a, dpool_block *b) {
    b->age = a->age & DPOOL_AGE_MASK;
    b->is_mixed = false;
}

/* Writes down the ages of both, which differ, and gives b the younger one. */
void dpool_mix_ages(dpool_block *b, dpool_block *gone);

/* Gives b, which is about to absorb `gone` beside it, the age of both. */
static inline void dpool_unite_ages(dpool_block *b, dpool_block *gone) {
    if (__builtin_expect(b->age != gone->age || b->is_mixed || gone->is_mixed, 0)) {
        dpool_mix_ages(b, gone);
    }
}

/* The topmost run of granules in the span that are older than `below`; empty when there is none.
 * Pre: the span lies in b. Linear when b is mixed. */
dseg_span dpool_older_part(const dpool_block *b, dseg_span s, uint64_t below);

/* The age that a proof has to be above: of the youngest granule of b, a block of whole granules, or
 * what its arena counts as at least. Linear when b is mixed. */
uint64_t dpool_age_of(const dpool_block *b);

#endif
