/* SPDX-License-Identifier: Apache-2.0 */
/* The quick paths: serving a request from a FREE block, and taking a block back. */
#ifndef DUCTILE_POOL_BLOCKS_SERVE_H
#define DUCTILE_POOL_BLOCKS_SERVE_H

#include "pool/blocks/arena.h"

/*
 * Serves from the arena's best fit. NULL when no block fits, or when a node or room in the address
 * map is missing: the slow path makes both and tries again.
 */
dpool_block *dpool_serve_locked(ductile_allocator *a, dpool_arena *arena, uint64_t size,
                                uint64_t requested);

/* A BUSY span with memory becomes LIVE. Pre: room in the address map. Index lock held. */
void dpool_make_live_locked(ductile_allocator *a, dpool_block *b, uint64_t requested);

/* Frees the live block at addr, or closes the import that starts there; with recorded uses it
 * becomes PENDING. No lock held. */
ductile_status dpool_take_back(ductile_allocator *a, ductile_addr addr);

/* Why no live block starts at addr: FOREIGN, INTERIOR or NOT_LIVE. Index lock held. */
ductile_status dpool_explain_miss_locked(const ductile_allocator *a, ductile_addr addr);

#endif
