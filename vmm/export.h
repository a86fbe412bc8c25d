/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on its way between processes: what a device can do, handles that become descriptors, and
 * ranges that map what another process exported.
 */
#ifndef DUCTILE_VMM_EXPORT_H
#define DUCTILE_VMM_EXPORT_H

#include "vmm/handle.h"
#include "vmm/range.h"

/*
 * Leads one granule with these properties through all that Ductile will do with such memory:
 * create, map, access, export, unmap, release. What a device claims is not enough: some refuse at
 * the last step. ERR_UNSUPPORTED, with one line in `reason`; the other errors as of the calls.
 * On failure nothing is left, unless the driver would not undo.
 */
ductile_status dvmm_probe_props(dvmm_driver *d, const dvmm_phys_props *props, char *reason,
                                size_t reason_size);

/* Turns a handle into what can be sent: ERR_UNSUPPORTED when it was not made for that type. The
 * caller gives it back with dvmm_shared_drop. */
ductile_status dvmm_share_out(dvmm_handle_store *store, dvmm_phys phys, dvmm_shared *out);

/* Closes the descriptor, if there is one. */
void dvmm_shared_drop(dvmm_shared *shared);

/* A range that maps memory of another process: exactly as large as that. Owner: who opened it. */
typedef struct dvmm_imported {
    dvmm_range range;
    uint64_t mapped_bytes; /* from the start of the range */
} dvmm_imported;

/* Reserves the addresses. ERR_OUT_OF_ADDRESSES, ... */
ductile_status dvmm_imported_open(dvmm_handle_store *store, uint64_t bytes, uint64_t budget_bytes,
                                  dvmm_imported *out);

/*
 * Imports a handle of `bytes` and maps it behind those before. The descriptor stays the caller's.
 * On failure nothing more is mapped; ERR_BAD_MESSAGE when what was sent is no such handle.
 */
ductile_status dvmm_imported_add(dvmm_handle_store *store, dvmm_imported *in, uint64_t bytes,
                                 const dvmm_shared *shared);

/* Opens what was mapped to this device and its peers. */
ductile_status dvmm_imported_grant(dvmm_handle_store *store, const dvmm_imported *in);

/* The same for one device, or the opposite. */
ductile_status dvmm_imported_set_device(dvmm_handle_store *store, const dvmm_imported *in,
                                        int device, bool may_access);

/* Unmaps and gives the addresses back. Pre: the host knows all work on it complete. On failure the
 * addresses are left to the process. */
ductile_status dvmm_imported_close(dvmm_handle_store *store, dvmm_imported *in);

#endif
