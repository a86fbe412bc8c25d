/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks as PyTorch's allocator keeps them: spans that tile a segment, linked to their neighbours,
 * grouped into arenas (one per stream and size class), free ones in an ordered set.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_BLOCKS_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_BLOCKS_H

#include "bench/contenders/rival_set.h"

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct rival_block rival_block;
typedef struct rival_use rival_use;
typedef struct rival_segment rival_segment;

/* A private pool of PyTorch's. */
typedef struct rival_pool {
    ductile_pool_id id;
    bool is_kept; /* the program keeps it: its free memory serves no other */
    struct rival_pool *next;
} rival_pool;

/* The blocks of one stream in one size class and one pool. Caches are never shared between
 * streams or pools. */
typedef struct rival_arena {
    ductile_stream stream;
    const rival_pool *pool; /* NULL: none */
    bool is_small;
    rival_set free;     /* mapped free blocks, by (size, address)        */
    rival_set unmapped; /* spans without memory, by address; expandable  */
    struct rival_arena *next;
} rival_arena;

/*
 * One span of a segment.
 *
 *   state     is_live  n_pending  is_mapped  in set
 *   live      true     0          true       -
 *   pending   false    above 0    true       -
 *   free      false    0          true       arena->free
 *   unmapped  false    0          false      arena->unmapped
 */
struct rival_block {
    rival_node node;
    rival_block *prev; /* neighbours by address in the same segment */
    rival_block *next;
    rival_arena *arena;     /* NULL: the block is spare */
    rival_segment *segment; /* NULL for a span of one driver allocation */
    ductile_addr address;
    uint64_t size;
    rival_use *uses;    /* live: other streams recorded on it */
    uint32_t n_pending; /* events not yet seen done           */
    bool is_live;
    bool is_mapped;
};

typedef struct rival_chunk rival_chunk;

/* All arenas of one cache and the memory of all its blocks. All zero is an empty store. */
typedef struct rival_store {
    rival_pool *pools;
    rival_pool *pool; /* that requests belong to; NULL: none */
    rival_arena *arenas;
    rival_arena *latest; /* the arena asked for last: most programs use one stream */
    rival_block *spare;  /* unused blocks, linked by next */
    size_t n_spare;
    rival_chunk *chunks;
} rival_store;

void rival_store_fini(rival_store *store);
/* The pool, made when missing; NULL: no host memory. */
rival_pool *rival_store_pool(rival_store *store, ductile_pool_id id);
/* The arena of a stream and size class in the current pool, made when missing; NULL: no host
 * memory. */
rival_arena *rival_store_arena(rival_store *store, ductile_stream stream, bool is_small);
/* Whether what is wholly free in it may go back to the driver. */
bool rival_arena_gives(const rival_arena *arena);
/* Makes n blocks spare, so that taking them cannot fail. False: no host memory. */
bool rival_store_reserve(rival_store *store, size_t n);
/* Visits every block that is not spare, in no order. */
void rival_store_walk(const rival_store *store, void (*visit)(void *user, const rival_block *block),
                      void *user);

/* An unlinked block over a span. Pre: rival_store_reserve left one spare. */
rival_block *rival_block_take(rival_store *store, rival_arena *arena, ductile_addr address,
                              uint64_t size);
void rival_block_put(rival_store *store, rival_block *block);

/* Takes the first `size` bytes off a block that is in no set: the rest becomes a new block after
 * it, in the same state and in no set. Returns the rest. Pre: one block spare, size < block's. */
rival_block *rival_block_split(rival_store *store, rival_block *block, uint64_t size);
/* Unites a block that is in no set with neighbours that are free and mapped alike. */
void rival_block_merge(rival_store *store, rival_block *block);

void rival_block_insert(rival_block *block); /* into the set of its state */
void rival_block_remove(rival_block *block);

/* Neither live nor waiting for another stream. */
bool rival_block_is_usable(const rival_block *block);
/* Whether it is less than its whole segment. */
bool rival_block_is_split(const rival_block *block);

/* The block of a node; NULL for NULL. */
rival_block *rival_block_of(rival_node *node);

#endif
