/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/block.h"

#include "vmm/base/check.h"

#include <stdlib.h>

enum { NODES_PER_CHUNK = 1023 };

typedef struct dpool_node_chunk {
    struct dpool_node_chunk *next;
    _Alignas(64) dpool_block nodes[NODES_PER_CHUNK]; /* the address map needs the low bits */
} dpool_node_chunk;

dpool_node_chunk *dpool_nodes_make_chunk(void) {
    return aligned_alloc(_Alignof(dpool_node_chunk), sizeof(dpool_node_chunk));
}

void dpool_nodes_add_chunk(dpool_nodes *nodes, dpool_node_chunk *chunk) {
    chunk->next = nodes->chunks;
    nodes->chunks = chunk;
    nodes->host_bytes += sizeof *chunk;
    for (int i = NODES_PER_CHUNK - 1; i >= 0; i--) {
        dpool_node_give(nodes, &chunk->nodes[i]);
    }
}

void dpool_nodes_fini(dpool_nodes *nodes) {
    while (nodes->chunks != NULL) {
        dpool_node_chunk *chunk = nodes->chunks;
        nodes->chunks = chunk->next;
        free(chunk);
    }
    *nodes = (dpool_nodes){0};
}

dpool_block *dpool_split(dpool_nodes *nodes, dpool_block *b, uint64_t size) {
    DTI_ASSERT(size > 0 && size < b->size);
    dpool_block *rest = dpool_node_take(nodes);
    rest->addr = b->addr + size;
    rest->size = b->size - size;
    rest->prev = b;
    rest->next = b->next;
    rest->region = b->region;
    rest->marks = b->marks;
    if (rest->next != NULL) {
        rest->next->prev = rest;
    }
    b->next = rest;
    b->size = size;
    return rest;
}

dpool_block *dpool_cut(dpool_nodes *nodes, dpool_block *b, ductile_addr addr) {
    return addr > b->addr && addr < dpool_end(b) ? dpool_split(nodes, b, addr - b->addr) : b;
}

void dpool_absorb_next(dpool_nodes *nodes, dpool_block *b) {
    dpool_block *gone = b->next;
    DTI_ASSERT(gone != NULL && gone->addr == dpool_end(b));
    b->size += gone->size;
    if (gone->epoch > b->epoch) {
        b->epoch = gone->epoch;
    }
    b->next = gone->next;
    if (b->next != NULL) {
        b->next->prev = b;
    }
    dpool_node_give(nodes, gone);
}
