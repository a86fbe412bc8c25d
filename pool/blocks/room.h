/* SPDX-License-Identifier: Apache-2.0 */
/* Reserves for hits: spare block nodes, and free places in the address map. */
#ifndef DUCTILE_POOL_BLOCKS_ROOM_H
#define DUCTILE_POOL_BLOCKS_ROOM_H

#include "pool/base/allocator.h"
#include "pool/blocks/block.h"

void dpool_nodes_fini(dpool_nodes *nodes);

static inline dpool_block *dpool_node_take(dpool_nodes *nodes) {
    dpool_block *b = nodes->spare;
    nodes->spare = b->next;
    nodes->n_spare--;
    /* The next cut writes it, and it has often been idle for long. */
    __builtin_prefetch(nodes->spare, 1);
    return b;
}

static inline void dpool_node_give(dpool_nodes *nodes, dpool_block *b) {
    b->next = nodes->spare;
    nodes->spare = b;
    nodes->n_spare++;
}

/* Reserves `n_nodes` spare nodes and a place in the address map. Grow lock held, index lock not. */
ductile_status dpool_reserve_room(ductile_allocator *a, uint64_t n_nodes);

/* The same with so many places. Hits of other threads may take all but one of them. */
ductile_status dpool_reserve_places(ductile_allocator *a, uint64_t n_nodes, uint64_t n_places);

#endif
