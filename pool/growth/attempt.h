/* SPDX-License-Identifier: Apache-2.0 */
/* Serves requests that no free block serves at once, by moving or creating memory. */
#ifndef DUCTILE_POOL_GROWTH_ATTEMPT_H
#define DUCTILE_POOL_GROWTH_ATTEMPT_H

#include "pool/blocks/arena.h"
#include "vmm/capture_mode.h"

typedef struct dpool_request {
    uint64_t size;                   /* rounded */
    uint64_t requested;              /* as requested */
    struct dpool_private_pool *pool; /* NULL: none */
    ductile_stream stream;
    bool is_soft;        /* nothing is created above the soft limit            */
    bool from_pools;     /* plain pools in use may give memory */
    bool could_not_wait; /* the stream could not wait on the GPU for its free memory */
    bool in_gap;         /* its place must consist of new memory */
    bool is_dedicated;   /* the block gets a range and a handle of its own */
    dpool_arena *arena;  /* set by the first attempt                           */
    dpool_block *block;  /* the result */
    uint64_t missing;    /* after ERR_OUT_OF_MEMORY: the bytes that were missing */
} dpool_request;

/* One attempt: polls, searches again, moves or creates memory. Never waits. Grow lock held.
 * ERR_OUT_OF_MEMORY and the other errors of ductile_alloc; memory that it created is then in the
 * cache. */
ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r);

/* Prepares the exchange of larger handles for others, which needs proof that the GPU is done with
 * them: polls now, on behalf of a call that names the stream of the arena. Grow lock held. */
void dpool_prove_own(ductile_allocator *a, dpool_arena *arena);

#endif
