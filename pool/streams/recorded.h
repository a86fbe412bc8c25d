/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before memory goes that is still in use: live blocks of a pool that pauses, everything when an
 * allocator ends. A wait for the context covers all work of this device and none of another GPU's,
 * whose streams may be recorded like ours once that GPU has access. So where one has, each recorded
 * stream is waited for by a marker of its own (U12).
 */
#ifndef DUCTILE_POOL_STREAMS_RECORDED_H
#define DUCTILE_POOL_STREAMS_RECORDED_H

#include "pool/blocks/arena.h"

/* Whose memory goes. */
typedef struct dpool_leaving {
    bool is_all;
    const dpool_private_pool *pool; /* unless is_all; NULL: what is in no pool */
} dpool_leaving;

/*
 * Waits on the host for the work, as of now, of every stream recorded on a block that is LIVE,
 * PAUSED, PENDING or behind a span with waits. Left to a wait for the context are default streams,
 * which are this device's, and streams that are gone whose last marker could not be recorded (U1).
 * Returns at once where only one device has access. ERR_CAPTURING, ERR_DRIVER, ... when a stream
 * cannot be marked or waited for. Linear in blocks and uses. No lock held; in relaxed mode.
 */
ductile_status dpool_wait_recorded(ductile_allocator *a, dpool_leaving what);

#endif
