/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host copy: contents of device memory, kept in page-locked host memory while the device memory
 * is gone. Pieces lie one behind the other in buffers of bounded size, so that no single large
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
    bool has_stayed; /* set by the owner of the copy: the memory stayed mapped, nothing is copied
                        back */
} dvmm_piece;

typedef struct dvmm_host_copy {
    dvmm_driver *driver;
    dvmm_piece *pieces; /* owned */
    uint64_t n_pieces;
    uint8_t **buffers; /* page-locked, BUFFER_BYTES each but the last */
    uint64_t n_buffers;
    uint64_t bytes;
    uint64_t copied_bytes; /* by the latest save or restore */
    bool fills; /* nothing was copied: the restore fills the pieces with this byte */
    uint8_t value;
    ductile_stream busy; /* a wait for copies on it failed, so they may not be complete; or NULL */
} dvmm_host_copy;

/* Copies the pieces to the host. Takes ownership of `pieces` (from malloc), also on failure. On
 * failure the copy is empty. ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ... */
ductile_status dvmm_host_copy_save(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                                   uint64_t n_pieces);

/* Notes pieces that the restore is to fill. Takes ownership of `pieces`. Cannot fail. */
void dvmm_host_copy_fill(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                         uint64_t n_pieces, uint8_t value);

/* Where the host copy of the byte at that address is, and how many bytes follow it there in one
 * piece; NULL when there is none. */
uint8_t *dvmm_host_copy_find(const dvmm_host_copy *saved, ductile_addr addr, uint64_t *bytes);

/* Copies back, or fills, the pieces that did not stay mapped and for which `wants` returns true,
 * and waits for the copies. The host copy does not change. */
ductile_status dvmm_host_copy_restore(dvmm_host_copy *saved,
                                      bool (*wants)(void *user, ductile_addr addr), void *user);

/* Frees the host memory. An empty copy is all zeros. */
void dvmm_host_copy_drop(dvmm_host_copy *saved);

#endif
