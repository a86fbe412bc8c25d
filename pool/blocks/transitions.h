/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations on blocks: some change the bounds of a block, the others its state. The rest of
 * the pool is composed of them. Index lock held.
 */
#ifndef DUCTILE_POOL_BLOCKS_TRANSITIONS_H
#define DUCTILE_POOL_BLOCKS_TRANSITIONS_H

#include "pool/blocks/arena.h"
#include "pool/blocks/room.h"

/* ---- Bounds -------------------------------------------------------------------------------- */

/*
 * Cuts a block after `size` bytes. The rest becomes a block of its own, of the same state and
 * age, in no index or list. Pre: 0 < size < b->size; a spare node; b in no index or list, or in
 * one that does not depend on its size.
 */
dpool_block *dpool_split(dpool_nodes *nodes, dpool_block *b, uint64_t size);

/* Cuts at addr if it lies inside the block. Returns the part from addr on, or the block itself. */
dpool_block *dpool_cut(dpool_nodes *nodes, dpool_block *b, ductile_addr addr);

/* Merges b with its next neighbour, whose node is given back. The younger age stays. Pre: neither
 * is in an index or list that depends on size; the next one is in none at all. */
void dpool_absorb_next(dpool_nodes *nodes, dpool_block *b);

/* ---- States -------------------------------------------------------------------------------- */

/* A span with memory becomes FREE: merged with free neighbours and indexed. Closed regions list it
 * as leaving. Returns the result. */
dpool_block *dpool_make_free_locked(ductile_allocator *a, dpool_block *b);

/* A span without memory becomes GAP: merged with neighbouring gaps and listed. Closed regions do
 * not list it. */
dpool_block *dpool_make_gap_locked(ductile_allocator *a, dpool_block *b);

/* Takes a FREE or GAP block out of its index or list and marks it BUSY. */
void dpool_make_busy_locked(ductile_allocator *a, dpool_block *b);

/* Closes a region: it serves no request but the present one from now on (arena.h), and its block
 * becomes BUSY. Pre: it has no memory, so that the block is a GAP. */
void dpool_close_region_locked(ductile_allocator *a, dpool_region *region);

/* Makes [from, to) of a FREE or a GAP block BUSY and returns it; what lies below and above stays as
 * it is. Pre: two spare nodes. */
dpool_block *dpool_carve_free_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                     ductile_addr to);
dpool_block *dpool_carve_gap_locked(ductile_allocator *a, dpool_block *b, ductile_addr from,
                                    ductile_addr to);

/* A BUSY span with memory becomes LIVE. Pre: room in the address map. */
void dpool_make_live_locked(ductile_allocator *a, dpool_block *b, uint64_t requested);

/*
 * The arena's best fit becomes LIVE; what is left of it stays FREE. NULL when no block fits, or
 * when a node or room in the address map is missing: the slow path makes both and tries again.
 */
dpool_block *dpool_alloc_from_free_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                          uint64_t requested);

/* Counts a LIVE block, out of the address map, as freed. The caller changes its state. */
void dpool_leave_live_locked(ductile_allocator *a, dpool_block *b);

/* The same for a PENDING block, and for an ASLEEP one. */
void dpool_leave_pending_locked(ductile_allocator *a, const dpool_block *b);
void dpool_leave_asleep_locked(ductile_allocator *a, const dpool_block *b);

/* Makes a block that dpool_leave_live_locked has counted out FREE: its own stream may reuse it at
 * once. */
void dpool_free_at_once_locked(ductile_allocator *a, dpool_block *b);

/* Undoes dpool_alloc_from_free_locked for a block that no caller has seen, without counting an
 * allocation. */
void dpool_unserve_locked(ductile_allocator *a, dpool_block *b);

/* The first makes a LIVE block ASLEEP, the second makes it LIVE again. The block stays in the
 * address map. */
void dpool_sleep_block_locked(ductile_allocator *a, dpool_block *b);
void dpool_wake_block_locked(ductile_allocator *a, dpool_block *b);

#endif
