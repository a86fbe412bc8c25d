/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stash: contents of device memory, kept in page-locked host memory while the device memory is
 * gone. Pieces lie one behind the other in buffers of bounded size, so that no single large
 * page-locked allocation is needed.
 *
 * Copies run on a stream of their own: the caller orders them, by host waits, after the work on
 * the pieces, and later work after the restore, which waits. Threads: one at a time. No lock held
 * that others wait for: saving and restoring take as long as the copies do.
 */
#ifndef DUCTILE_VMM_HOST_COPY_H
#define DUCTILE_VMM_HOST_COPY_H

#include "vmm/driver/driver.h"

typedef struct dvmm_piece {
    ductile_addr addr;
    uint64_t size;
    bool has_stayed; /* set by the stash's owner: its memory did not go, nothing is copied back */
} dvmm_piece;

typedef struct dvmm_stash {
    dvmm_driver *driver;
    dvmm_piece *pieces; /* owned */
    uint64_t n_pieces;
    uint8_t **buffers; /* page-locked, BUFFER_BYTES each but the last */
    uint64_t n_buffers;
    uint64_t bytes;
    ductile_stream busy; /* copies on it are not known complete, because a wait failed; or NULL */
} dvmm_stash;

/* Copies the pieces to the host; takes `pieces` (malloc'd) over, also on failure. On failure the
 * stash is empty. ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ... */
ductile_status dvmm_stash_save(dvmm_stash *stash, dvmm_driver *driver, dvmm_piece *pieces,
                               uint64_t n_pieces);

/* Copies back the pieces that went and that `wants` says yes to, and waits for it. The stash stays
 * as it is. */
ductile_status dvmm_stash_restore(dvmm_stash *stash, bool (*wants)(void *user, ductile_addr addr),
                                  void *user);

/* Frees what it holds. An empty stash is all zeros. */
void dvmm_stash_drop(dvmm_stash *stash);

#endif
