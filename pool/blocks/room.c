/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/room.h"

#include "pool/blocks/address_map.h"

#include <stdlib.h>

enum { NODES_PER_CHUNK = 1023 };

typedef struct dpool_node_chunk {
    struct dpool_node_chunk *next;
    _Alignas(64)
        dpool_block nodes[NODES_PER_CHUNK]; /* the address map uses the low bits of the addresses */
} dpool_node_chunk;

static void add_chunk(dpool_nodes *nodes, dpool_node_chunk *chunk) {
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

static ductile_status grow_map(ductile_allocator *a) {
    uint64_t capacity = dpool_map_next_capacity(&a->map);
    uint64_t *slots = calloc(capacity, sizeof *slots);
    if (slots == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    uint64_t *old = dpool_map_grow_with(&a->map, slots, capacity);
    a->counts.table_host_bytes += capacity * sizeof *slots;
    a->counts.table_host_bytes -= old != NULL ? capacity / 2 * sizeof *slots : 0;
    dti_lock_release(&a->index_lock);
    free(old);
    return DUCTILE_OK;
}

static ductile_status add_nodes(ductile_allocator *a) {
    dpool_node_chunk *chunk = aligned_alloc(_Alignof(dpool_node_chunk), sizeof *chunk);
    if (chunk == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&a->index_lock);
    add_chunk(&a->nodes, chunk);
    dti_lock_release(&a->index_lock);
    return DUCTILE_OK;
}

static void read_room(ductile_allocator *a, uint64_t n_nodes, uint64_t n_places, bool *nodes,
                      bool *map) {
    dti_lock_acquire(&a->index_lock);
    *nodes = a->nodes.n_spare >= n_nodes;
    *map = a->map.count + n_places < a->map.max_count;
    dti_lock_release(&a->index_lock);
}

ductile_status dpool_reserve_places(ductile_allocator *a, uint64_t n_nodes, uint64_t n_places) {
    for (;;) {
        bool nodes = false;
        bool map = false;
        read_room(a, n_nodes, n_places, &nodes, &map);
        if (nodes && map) {
            return DUCTILE_OK;
        }
        DTI_TRY(nodes ? grow_map(a) : add_nodes(a));
    }
}

ductile_status dpool_reserve_room(ductile_allocator *a, uint64_t n_nodes) {
    return dpool_reserve_places(a, n_nodes, 1);
}
