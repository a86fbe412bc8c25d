/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host knows the GPU to be done with, and what may therefore happen to memory. Nothing
 * here waits, or calls the driver: marks (streams/marks.h) and waits of the host
 * (streams/host_waits.h) make the proofs. Index lock held, unless a function says otherwise.
 *
 * Proof that free memory may leave its stream, and that an old address may be unmapped (U2, U3):
 *
 *     a->age           a clock; it moves on just before each proof is recorded
 *     block->age       a->age when the block was freed; it stays when the block retires
 *     a->proven        by the latest context marker that is done: what was freed at an age below
 *                      its age has no work under way on any stream of the context
 *     proofs.own       by proofs of the arena's stream alone, where no context marker may be
 *                      recorded: proves this for the old addresses of the arena, and for what the
 *                      host gives back to the driver. Its age is never above joined_age (foreign
 *                      arenas: nor above what the context proves besides)
 *     joined_age       what was freed at an age below it was freed before an allocation on the
 *                      stream. Until that allocation the program may order the stream behind other
 *                      streams' work on the memory (docs/contract.md, rule 3); so a proof of the
 *                      stream alone, recorded or waited for since, covers that memory and no other
 */
#ifndef DUCTILE_POOL_BLOCKS_PROOFS_H
#define DUCTILE_POOL_BLOCKS_PROOFS_H

#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"

#include "segments/granules.h"

/* ---- An arena, by its pool ----------------------------------------------------------------- */

/* May live graphs own all of its memory (G1)? */
static inline bool dpool_is_kept_for_graphs(const dpool_arena *arena) {
    return arena->pool->kind == DUCTILE_POOL_CAPTURE && dpool_is_held(arena->pool);
}

/* They may, or it sleeps (G4). */
static inline bool dpool_is_frozen(const dpool_arena *arena) {
    return !dpool_is_awake(arena->pool) || dpool_is_kept_for_graphs(arena);
}

/* May what is leaving go, once proven? Also what was freed while its pool slept. */
static inline bool dpool_lets_go(const dpool_arena *arena) {
    bool is_still = dpool_is_awake(arena->pool) || dpool_is_at_rest(arena->pool);
    return is_still && !dpool_is_kept_for_graphs(arena);
}

/* Graphs may have used its memory, on any stream. */
static inline bool dpool_had_graphs(const dpool_arena *arena) {
    return arena->pool->kind == DUCTILE_POOL_CAPTURE;
}

/* May FREE memory of the arena, once proven, serve `other`? */
bool dpool_may_serve(const dpool_arena *arena, const dpool_arena *other, bool under_pressure);

/* ---- What is proven of it ------------------------------------------------------------------ */

/* Replaces a proof by a later one. */
void dpool_raise_proof(dpool_proof *proof, dpool_proof by);

/* What is left of a proof for the FREE memory of the arena. */
dpool_proof dpool_restrict_proof(const dpool_arena *arena, dpool_proof p);

/* Proves that old addresses of the arena may be unmapped (U3). Of a foreign stream a proof for the
 * context says nothing, until it is silent. */
dpool_proof dpool_proof_to_unmap(const ductile_allocator *a, const dpool_arena *arena);

/* Proves that FREE memory of the arena may leave its stream (U2): by a proof of that stream, and
 * where graphs used it, of the context. */
dpool_proof dpool_proof_to_leave(const ductile_allocator *a, const dpool_arena *arena);

/* Proves that FREE memory of the arena may be unmapped. A stream alone cannot prove what graphs did
 * on others. */
dpool_proof dpool_proof_to_return(const ductile_allocator *a, const dpool_arena *arena);

/* The same for what is leaving, at whose free a sleep may have been over. */
dpool_proof dpool_proof_to_go(const ductile_allocator *a, const dpool_arena *arena);

/* ---- One block ----------------------------------------------------------------------------- */

/* May the memory of the FREE block be unmapped (U3)? */
bool dpool_is_proven_locked(const ductile_allocator *a, const dpool_block *b);

/* The topmost run of its granules that may be; where a capture forbids the wait for the device,
 * what was freed lately is not among them. */
dseg_span dpool_proven_part_locked(const ductile_allocator *a, const dpool_block *b);

/* The topmost granules of a leaving block that can go. Asleep, of those that the sleep has let
 * stay: others are gone, or were said to be where the driver has failed. */
dseg_span dpool_leaving_part(const dpool_block *b);

/* The first leaving block of the arena of which a part can go, and that is proven, or is not; NULL
 * for none. */
dpool_block *dpool_find_leaving_locked(const ductile_allocator *a, const dpool_arena *arena,
                                       bool is_proven);

/* ---- Is there anything to wait for? -------------------------------------------------------- */

/* Is there FREE memory in granules that is not proven, or a pending block? Both locks held; without
 * the grow lock, pending blocks that a poll holds are not seen. */
bool dpool_awaits_proof_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Is there leaving memory that may go once it is proven, and is not? */
bool dpool_awaits_leaving_locked(const ductile_allocator *a, const dpool_arena *arena);

/* Does a pool that no reference holds await a proof for the whole device, because graphs used it?
 * No lock held. */
bool dpool_awaits_device(ductile_allocator *a);

#endif
