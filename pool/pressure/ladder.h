/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow path and the ladder: what is given up, step by step, before a request is refused.
 *
 *     attempt --fails--> rung --something changed--> attempt ...
 *                          |
 *                       nothing (more) to gain here: the next rung
 *                          |
 *                 top: one last attempt, and the refusal, under one hold of the grow lock
 *
 * Each rung gives up what is missing and no more, without any lock held on entry. A request climbs
 * twice where there is a soft limit: first with creation capped there, over the rungs that disturb
 * no other request, then up to the hard limit.
 */
#ifndef DUCTILE_POOL_PRESSURE_LADDER_H
#define DUCTILE_POOL_PRESSURE_LADDER_H

#include "pool/growth/attempt.h"
#include "pool/pressure/oom_callbacks.h"

/* One request's way up. Rungs read `request->missing` and keep their own counts here. */
typedef struct dpool_climb {
    dpool_request *request;
    unsigned rung;
    unsigned n_tries; /* of this rung on this way up                                      */
    unsigned n_climbs;
    uint64_t cached_before;      /* what the cache held when the request came                  */
    uint64_t host_cached_before; /* likewise, that of the host's memory                   */
    uint64_t waits_left;         /* waits for pending memory: as many as markers at the bottom */
    uint64_t frees_seen;         /* frees of the allocator at the bottom                       */
    bool was_captured;           /* a capture forbade the wait for all work                    */
    dpool_oom_walk walk;
} dpool_climb;

/*
 * A rung gives something up. True: look again, and come back to this rung if that was not enough;
 * n_tries says how often it was true. False: nothing more to gain here. No lock held.
 */
typedef bool (*dpool_rung_fn)(ductile_allocator *a, dpool_climb *c);

/* Serves a request that no free block served: request->block. No lock held. Errors as
 * ductile_alloc. */
ductile_status dpool_alloc_slow(ductile_allocator *a, dpool_request *request);

/* Refuses, counts and reports a request of a size that cannot be: ERR_OUT_OF_MEMORY, or what is
 * wrong with the device. No lock held. */
ductile_status dpool_refuse_impossible(ductile_allocator *a, uint64_t size, ductile_stream stream);

#endif
