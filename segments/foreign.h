/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other processes' memory: a range that maps the handles they exported, exactly as large as those.
 * Nothing in it is ever placed, moved or cached. Guarded by the allocator's grow lock.
 */
#ifndef DUCTILE_SEGMENTS_FOREIGN_H
#define DUCTILE_SEGMENTS_FOREIGN_H

#include "segments/unmap_handles.h"

/* Owner: who opened it. */
typedef struct dseg_foreign {
    dvmm_range range;
    uint64_t mapped_bytes; /* from the start of the range */
} dseg_foreign;

/* Reserves the addresses. ERR_OUT_OF_ADDRESSES, ... */
ductile_status dseg_foreign_open(dvmm_handle_store *store, uint64_t bytes, uint64_t budget_bytes,
                                 dseg_foreign *out);

/*
 * Imports a handle of `bytes` and maps it behind those before. The descriptor stays the caller's.
 * On failure nothing more is mapped; ERR_BAD_MESSAGE when what was sent is no such handle.
 */
ductile_status dseg_foreign_add(dvmm_handle_store *store, dseg_foreign *f, uint64_t bytes,
                                const dvmm_shared *shared);

/* Opens what was mapped to this device and its peers. */
ductile_status dseg_foreign_grant(dvmm_handle_store *store, const dseg_foreign *f);

/* The same for one device, or the opposite. */
ductile_status dseg_foreign_set_device(dvmm_handle_store *store, const dseg_foreign *f, int device,
                                       bool may_access);

/* Unmaps and gives the addresses back. On failure they are left to the process. Pre: the proof
 * covers all work of this process on it. */
ductile_status dseg_foreign_close(dvmm_handle_store *store, dseg_foreign *f, dseg_idle proof);

/* The same of what was handed to nobody yet: there is no work to be done with. */
ductile_status dseg_foreign_undo(dvmm_handle_store *store, dseg_foreign *f);

#endif
