/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan: where a request that no FREE block serves goes, which empty granules get memory for it,
 * and which handles that comes from. Made under the index lock by marking all it touches BUSY,
 * carried out by driver calls without it, committed or aborted under it.
 *
 *     place    a window of FREE and GAP blocks                    index lock
 *     plan     its blocks and those of donors -> BUSY             index lock
 *     execute  waits, create, map, access: undone if one fails    no lock; driver calls
 *     commit   donors -> RETIRING, window -> LIVE or FREE         index lock; cannot fail
 *     abort    everything as before                               index lock; cannot fail
 *
 * The place is a window in a run of FREE and GAP blocks that needs the fewest new granules; among
 * equals one of whole granules, where memory comes and goes, then the lowest address. Finding it is
 * linear in the number of gaps, which compaction keeps small.
 *
 *     LIVE [FREE][ GAP ][FREE][ GAP ... to the end of the range
 *          |<----- window ---->|
 *
 * Granules that keep their old addresses move. Larger handles may fit no piece: when the host
 * knows the GPU to be done with them, donors are unmapped first instead (-> GAP), and handles
 * of unsuitable sizes go back to the driver, so that others can be created within the same memory.
 * That is not undone: the memory is in the handle cache then.
 *
 * All nodes that commit or abort could need are spent when the plan is made. Each thread has a plan
 * of its own: while map callbacks run (announce.h), other threads may plan before it is executed.
 */
#ifndef DUCTILE_POOL_GROWTH_PLAN_H
#define DUCTILE_POOL_GROWTH_PLAN_H

#include "pool/blocks/units.h"
#include "segments/grow.h"

typedef struct dpool_plan {
    dpool_arena *arena; /* the arena that receives memory */
    dpool_region *region;
    dpool_block *body; /* first BUSY block of the request; NULL for a compaction */
    uint64_t body_bytes;
    dpool_block *head; /* BUSY before the body, after it: memory left over; or NULL  */
    dpool_block *rest;
    dpool_block **parts; /* for units, in place of a body: the BUSY blocks of their window */
    uint32_t n_parts;
    dseg_piece *pieces; /* empty granules of the region that get memory */
    uint32_t n_pieces;
    dpool_block **donors;  /* BUSY blocks of whole handles, this arena's first           */
    dseg_donor *donations; /* the donors, for dseg_grow */
    uint32_t n_donors;
    uint32_t n_own_donors;
    dvmm_handle **handles; /* room for those of the pieces */
    uint32_t n_handles;    /* gathered by execute                */
    uint32_t n_moved;      /* of them, moved from donors */
    uint32_t room;         /* in each of the five arrays */
    uint64_t n_granules;   /* of all pieces                                              */
    uint64_t need;         /* of them, those that no cached handle serves                */
    uint64_t donated;      /* granules of all donors                                     */
    uint64_t created;      /* granules to be made, for a request: what donors leave of the need */
    uint64_t age;          /* of the youngest own donor that moved */
    uint64_t max_held;     /* the held bytes may exceed neither this nor the limit       */
    uint64_t lacks;        /* the bytes of memory that were missing */
    uint64_t needs;        /* what would have been held in all */
    bool was_refused;      /* execute failed because the device had no memory */
    bool wait_failed;      /* execute failed because the stream could not wait on the GPU */
    dvmm_marker *wait;     /* the receiving stream waits for it first; held; NULL for none */
} dpool_plan;

/* Takes an empty plan with room for a request; NULL when the host has no memory. The caller owns it
 * until it gives it back. Grow lock held, index lock not. */
dpool_plan *dpool_plan_take(ductile_allocator *a, uint64_t size);
void dpool_plan_give(ductile_allocator *a, dpool_plan *p);
void dpool_plan_fini(ductile_allocator *a);

/* The number of spare nodes that a plan for `size` may need. */
uint64_t dpool_plan_nodes(const ductile_allocator *a, uint64_t size);

/* ---- plan.c: the place --------------------------------------------------------------------- */

typedef struct dpool_place {
    dpool_block *block; /* holds start; NULL: no run is long enough */
    ductile_addr start;
    uint64_t n_granules; /* the granules that the window lacks */
} dpool_place;

dpool_place dpool_place_choose_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size);

/* The same as if kept addresses were open (homes.h). Each costs less than an empty granule where
 * its handle has that stamp, so is free elsewhere, and more where it has to be unmapped, for which
 * it has to be proven. */
dpool_place dpool_place_over_old_locked(const ductile_allocator *a, const dpool_arena *arena,
                                        uint64_t size, uint32_t stamp);

/* The lowest gap that holds the whole request, for a stream that cannot use free memory now. */
dpool_place dpool_place_in_gap_locked(const ductile_allocator *a, const dpool_arena *arena,
                                      uint64_t size);

/* ---- plan.c: the plan ---------------------------------------------------------------------- */

/* Prepares the exchange of larger handles for others, which needs proof that the GPU is done with
 * them: polls now, on behalf of a call that names the stream of the arena. Grow lock held. */
void dpool_prove_own(ductile_allocator *a, dpool_arena *arena);

/* Plans a request at the place: its window is BUSY. Then come the donors, and what is created,
 * until nothing is missing; then the end. Both locks held.
 * Pre: dpool_plan_nodes nodes are spare. */
void dpool_plan_begin_locked(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                             const dpool_place *place, uint64_t size, uint64_t max_held);

/* The same for units (units.h): their window is all of them that is not in use, which need not hang
 * together, and each may be FREE already. Pre: every one is in use, FREE or a GAP. */
void dpool_plan_begin_units_locked(ductile_allocator *a, dpool_plan *p, const dpool_units *units,
                                   uint64_t max_held);

/* The granules that have no source yet. */
static inline uint64_t dpool_plan_missing(const dpool_plan *p) {
    uint64_t has = p->donated + p->created;
    return p->need > has ? p->need - has : 0;
}

/* Takes what is missing from the arena's own free memory. */
void dpool_plan_take_own_locked(ductile_allocator *a, dpool_plan *p);

/* Takes it from other arenas: what is proven done; behind a wait on the GPU for all streams, what
 * is not. From plain pools in use only if asked for. */
void dpool_plan_take_others_locked(ductile_allocator *a, dpool_plan *p, bool behind_wait,
                                   bool from_pools);

/* Ends the plan of a request. ERR_OUT_OF_MEMORY when the limits forbid to create what is to be
 * created; then nothing is BUSY. */
ductile_status dpool_plan_end_locked(ductile_allocator *a, dpool_plan *p);

/* Is there a gap that a compaction would fill, were the memory to fill it with proven? Both locks
 * held. */
bool dpool_can_be_compacted_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Plans to fill the lower part of a gap from FREE memory at the top of its run, about `budget`
 * granules: the last handle that moves may exceed them. False when there is nothing to do. Both
 * locks held. Pre: nodes as for a request of 0 are spare. */
bool dpool_plan_compaction_locked(ductile_allocator *a, dpool_plan *p, dpool_arena *arena,
                                  dpool_block *gap, uint32_t budget);

/* ---- plan_commit.c ------------------------------------------------------------------------- */

/* Executes the plan. On failure all driver work is undone (or quarantined). Grow lock held;
 * unlocked meanwhile when map callbacks run (announce.h). */
ductile_status dpool_plan_execute(ductile_allocator *a, dpool_plan *p);

/* Makes the block of the request LIVE and returns it; NULL for a compaction. Units are FREE then
 * (dpool_units_take_locked). Both locks held. */
dpool_block *dpool_plan_commit_locked(ductile_allocator *a, dpool_plan *p, uint64_t requested);

/* Restores the state before the plan, except for donors that were unmapped and what the driver has
 * quarantined. Both locks held. */
void dpool_plan_abort_locked(ductile_allocator *a, dpool_plan *p);

#endif
