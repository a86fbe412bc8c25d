/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a pool may be used: the phases between awake and asleep.
 *
 *     AWAKE --claim--> FALLING_ASLEEP --unmap--> ASLEEP --claim--> WAKING --publish--> AWAKE
 *       ^                  | fails           ^                  | fails
 *       +------------------+                 +------------------+
 *
 * In every phase but AWAKE the pool serves no request, its memory does not move, and only the
 * thread that claimed it changes its granules; asleep, and claimed by none, what is leaving goes,
 * and what could not be unmapped is unmapped again (G4). What the phases do to blocks and granules
 * is in pools/sleep.h. Only this file reads and writes the phase, whether blocks have memory, and
 * the claim. Index lock held.
 */
#ifndef DUCTILE_POOL_BLOCKS_PHASE_H
#define DUCTILE_POOL_BLOCKS_PHASE_H

#include "pool/blocks/private_pool.h"
#include "vmm/base/fault.h"

/* May requests use the pool, and may its memory move? */
static inline bool dpool_is_awake(const dpool_private_pool *pool) {
    return pool->phase == DUCTILE_POOL_AWAKE;
}

/* The same for a call that needs it so: ERR_ASLEEP; ERR_BUSY while another call changes it. */
ductile_status dpool_need_awake(const dpool_private_pool *pool);

/* As users see it. */
static inline ductile_pool_state dpool_state_of_pool(const dpool_private_pool *pool) {
    return pool->phase;
}

/* ---- For those who carry a sleep out ------------------------------------------------------- */

/* Is it asleep, so that granules change only where memory leaves, or an unmap is tried again? */
static inline bool dpool_is_asleep(const dpool_private_pool *pool) {
    return pool->phase == DUCTILE_POOL_ASLEEP;
}

/* Have its blocks no memory, except where the driver refused to unmap it? */
static inline bool dpool_is_unbacked(const dpool_private_pool *pool) {
    return pool->is_unbacked;
}

/* Have they none, or is it just coming back? */
static inline bool dpool_is_away(const dpool_private_pool *pool) {
    return pool->is_unbacked || pool->phase == DUCTILE_POOL_WAKING;
}

typedef enum dpool_readiness {
    DPOOL_READY,   /* for a call that puts it to sleep or wakes it */
    DPOOL_ALREADY, /* the call would change nothing */
    DPOOL_TAKEN    /* another call puts it to sleep or wakes it */
} dpool_readiness;

dpool_readiness dpool_readiness_of(const dpool_private_pool *pool, bool to_sleep);

/* Is it asleep, and does no call put it to sleep or wake it? Copies may still be under way. */
static inline bool dpool_may_wake(const dpool_private_pool *pool) {
    return dpool_readiness_of(pool, false) == DPOOL_READY;
}

/* Is it asleep, and is no call under way, nor a copy, that changes its granules or needs them? */
static inline bool dpool_is_at_rest(const dpool_private_pool *pool) {
    return dpool_may_wake(pool) && pool->host_copy.busy == NULL;
}

/* Claims a READY pool, which is FALLING_ASLEEP or WAKING then and stays until it is left. */
void dpool_claim_locked(ductile_allocator *a, dpool_private_pool *pool, bool to_sleep);

/* Ends the claim. Returns the pool when nothing needs it any more, for the caller to free without
 * the lock; else NULL. */
dpool_private_pool *dpool_leave_claimed_locked(ductile_allocator *a, dpool_private_pool *pool);

/* Its memory has gone, or is about to come back. Index lock not held. */
void dpool_set_unbacked(ductile_allocator *a, dpool_private_pool *pool, bool is_unbacked);

/* The pool is ASLEEP. */
void dpool_set_asleep_locked(ductile_allocator *a, dpool_private_pool *pool);

/* The pool is AWAKE: all of its blocks have memory. Graphs may have used it until now. */
void dpool_set_awake_locked(ductile_allocator *a, dpool_private_pool *pool);

/* Compares the phase with the blocks that were found in an arena of the pool (G4). */
void dpool_phase_check_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                              uint64_t n_asleep, uint64_t n_with_memory, uint64_t where,
                              dti_fault *fault);

#endif
