/* SPDX-License-Identifier: Apache-2.0 */
/* A block on its way to another process: which handles it lies in, and what is said of them. */
#ifndef DUCTILE_POOL_SHARING_PARCEL_H
#define DUCTILE_POOL_SHARING_PARCEL_H

#include "pool/base/allocator.h"
#include "pool/sharing/pin.h"
#include "pool/sharing/share_wire.h"

/* The handles of a block that has just been pinned for an export. Owner: one call. */
typedef struct dpool_parcel {
    wire_head head;
    dpool_pinned what;
    dvmm_phys *phys; /* head.n_handles of them */
    uint64_t *bytes;
} dpool_parcel;

/* Pins the block as exported, once, and lists its handles. The errors of dpool_pin_add. */
ductile_status dpool_parcel_make(ductile_allocator *a, ductile_addr addr, dpool_parcel *out);

/* Frees the list; the pin stays. */
void dpool_parcel_free(dpool_parcel *parcel);

/* Takes the export back that dpool_parcel_make began, and frees the list. */
void dpool_parcel_cancel(ductile_allocator *a, dpool_parcel *parcel);

/* What the wire says of handle number i, but for its descriptor. */
wire_handle dpool_parcel_handle(const dpool_parcel *parcel, uint32_t i, const dvmm_shared *shared);

/* Exports handle number i. */
ductile_status dpool_parcel_share(ductile_allocator *a, const dpool_parcel *parcel, uint32_t i,
                                  dvmm_shared *out);

#endif
