/* SPDX-License-Identifier: Apache-2.0 */
/* The state of this room that every allocator embeds. */
#ifndef DUCTILE_POOL_BLOCKS_BLOCKS_STATE_H
#define DUCTILE_POOL_BLOCKS_BLOCKS_STATE_H

#include <ductile.h>

#include <stdatomic.h>
#include <stdint.h>

struct dpool_block;
struct dpool_use;

/*
 * Nodes of blocks, in chunks. Taking one from an empty store fails: slow paths reserve what they
 * and the next hits need, so that no hit calls the system.
 */
typedef struct dpool_nodes {
    struct dpool_block *spare; /* linked by next */
    uint64_t n_spare;
    uint64_t host_bytes;
    struct dpool_node_chunk *chunks;
} dpool_nodes;

typedef struct dpool_map {
    uint64_t *slots;
    unsigned shift; /* of a hash, to its home */
    uint64_t mask;
    uint64_t count;
    uint64_t max_count; /* at most this many, so that probes stay short; 0: one became too long,
                           grow before the next insert */
} dpool_map;

/* The spans with waits, see wait_spans.h. */
typedef struct dpool_wait_spans {
    struct dpool_use *root;
    _Atomic uint64_t n; /* changed under the index lock */
    ductile_addr polled_to;
} dpool_wait_spans;

#endif
