/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts blocks, their regions and arenas, and private pools. Each check records the first
 * invariant that does not hold in *fault. Both locks held, and no plan under way.
 */
#ifndef DUCTILE_POOL_BLOCKS_CHECK_BLOCKS_H
#define DUCTILE_POOL_BLOCKS_CHECK_BLOCKS_H

#include "pool/blocks/arena.h"
#include "vmm/base/fault.h"

/* What the blocks of arenas add up to. */
typedef struct dpool_block_sums {
    uint64_t live, pending, mapped, retiring, requested, asleep; /* bytes */
    uint64_t live_blocks, pending_blocks, free_blocks, leaving_blocks, pads, gap_blocks,
        closed_gap_blocks, retiring_blocks, asleep_blocks;
} dpool_block_sums;

/* One arena: its blocks and regions (B1-B8, S2, S4, A5), its free index (A8), sums (A1), lists (A2,
 * A3), proofs (A4) and phase (G4), and the slots of its segments. Adds its sums to *all. */
void dpool_arena_check_locked(const ductile_allocator *a, const dpool_arena *arena,
                              dpool_block_sums *all, dti_fault *fault);

/* One private pool: its counts (G2) and its proof (G3). */
void dpool_private_pool_check_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                                     dti_fault *fault);

#endif
