/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of other processes, mapped here: each import is a range of its own, exactly as large as
 * what was sent, outside all arenas. It is not ours: no statistic of memory counts it, nothing of
 * it is reused.
 *
 *     LIVE     in use here
 *     LEAVING  being closed by a thread that tells of it, and records a marker
 *     CLOSED   unmapped once its marker is done (U3)
 */
#ifndef DUCTILE_POOL_SHARING_IMPORT_H
#define DUCTILE_POOL_SHARING_IMPORT_H

#include "segments/foreign.h"

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
    bool is_gone;        /* the stream was named done: the marker was recorded then, or never */
    bool is_marking;     /* a thread is recording the marker just now */
    dvmm_marker *marker; /* CLOSED, or the stream is gone */
    dseg_idle idle;      /* CLOSED without a marker: the wait that made one unnecessary */
} dpool_import;

struct ductile_allocator;

/* Takes the import over on success. Grow lock held, index lock not. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_import_register(struct ductile_allocator *a, const dpool_import *import);

/* Closes the import that starts at the address, ordered after the work on its stream: unmapped by
 * a later poll. No lock held; waits for nobody but who marks just this one. ERR_FOREIGN_POINTER
 * when there is none there; the errors of recording a marker, and then nothing has changed. */
ductile_status dpool_import_leave(struct ductile_allocator *a, ductile_addr addr);

/* Unmaps those closed whose work is done. Grow lock held, index lock not. */
ductile_status dpool_imports_poll(struct ductile_allocator *a);

/* The stream ends: its imports need not name it when they are closed. *is_named: one is being
 * closed just now; then this has to be called again. Index lock not held. */
ductile_status dpool_imports_end(struct ductile_allocator *a, ductile_stream stream,
                                 bool *is_named);

/* Is an import being marked on the stream, at its close? Index lock held. */
bool dpool_imports_name_locked(const struct ductile_allocator *a, ductile_stream stream);

/* Gives a device access to all imports, or takes it; all or nothing. Grow lock held. */
ductile_status dpool_imports_set_device(struct ductile_allocator *a, int device, bool may_access);

/* False when no live import starts there. Index lock held. */
bool dpool_import_describe_locked(const struct ductile_allocator *a, ductile_addr addr,
                                  ductile_block_info *info);
void dpool_imports_walk_locked(const struct ductile_allocator *a, ductile_walk_fn visit,
                               void *user);

/* Unmaps all of them, if that is safe, and frees the records. Destroying only. */
ductile_status dpool_imports_fini(struct ductile_allocator *a, bool may_unmap, dseg_idle idle);

/* Tells the map callbacks of imported memory. No lock held. */
void dpool_announce_import(ductile_allocator *a, ductile_map_change change, const dseg_foreign *in,
                           ductile_stream stream);

#endif
