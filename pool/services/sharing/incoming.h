/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of another process on their way into a range of this one: of a block, or of a tag. */
#ifndef DUCTILE_POOL_SERVICES_SHARING_INCOMING_H
#define DUCTILE_POOL_SERVICES_SHARING_INCOMING_H

#include "pool/base/allocator.h"
#include "pool/services/sharing/share_wire.h"
#include "pool/sharing/import.h"

/* An import under way, on the stack. The caller sets the first three, and receives the head. */
typedef struct dpool_incoming {
    ductile_allocator *a;
    ductile_stream stream; /* that will use it */
    dvmm_access access;
    dpool_wire_head head;
    dseg_foreign in;
    uint64_t rest_bytes; /* of handles still to come */
    uint32_t rest;
} dpool_incoming;

/* DUCTILE_OK when memory for the stream may be received; else why not. ERR_BUSY in a map callback:
 * an import is announced, too. */
ductile_status dpool_may_import(const ductile_allocator *a, ductile_stream stream);

/* Checks the head, reserves the range and sees that there are descriptors. No lock held, as in the
 * others. */
ductile_status dpool_incoming_open(dpool_incoming *r);

/* Receives, maps and answers all handles, and registers the import. */
ductile_status dpool_incoming_receive(dpool_incoming *r, int socket);

/* After a failure: unmaps what came, and frees the range if there is one. */
void dpool_incoming_undo(dpool_incoming *r);

#endif
