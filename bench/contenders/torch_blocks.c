/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/torch_blocks.h"

#include <stdlib.h>

enum { BLOCKS_PER_CHUNK = 512 };

/* Blocks are made many at a time and live as long as their store. */
struct torch_chunk {
    torch_chunk *next;
    torch_block blocks[BLOCKS_PER_CHUNK];
};

/* ---- The store ----------------------------------------------------------------------------- */

void torch_store_fini(torch_store *store) {
    while (store->arenas != NULL) {
        torch_arena *arena = store->arenas;
        store->arenas = arena->next;
        free(arena);
    }
    while (store->pools != NULL) {
        torch_pool *pool = store->pools;
        store->pools = pool->next;
        free(pool);
    }
    while (store->chunks != NULL) {
        torch_chunk *chunk = store->chunks;
        store->chunks = chunk->next;
        free(chunk);
    }
    *store = (torch_store){0};
}

torch_pool *torch_store_pool(torch_store *store, ductile_pool_id id) {
    torch_pool *pool = store->pools;
    while (pool != NULL && (pool->id.first != id.first || pool->id.second != id.second)) {
        pool = pool->next;
    }
    if (pool == NULL) {
        pool = calloc(1, sizeof(*pool));
        if (pool != NULL) {
            *pool = (torch_pool){.id = id, .next = store->pools};
            store->pools = pool;
        }
    }
    return pool;
}

bool torch_arena_gives(const torch_arena *arena) {
    return arena->pool == NULL || !arena->pool->is_kept;
}

static bool arena_is(const torch_store *store, const torch_arena *arena, ductile_stream stream,
                     bool is_small) {
    return arena->stream == stream && arena->is_small == is_small && arena->pool == store->pool;
}

static torch_arena *find_arena(torch_store *store, ductile_stream stream, bool is_small) {
    torch_arena *arena = store->arenas;
    while (arena != NULL && !arena_is(store, arena, stream, is_small)) {
        arena = arena->next;
    }
    return arena;
}

static torch_arena *add_arena(torch_store *store, ductile_stream stream, bool is_small) {
    torch_arena *arena = calloc(1, sizeof(*arena));
    if (arena != NULL) {
        arena->stream = stream;
        arena->pool = store->pool;
        arena->is_small = is_small;
        arena->next = store->arenas;
        store->arenas = arena;
    }
    return arena;
}

torch_arena *torch_store_arena(torch_store *store, ductile_stream stream, bool is_small) {
    if (store->latest != NULL && arena_is(store, store->latest, stream, is_small)) {
        return store->latest;
    }
    torch_arena *arena = find_arena(store, stream, is_small);
    if (arena == NULL) {
        arena = add_arena(store, stream, is_small);
    }
    if (arena != NULL) {
        store->latest = arena;
    }
    return arena;
}

static bool add_chunk(torch_store *store) {
    torch_chunk *chunk = malloc(sizeof(*chunk));
    if (chunk == NULL) {
        return false;
    }
    chunk->next = store->chunks;
    store->chunks = chunk;
    for (size_t i = BLOCKS_PER_CHUNK; i-- > 0;) {
        torch_block_put(store, &chunk->blocks[i]);
    }
    return true;
}

bool torch_store_reserve(torch_store *store, size_t n) {
    while (store->n_spare < n) {
        if (!add_chunk(store)) {
            return false;
        }
    }
    return true;
}

void torch_store_walk(const torch_store *store, void (*visit)(void *user, const torch_block *block),
                      void *user) {
    for (const torch_chunk *chunk = store->chunks; chunk != NULL; chunk = chunk->next) {
        for (size_t i = 0; i < BLOCKS_PER_CHUNK; i++) {
            if (chunk->blocks[i].arena != NULL) {
                visit(user, &chunk->blocks[i]);
            }
        }
    }
}

/* ---- Blocks -------------------------------------------------------------------------------- */

torch_block *torch_block_take(torch_store *store, torch_arena *arena, ductile_addr address,
                              uint64_t size) {
    torch_block *block = store->spare;
    store->spare = block->next;
    store->n_spare--;
    *block = (torch_block){.arena = arena, .address = address, .size = size, .is_mapped = true};
    return block;
}

void torch_block_put(torch_store *store, torch_block *block) {
    block->arena = NULL;
    block->next = store->spare;
    store->spare = block;
    store->n_spare++;
}

torch_block *torch_block_split(torch_store *store, torch_block *block, uint64_t size) {
    torch_block *rest =
        torch_block_take(store, block->arena, block->address + size, block->size - size);
    rest->segment = block->segment;
    rest->is_mapped = block->is_mapped;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next != NULL) {
        rest->next->prev = rest;
    }
    block->next = rest;
    block->size = size;
    return rest;
}

static bool can_absorb(const torch_block *block, const torch_block *neighbour) {
    return neighbour != NULL && torch_block_is_usable(neighbour) &&
           neighbour->is_mapped == block->is_mapped;
}

static void absorb_prev(torch_store *store, torch_block *block) {
    torch_block *prev = block->prev;
    torch_block_remove(prev);
    block->address = prev->address;
    block->size += prev->size;
    block->prev = prev->prev;
    if (block->prev != NULL) {
        block->prev->next = block;
    }
    torch_block_put(store, prev);
}

static void absorb_next(torch_store *store, torch_block *block) {
    torch_block *next = block->next;
    torch_block_remove(next);
    block->size += next->size;
    block->next = next->next;
    if (block->next != NULL) {
        block->next->prev = block;
    }
    torch_block_put(store, next);
}

void torch_block_merge(torch_store *store, torch_block *block) {
    if (can_absorb(block, block->prev)) {
        absorb_prev(store, block);
    }
    if (can_absorb(block, block->next)) {
        absorb_next(store, block);
    }
}

void torch_block_insert(torch_block *block) {
    if (block->is_mapped) {
        torch_set_insert(&block->arena->free, &block->node, block->size, block->address);
    } else {
        torch_set_insert(&block->arena->unmapped, &block->node, block->address, 0);
    }
}

void torch_block_remove(torch_block *block) {
    torch_set_remove(block->is_mapped ? &block->arena->free : &block->arena->unmapped,
                     &block->node);
}

bool torch_block_is_usable(const torch_block *block) {
    return !block->is_live && block->n_pending == 0;
}

bool torch_block_is_split(const torch_block *block) {
    return block->prev != NULL || block->next != NULL;
}

torch_block *torch_block_of(torch_node *node) {
    return node == NULL ? NULL
                        : (torch_block *)(void *)((char *)node - offsetof(torch_block, node));
}
