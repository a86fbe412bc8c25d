/* SPDX-License-Identifier: Apache-2.0 */
/* Serves requests that no free block serves at once, by moving or creating memory. */
#ifndef DUCTILE_POOL_GROWTH_ATTEMPT_H
#define DUCTILE_POOL_GROWTH_ATTEMPT_H

#include "pool/blocks/units.h"
#include "vmm/captures.h"

/* How far an attempt goes for memory. */
typedef enum dpool_reach {
    DPOOL_REACH_NEW,   /* nothing moves */
    DPOOL_REACH_FREE,  /* free memory moves, as the options allow */
    DPOOL_REACH_POOLS, /* also that of plain pools in use */
    DPOOL_REACH_AROUND /* for a stream that cannot wait now: its own memory stays where it is, but
                          proven memory of others can move, and new memory can be created */
} dpool_reach;

typedef struct dpool_request {
    uint64_t size;      /* rounded */
    uint64_t requested; /* as requested */
    struct dpool_private_pool *pool;
    ductile_stream stream;
    bool is_soft;             /* nothing is created above the soft limit            */
    bool from_pools;          /* plain pools in use may give memory */
    bool could_not_wait;      /* the stream could not wait on the GPU for its free memory */
    dpool_reach reach;        /* of the present attempt */
    bool is_alone;            /* the block gets a range and a handle of its own: dedicated.h */
    bool spills;              /* it gets a range, and memory of the host, too: spill.h */
    const dpool_units *units; /* what is missing of them becomes LIVE, and there is no block; arena
                                 is their range's from the beginning */
    bool is_served;           /* they are */
    bool awaits_pending;      /* ERR_OUT_OF_MEMORY because some of them are PENDING */
    bool is_range;            /* no memory, but addresses for a range: dpool_add_range */
    dpool_arena *arena;       /* set by the first attempt                           */
    dpool_block *block;       /* the result */
    uint64_t missing;         /* after ERR_OUT_OF_MEMORY: the bytes that were missing, */
    uint64_t needed;          /* and what would have been held in all; 0: nothing was tried */
    uint64_t lacks_host;      /* spills: the bytes of the host that were missing, */
    uint64_t refused;         /* and the granules that the device refused, though it seemed to have
                                 them */
} dpool_request;

/* One attempt: polls, searches again, moves or creates memory. Never waits. Grow lock held.
 * ERR_OUT_OF_MEMORY and the other errors of ductile_alloc; memory that it created is then in the
 * cache. */
ductile_status dpool_attempt(ductile_allocator *a, dpool_request *r);

/* Adds addresses for the request to its arena, and gives the ranges of idle streams back for that
 * when they are short. Grow lock held; unlocked while map callbacks run. */
ductile_status dpool_add_range(ductile_allocator *a, const dpool_request *r);

/* May all free memory, once it is proven, move to serve the request? No lock needed. */
bool dpool_all_may_move(const ductile_allocator *a, const dpool_request *r);

#endif
