/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host waits for before memory goes, and what is proven then. The single waits, and the
 * table of what each proves, are in host_waits.h.
 *
 * The caller is in relaxed mode, so that no capture of another thread is broken, and holds no lock.
 * A poll afterwards applies what the waits have proven.
 */
#ifndef DUCTILE_POOL_STREAMS_QUIESCE_H
#define DUCTILE_POOL_STREAMS_QUIESCE_H

#include "pool/blocks/arena.h"

/* For FREE memory of a pool, NULL for all: waits for the work that keeps it from being proven,
 * where that is possible. What could not be waited for is not proven, and stays. Linear. */
void dpool_quiesce_free(ductile_allocator *a, const dpool_private_pool *of);

/* For all memory of a pool, live blocks included, that no call uses. ERR_CAPTURING when the wait
 * would break a capture; ERR_DRIVER, ... when a recorded stream cannot be waited for. *idle: the
 * proof. */
ductile_status dpool_quiesce_pool(ductile_allocator *a, const dpool_private_pool *pool,
                                  dseg_idle *idle);

/* For all memory, live blocks included, while no other call runs: destroying. Waits for recorded
 * streams of other GPUs, for streams of other contexts, and for the device; beside a capture of
 * another thread, which that would break, for each stream, and then no graph may use the memory and
 * no stream be recorded: ERR_CAPTURING. *idle: the proof, if there is one. */
ductile_status dpool_quiesce_all(ductile_allocator *a, dseg_idle *idle);

#endif
