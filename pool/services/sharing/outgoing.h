/* SPDX-License-Identifier: Apache-2.0 */
/* Handles on their way to another process: of a block, or of a tag. They are pinned. */
#ifndef DUCTILE_POOL_SERVICES_SHARING_OUTGOING_H
#define DUCTILE_POOL_SERVICES_SHARING_OUTGOING_H

#include "pool/base/allocator.h"
#include "pool/services/sharing/share_wire.h"

/* Owner: one call. */
typedef struct dpool_outgoing {
    dpool_wire_head head;
    dvmm_phys *phys; /* head.n_handles of them */
    uint64_t *bytes;
} dpool_outgoing;

/* Granules [first, end) of a segment: whole handles. */
typedef struct dpool_outgoing_span {
    dseg_segment *seg;
    uint32_t first;
    uint32_t end;
} dpool_outgoing_span;

/* DUCTILE_OK when the allocator may pass memory on; else why not. */
ductile_status dpool_may_export(const ductile_allocator *a);

/* Lists the handles of the spans one behind the other, and fills the head but for what lies where
 * in them. Grow lock held. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_outgoing_list(ductile_allocator *a, const dpool_outgoing_span *spans,
                                   size_t n_spans, dpool_outgoing *out);
void dpool_outgoing_free(dpool_outgoing *r);

/* ERR_NO_DESCRIPTORS, which is logged, when this process cannot open those of a batch. */
ductile_status dpool_outgoing_need_descriptors(ductile_allocator *a, const dpool_outgoing *r);

/* Sends all handles, each batch once the one before was answered. No lock held. */
ductile_status dpool_outgoing_send(ductile_allocator *a, const dpool_outgoing *r, int socket);

#endif
