/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/free_front.h"

/* Is the block of one slot a better fit than that of the other? */
static bool is_before(const dpool_front *front, unsigned slot, unsigned other) {
    uint64_t size = front->sizes[slot];
    return size != front->sizes[other] ? size < front->sizes[other]
                                       : front->addrs[slot] < front->addrs[other];
}

/* The slot of the best fit among the given ones; DPOOL_NO_SLOT when none is large enough. */
static unsigned best_of(const dpool_front *front, uint32_t slots, uint64_t size) {
    unsigned best = DPOOL_NO_SLOT;
    for (; slots != 0; slots &= slots - 1) {
        unsigned slot = (unsigned)__builtin_ctz(slots);
        bool is_better = best == DPOOL_NO_SLOT || is_before(front, slot, best);
        best = front->sizes[slot] >= size && is_better ? slot : best;
    }
    return best;
}

__attribute__((noinline)) unsigned dpool_front_choose(const dpool_front *front, uint32_t fits,
                                                      unsigned class, uint64_t size) {
    unsigned best = best_of(front, fits, size);
    if (best == DPOOL_NO_SLOT) {
        fits = dpool_front_fits(front->classes, class + 1);
        best = best_of(front, fits, size);
    }
    return best;
}
