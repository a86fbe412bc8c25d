/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pause and resume: the memory behind a pool's live blocks goes back to the driver, their addresses
 * stay.
 *
 *     RUNNING --claim--> PAUSING --unmap--> PAUSED --claim--> RESUMING --publish--> RUNNING
 *        ^                  | fails            ^                   | fails
 *        +------------------+                  +-------------------+
 *
 *     phase       live blocks are      granules under PAUSED and FREE blocks
 *     RUNNING     LIVE                 MAPPED
 *     PAUSING     LIVE, then PAUSED    MAPPED
 *     PAUSED      PAUSED               EMPTY; MAPPED where the driver would not unmap (is_unbacked)
 *     RESUMING    PAUSED               EMPTY, then MAPPED
 *
 * Outside of RUNNING the pool serves nobody, and nobody but the thread that claimed it changes its
 * granules (G4). A PAUSED block stays in the address map: it can be freed, and asked about. What is
 * freed in the phase PAUSED, when nobody changes granules, gives them up, unless graphs may own
 * them; what was freed on the way there follows at its end.
 */
#ifndef DUCTILE_POOL_POOLS_PAUSE_H
#define DUCTILE_POOL_POOLS_PAUSE_H

#include "pool/pools/pools.h"

/* Takes the memory of a pool whose blocks are PAUSED, a part under each hold of the grow lock.
 * Cannot fail: what the driver will not unmap stays, and is looked at again when the memory comes
 * back. No lock held. */
void dpool_unmap_pool(ductile_allocator *a, dpool_private_pool *pool);

/* The pool is PAUSED from now on, and what is free in it needs no memory. No lock held. */
void dpool_finish_pause(ductile_allocator *a, dpool_private_pool *pool);

/* Puts memory behind the pool again: all of it, or none. ERR_OUT_OF_MEMORY, ... No lock held. */
ductile_status dpool_map_pool(ductile_allocator *a, dpool_private_pool *pool);

/* Undoes it without unmapping anything: the pool is unbacked, and all of its memory stays mapped
 * until it is brought back. No lock held. */
void dpool_keep_pool_mapped(ductile_allocator *a, dpool_private_pool *pool);

/* How much memory that takes. No lock held. */
uint64_t dpool_bytes_to_map(ductile_allocator *a, const dpool_private_pool *pool);

/* What leaves when a claimed pool is paused, or is mapped again. Handles that stay because they are
 * pinned are noted in the segments, and neither. No lock held. ERR_OUT_OF_HOST_MEMORY: nobody was
 * told. */
ductile_status dpool_announce_pool(ductile_allocator *a, const dpool_private_pool *pool,
                                   ductile_map_change change);

#endif
