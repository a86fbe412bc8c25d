/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/rival_blocks.h"

#include <stdlib.h>

enum { BLOCKS_PER_CHUNK = 512 };

/* Blocks are made many at a time and live as long as their store. */
struct rival_chunk {
    rival_chunk *next;
    rival_block blocks[BLOCKS_PER_CHUNK];
};

/* ---- The store ----------------------------------------------------------------------------- */

void rival_store_fini(rival_store *store) {
    while (store->arenas != NULL) {
        rival_arena *arena = store->arenas;
        store->arenas = arena->next;
        free(arena);
    }
    while (store->pools != NULL) {
        rival_pool *pool = store->pools;
        store->pools = pool->next;
        free(pool);
    }
    while (store->chunks != NULL) {
        rival_chunk *chunk = store->chunks;
        store->chunks = chunk->next;
        free(chunk);
    }
    *store = (rival_store){0};
}

rival_pool *rival_store_pool(rival_store *store, ductile_pool_id id) {
    rival_pool *pool = store->pools;
    while (pool != NULL && (pool->id.first != id.first || pool->id.second != id.second)) {
        pool = pool->next;
    }
    if (pool == NULL) {
        pool = calloc(1, sizeof(*pool));
        if (pool != NULL) {
            *pool = (rival_pool){.id = id, .next = store->pools};
            store->pools = pool;
        }
    }
    return pool;
}

bool rival_arena_gives(const rival_arena *arena) {
    return arena->pool == NULL || !arena->pool->is_kept;
}

static bool arena_is(const rival_store *store, const rival_arena *arena, ductile_stream stream,
                     bool is_small) {
    return arena->stream == stream && arena->is_small == is_small && arena->pool == store->pool;
}

static rival_arena *find_arena(rival_store *store, ductile_stream stream, bool is_small) {
    rival_arena *arena = store->arenas;
    while (arena != NULL && !arena_is(store, arena, stream, is_small)) {
        arena = arena->next;
    }
    return arena;
}

static rival_arena *add_arena(rival_store *store, ductile_stream stream, bool is_small) {
    rival_arena *arena = calloc(1, sizeof(*arena));
    if (arena != NULL) {
        arena->stream = stream;
        arena->pool = store->pool;
        arena->is_small = is_small;
        arena->next = store->arenas;
        store->arenas = arena;
    }
    return arena;
}

rival_arena *rival_store_arena(rival_store *store, ductile_stream stream, bool is_small) {
    if (store->latest != NULL && arena_is(store, store->latest, stream, is_small)) {
        return store->latest;
    }
    rival_arena *arena = find_arena(store, stream, is_small);
    if (arena == NULL) {
        arena = add_arena(store, stream, is_small);
    }
    if (arena != NULL) {
        store->latest = arena;
    }
    return arena;
}

static bool add_chunk(rival_store *store) {
    rival_chunk *chunk = malloc(sizeof(*chunk));
    if (chunk == NULL) {
        return false;
    }
    chunk->next = store->chunks;
    store->chunks = chunk;
    for (size_t i = BLOCKS_PER_CHUNK; i-- > 0;) {
        rival_block_put(store, &chunk->blocks[i]);
    }
    return true;
}

bool rival_store_reserve(rival_store *store, size_t n) {
    while (store->n_spare < n) {
        if (!add_chunk(store)) {
            return false;
        }
    }
    return true;
}

void rival_store_walk(const rival_store *store, void (*visit)(void *user, const rival_block *block),
                      void *user) {
    for (const rival_chunk *chunk = store->chunks; chunk != NULL; chunk = chunk->next) {
        for (size_t i = 0; i < BLOCKS_PER_CHUNK; i++) {
            if (chunk->blocks[i].arena != NULL) {
                visit(user, &chunk->blocks[i]);
            }
        }
    }
}

/* ---- Blocks -------------------------------------------------------------------------------- */

rival_block *rival_block_take(rival_store *store, rival_arena *arena, ductile_addr address,
                              uint64_t size) {
    rival_block *block = store->spare;
    store->spare = block->next;
    store->n_spare--;
    *block = (rival_block){.arena = arena, .address = address, .size = size, .is_mapped = true};
    return block;
}

void rival_block_put(rival_store *store, rival_block *block) {
    block->arena = NULL;
    block->next = store->spare;
    store->spare = block;
    store->n_spare++;
}

rival_block *rival_block_split(rival_store *store, rival_block *block, uint64_t size) {
    rival_block *rest =
        rival_block_take(store, block->arena, block->address + size, block->size - size);
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

static bool can_absorb(const rival_block *block, const rival_block *neighbour) {
    return neighbour != NULL && rival_block_is_usable(neighbour) &&
           neighbour->is_mapped == block->is_mapped;
}

static void absorb_prev(rival_store *store, rival_block *block) {
    rival_block *prev = block->prev;
    rival_block_remove(prev);
    block->address = prev->address;
    block->size += prev->size;
    block->prev = prev->prev;
    if (block->prev != NULL) {
        block->prev->next = block;
    }
    rival_block_put(store, prev);
}

static void absorb_next(rival_store *store, rival_block *block) {
    rival_block *next = block->next;
    rival_block_remove(next);
    block->size += next->size;
    block->next = next->next;
    if (block->next != NULL) {
        block->next->prev = block;
    }
    rival_block_put(store, next);
}

void rival_block_merge(rival_store *store, rival_block *block) {
    if (can_absorb(block, block->prev)) {
        absorb_prev(store, block);
    }
    if (can_absorb(block, block->next)) {
        absorb_next(store, block);
    }
}

void rival_block_insert(rival_block *block) {
    if (block->is_mapped) {
        rival_set_insert(&block->arena->free, &block->node, block->size, block->address);
    } else {
        rival_set_insert(&block->arena->unmapped, &block->node, block->address, 0);
    }
}

void rival_block_remove(rival_block *block) {
    rival_set_remove(block->is_mapped ? &block->arena->free : &block->arena->unmapped,
                     &block->node);
}

bool rival_block_is_usable(const rival_block *block) {
    return !block->is_live && block->n_pending == 0;
}

bool rival_block_is_split(const rival_block *block) {
    return block->prev != NULL || block->next != NULL;
}

rival_block *rival_block_of(rival_node *node) {
    return node == NULL ? NULL
                        : (rival_block *)(void *)((char *)node - offsetof(rival_block, node));
}
