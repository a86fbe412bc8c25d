/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that no free block serves at once: memory is moved to them, or created. */
#ifndef DUCTILE_POOL_GROWTH_ATTEMPT_H
#define DUCTILE_POOL_GROWTH_ATTEMPT_H

#include "pool/blocks/arena.h"
#include "vmm/capture_mode.h"

typedef struct dpool_request {
    uint64_t size;                   /* rounded */
    uint64_t requested;              /* as asked for */
    struct dpool_private_pool *pool; /* NULL: none */
    ductile_stream stream;
    bool is_soft;        /* nothing is created above the soft limit            */
    bool from_pools;     /* private pools in use are to help out               */
    bool could_not_wait; /* the stream, on the GPU, for what its free memory needs */
    bool in_gap;         /* its place is to be all new                             */
    bool one_handle;     /* it is to be one handle, of whole granules              */
    dpool_arena *arena;  /* set by the first attempt                           */
    dpool_block *block;  /* the result */
    uint64_t missing;    /* after ERR_OUT_OF_MEMORY: memory that would have done */
} dpool_request;

/* One attempt: polls, searches again, moves or creates memory. Waits for nothing. Grow lock held.
 * ERR_OUT_OF_MEMORY and the other errors of ductile_alloc; then what it created is in the cache. */
ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r);

/* Larger handles can be made anew in another size where the GPU is known to be done with them: asks
 * now, on behalf of a call that names the arena's stream. Grow lock held. */
void dpool_prove_own(ductile_allocator *a, dpool_arena *arena);

#endif
