/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan: which empty granules get memory, and which handles it comes from. Made under the index
 * lock by marking all it touches BUSY, carried out by driver calls without it, published or
 * undone under it. One plan at a time, by the holder of the grow lock.
 *
 *     find     window blocks, donors        -> BUSY     index lock
 *     execute  marker, create, map, access              driver calls; may fail, then undone
 *     publish  donors -> RETIRING, window -> LIVE/FREE  index lock; cannot fail
 *     cancel   everything as before                     index lock; cannot fail
 *
 * Where handles are of one size, those of donors move. Larger ones may fit no piece; where the host
 * knows the GPU to be done with them, donors are unmapped first instead (-> GAP), and a handle that
 * does not suit goes back to the driver for others to be created within the same memory. That is
 * not undone: the memory is in the handle cache then.
 *
 * All nodes that publish or cancel could need are spent when the plan is made.
 */
#ifndef DUCTILE_POOL_GROWTH_PLAN_H
#define DUCTILE_POOL_GROWTH_PLAN_H

#include "pool/growth/placement.h"
#include "segments/grow.h"

enum { DPOOL_PLAN_WAITS = 16 }; /* streams at work that one plan takes from, at most */

/* Another arena's marker that the receiving stream waits for, behind the frees of what it takes. */
typedef struct dpool_plan_wait {
    const dpool_arena *arena;
    uint64_t seq;        /* its number there: once done, the old addresses may be unmapped */
    dvmm_marker *marker; /* held from the plan to the wait */
} dpool_plan_wait;

typedef struct dpool_plan {
    dpool_arena *arena; /* that receives */
    dpool_region *region;
    dpool_block *body; /* first BUSY block of the request; NULL when healing         */
    uint64_t body_bytes;
    dpool_block *lead; /* BUSY before the body, after it: memory left over; or NULL  */
    dpool_block *rest;
    dseg_piece *pieces; /* empty granules of the region that get memory */
    uint32_t n_pieces;
    uint32_t max_pieces;
    dpool_block **donors;  /* BUSY blocks of whole handles, this arena's first           */
    dseg_donor *donations; /* the same as the segments see them */
    uint32_t n_donors;
    uint32_t n_own_donors;
    uint32_t max_donors;
    dvmm_handle **handles; /* room for those of the pieces */
    uint32_t n_handles;    /* gathered by execute                */
    uint32_t n_moved;      /* of them, donors' that have moved   */
    uint32_t max_handles;
    uint64_t n_granules; /* of all pieces                                              */
    uint64_t donated;    /* granules of all donors                                     */
    uint64_t epoch;      /* the latest of this arena's donors                          */
    uint64_t seq;        /* of the marker recorded when own memory moves               */
    uint64_t lacks;      /* bytes of memory that would have made it succeed            */
    bool one_handle;     /* its one piece is one handle                                */
    bool unmaps;         /* donors that are found now are to be unmapped               */
    bool mark_failed;    /* execute failed because that marker could not be recorded   */
    bool wait_failed;    /* the same, because the stream could not wait on the GPU     */
    dpool_plan_wait waits[DPOOL_PLAN_WAITS];
    uint32_t n_waits;
    unsigned sources;
    uint64_t host_bytes;
} dpool_plan;

/* Flags: where handles may come from. POOL_DONORS: private pools in use give what is proven.
 * UNPROVEN_DONORS: other streams give also what they may still work on, behind a wait on the GPU.
 */
enum {
    DPOOL_OWN_DONORS = 1,
    DPOOL_FOREIGN_DONORS = 2,
    DPOOL_POOL_DONORS = 4,
    DPOOL_UNPROVEN_DONORS = 8,
    DPOOL_ONE_HANDLE = 16 /* none: one handle, cached or created, for the one piece of a gap */
};

/* Makes the arrays large enough for a request. Grow lock held, index lock not. */
ductile_status dpool_plan_reserve(ductile_allocator *a, uint64_t size);
void dpool_plan_fini(ductile_allocator *a);

/* How many spare nodes a plan for `size` may need. */
uint64_t dpool_plan_nodes(const ductile_allocator *a, uint64_t size);

/*
 * Plans the request in the place. ERR_OUT_OF_MEMORY when the allowed sources cannot give what the
 * place lacks; then nothing is BUSY. Both locks held; dpool_plan_nodes nodes are spare.
 */
ductile_status dpool_plan_request_locked(ductile_allocator *a, dpool_arena *arena,
                                         const dpool_place *place, uint64_t size, unsigned sources);

/* Plans to fill the lower part of a gap from FREE memory at the top of its run, at most `budget`
 * granules. False when there is nothing to do. Both locks held; nodes as for a request of 0. */
bool dpool_plan_heal_locked(ductile_allocator *a, dpool_arena *arena, dpool_block *gap,
                            uint32_t budget);

/* Carries the plan out. On failure all driver work is undone (or quarantined). Grow lock held; it
 * is opened meanwhile where somebody is told (announce.h). */
ductile_status dpool_plan_execute(ductile_allocator *a);

/* The request's block becomes LIVE and is returned; NULL when healing. Both locks held. */
dpool_block *dpool_plan_publish_locked(ductile_allocator *a, uint64_t requested);

void dpool_plan_cancel_locked(ductile_allocator *a);

/* The receiving stream waits. Index lock not held. */
ductile_status dpool_plan_make_waits(ductile_allocator *a);

#endif
