/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of other processes: a range that maps the handles they exported, exactly as large as those
 * handles. No block is placed in it, and nothing in it is moved or cached. Guarded by the grow lock
 * of the allocator.
 */
#ifndef DUCTILE_SEGMENTS_FOREIGN_H
#define DUCTILE_SEGMENTS_FOREIGN_H

#include "segments/unmap_handles.h"

/* Owned by the caller that opened it. */
typedef struct dseg_foreign {
    dvmm_range range;
    uint64_t mapped_bytes; /* from the start of the range */
    dvmm_access access;    /* of every device that has any: READ or RW */
} dseg_foreign;

/* Reserves the addresses. ERR_OUT_OF_ADDRESSES, ... */
ductile_status dseg_foreign_open(dvmm_handle_store *store, uint64_t bytes, uint64_t budget_bytes,
                                 dvmm_access access, dseg_foreign *out);

/*
 * Imports a handle of `bytes` and maps it behind those mapped before. The descriptor stays the
 * caller's. On failure nothing more is mapped; ERR_BAD_MESSAGE when the descriptor is no such
 * handle.
 */
ductile_status dseg_foreign_add(dvmm_handle_store *store, dseg_foreign *f, uint64_t bytes,
                                const dvmm_shared *shared);

/* Gives this device and its peers access to all that was mapped. */
ductile_status dseg_foreign_grant(dvmm_handle_store *store, const dseg_foreign *f);

/* Gives one device access to all that was mapped, or takes it. */
ductile_status dseg_foreign_set_device(dvmm_handle_store *store, const dseg_foreign *f, int device,
                                       bool may_access);

/* Unmaps the memory and frees the range. On failure the range is left to the process. Pre: the
 * proof covers all work of this process on it. */
ductile_status dseg_foreign_close(dvmm_handle_store *store, dseg_foreign *f, dseg_idle proof);

/* Unmaps and frees a range that no caller has seen yet: no work on it can exist, so no proof is
 * needed. */
ductile_status dseg_foreign_undo(dvmm_handle_store *store, dseg_foreign *f);

#endif
