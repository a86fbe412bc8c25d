/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of other processes, mapped here. Each import has a range of its own, outside all arenas
 * and exactly as large as what was sent. The memory is not ours: no memory statistic counts it, and
 * no part of it is reused.
 *
 *     LIVE     in use here
 *     LEAVING  a thread is closing it: it notifies the map callbacks and records a marker
 *     CLOSED   unmapped once its marker is done (U3)
 */
#ifndef DUCTILE_POOL_SHARING_IMPORT_H
#define DUCTILE_POOL_SHARING_IMPORT_H

#include "segments/foreign.h"
#include "vmm/base/fault.h"

#include <ductile_share.h>

typedef enum dpool_import_state {
    DPOOL_IMPORT_LIVE,
    DPOOL_IMPORT_LEAVING,
    DPOOL_IMPORT_CLOSED
} dpool_import_state;

typedef struct dpool_import {
    /* constant */
    dseg_foreign in;
    ductile_addr addr; /* of the exported block, inside the range */
    uint64_t size;
    ductile_stream stream;
    /* guarded by the index lock */
    dpool_import_state state;
    bool is_gone;        /* ductile_stream_done was called: the marker was recorded then,
                          * or never will be */
    bool is_marking;     /* a thread is recording the marker just now */
    dvmm_marker *marker; /* CLOSED, or the stream is gone */
    dseg_idle idle;      /* CLOSED without a marker: the wait that made one unnecessary */
} dpool_import;

struct ductile_allocator;

/* Adds the import to the allocator, which owns it on success. Grow lock held, index lock not.
 * ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_import_register(struct ductile_allocator *a, const dpool_import *import);

/* Closes the import that starts at the address, after the work on its stream; a later poll unmaps
 * it. Waits only for a thread that is marking this import. ERR_FOREIGN_POINTER when no import
 * starts there; on an error of recording the marker nothing has changed. No lock held. */
ductile_status dpool_import_leave(struct ductile_allocator *a, ductile_addr addr);

/* Closes an import as dpool_import_leave does, and unmaps all that are CLOSED and done. *has_left:
 * it is no import any more, whatever the status. No lock held. */
ductile_status dpool_import_close(struct ductile_allocator *a, ductile_addr addr, bool *has_left);

/* Unmaps the CLOSED imports whose work is done. Grow lock held, index lock not. */
ductile_status dpool_imports_poll(struct ductile_allocator *a);

/* Records the markers of the imports on a stream that ends, so that closing them needs no call on
 * the stream. *is_named: another thread is closing an import of it now, and the caller must call
 * again. Index lock not held. */
ductile_status dpool_imports_end(struct ductile_allocator *a, ductile_stream stream,
                                 bool *is_named);

/* Is an import being marked on the stream, at its close? Index lock held. */
bool dpool_imports_name_locked(const struct ductile_allocator *a, ductile_stream stream);

/* Gives a device access to all imports, or takes it from all. All or nothing. Grow lock held. */
ductile_status dpool_imports_set_device(struct ductile_allocator *a, int device, bool may_access);

/* Describes the live import that starts at addr; false when there is none. Index lock held. */
bool dpool_import_describe_locked(const struct ductile_allocator *a, ductile_addr addr,
                                  ductile_block_info *info);
void dpool_imports_walk_locked(const struct ductile_allocator *a, ductile_walk_fn visit,
                               void *user);

/* Unmaps all imports if may_unmap, and frees the records. Destroying only. */
ductile_status dpool_imports_fini(struct ductile_allocator *a, bool may_unmap, dseg_idle idle);

/* Notifies the map callbacks of imported memory. No lock held. */
void dpool_announce_import(ductile_allocator *a, ductile_map_change change, const dseg_foreign *in,
                           ductile_stream stream);

/* Recounts imports (P11), and records the first invariant that does not hold in *fault. Both locks
 * held. */
void dpool_imports_check_locked(const struct ductile_allocator *a, dti_fault *fault);

#endif
