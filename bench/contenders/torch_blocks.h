/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks as PyTorch's allocator keeps them: spans that tile a segment, linked to their neighbours,
 * grouped into arenas (one per stream and size class), free ones in an ordered set.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_TORCH_BLOCKS_H
#define DUCTILE_BENCH_CONTENDERS_TORCH_BLOCKS_H

#include "bench/contenders/torch_set.h"

#include <ductile.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct torch_block torch_block;
typedef struct torch_use torch_use;
typedef struct torch_segment torch_segment;

/* A private pool of PyTorch's. */
typedef struct torch_pool {
    ductile_pool_id id;
    bool is_kept; /* the program keeps it: its free memory serves no other */
    struct torch_pool *next;
} torch_pool;

/* The blocks of one stream in one size class and one pool. Caches are never shared between
 * streams or pools. */
typedef struct torch_arena {
    ductile_stream stream;
    const torch_pool *pool; /* NULL: none */
    bool is_small;
    torch_set free;     /* mapped free blocks, by (size, address)        */
    torch_set unmapped; /* spans without memory, by address; expandable  */
    struct torch_arena *next;
} torch_arena;

/*
 * One span of a segment.
 *
 *   state     is_live  n_pending  is_mapped  in set
 *   live      true     0          true       -
 *   pending   false    above 0    true       -
 *   free      false    0          true       arena->free
 *   unmapped  false    0          false      arena->unmapped
 */
struct torch_block {
    torch_node node;
    torch_block *prev; /* neighbours by address in the same segment */
    torch_block *next;
    torch_arena *arena;     /* NULL: the block is spare */
    torch_segment *segment; /* NULL for a span of one driver allocation */
    ductile_addr address;
    uint64_t size;
    torch_use *uses;    /* live: other streams recorded on it */
    uint32_t n_pending; /* events not yet seen done           */
    bool is_live;
    bool is_mapped;
};

typedef struct torch_chunk torch_chunk;

/* All arenas of one cache and the memory of all its blocks. All zero is an empty store. */
typedef struct torch_store {
    torch_pool *pools;
    torch_pool *pool; /* that requests belong to; NULL: none */
    torch_arena *arenas;
    torch_arena *latest; /* the arena asked for last: most programs use one stream */
    torch_block *spare;  /* unused blocks, linked by next */
    size_t n_spare;
    torch_chunk *chunks;
} torch_store;

void torch_store_fini(torch_store *store);
/* The pool, made when missing; NULL: no host memory. */
torch_pool *torch_store_pool(torch_store *store, ductile_pool_id id);
/* The arena of a stream and size class in the current pool, made when missing; NULL: no host
 * memory. */
torch_arena *torch_store_arena(torch_store *store, ductile_stream stream, bool is_small);
/* Whether what is wholly free in it may go back to the driver. */
bool torch_arena_gives(const torch_arena *arena);
/* Makes n blocks spare, so that taking them cannot fail. False: no host memory. */
bool torch_store_reserve(torch_store *store, size_t n);
/* Visits every block that is not spare, in no order. */
void torch_store_walk(const torch_store *store, void (*visit)(void *user, const torch_block *block),
                      void *user);

/* An unlinked block over a span. Pre: torch_store_reserve left one spare. */
torch_block *torch_block_take(torch_store *store, torch_arena *arena, ductile_addr address,
                              uint64_t size);
void torch_block_put(torch_store *store, torch_block *block);

/* Takes the first `size` bytes off a block that is in no set: the rest becomes a new block after
 * it, in the same state and in no set. Returns the rest. Pre: one block spare, size < block's. */
torch_block *torch_block_split(torch_store *store, torch_block *block, uint64_t size);
/* Unites a block that is in no set with neighbours that are free and mapped alike. */
void torch_block_merge(torch_store *store, torch_block *block);

void torch_block_insert(torch_block *block); /* into the set of its state */
void torch_block_remove(torch_block *block);

/* Neither live nor waiting for another stream. */
bool torch_block_is_usable(const torch_block *block);
/* Whether it is less than its whole segment. */
bool torch_block_is_split(const torch_block *block);

/* The block of a node; NULL for NULL. */
torch_block *torch_block_of(torch_node *node);

#endif
