/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host copy: contents of device memory, kept in the host arena while the device memory is gone.
 * Pieces lie there in the order of their addresses, in one span where that has room, otherwise in
 * several. A piece lies in one span, so that one copy of the driver may have all of it.
 *
 * Copies run on a stream of their own: the caller orders them, by host waits, after the work on
 * the pieces, and later work after the end of the restore, which waits. Saving does not: while the
 * copies run, dvmm_host_copy_wait_next says up to which address they are done.
 * Threads: one at a time. No lock held that others wait for: waits take as long as the copies do.
 * But dvmm_host_copy_restore_between, which only issues copies, may be called under one.
 */
#ifndef DUCTILE_VMM_HOST_COPY_H
#define DUCTILE_VMM_HOST_COPY_H

#include "vmm/host_arena.h"

enum { DVMM_COPY_STEPS = 64 };

typedef struct dvmm_piece {
    ductile_addr addr;
    uint64_t size;
    uint64_t at;     /* in the arena; set by the copy */
    bool has_stayed; /* set by the owner of the copy: the memory stayed mapped, nothing is copied
                        back */
} dvmm_piece;

/* So many pieces have been copied once the event is done. */
typedef struct dvmm_copy_step {
    dvmm_event event;
    uint64_t n_pieces;
} dvmm_copy_step;

typedef struct dvmm_host_copy {
    dvmm_driver *driver;
    dvmm_host_arena *arena;
    dvmm_host_span *spans; /* owned */
    uint32_t n_spans;
    uint32_t spans_room;
    dvmm_piece *pieces; /* owned; by address */
    uint64_t n_pieces;
    uint64_t bytes;
    uint64_t copied_bytes; /* by the latest save or restore */
    uint64_t n_saved;      /* pieces whose copies out are known to be complete */
    bool fills;            /* nothing was copied: the restore fills the pieces with this byte */
    uint8_t value;
    ductile_stream busy; /* copies on it may be under way; or NULL */
    dvmm_copy_step steps[DVMM_COPY_STEPS];
    uint32_t n_steps;
    uint32_t next_step;
} dvmm_host_copy;

/* Begins to copy the pieces to the host. Replaces what `saved` holds, which must be at rest, in its
 * place if the pieces have the same sizes. Takes ownership of `pieces` (from malloc), also on
 * failure; then the copy is empty. ERR_OUT_OF_HOST_MEMORY, ERR_DRIVER, ... */
ductile_status dvmm_host_copy_save(dvmm_host_copy *saved, dvmm_host_arena *arena,
                                   dvmm_piece *pieces, uint64_t n_pieces);

/* Waits until more of the save is done. *until: no copy out uses memory below that address any
 * more; UINT64_MAX: all is done. An error: nothing more is known; what is not in n_saved may never
 * arrive. */
ductile_status dvmm_host_copy_wait_next(dvmm_host_copy *saved, ductile_addr *until);

/* Notes pieces that the restore is to fill. Takes ownership of `pieces`. Cannot fail. */
void dvmm_host_copy_fill(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                         uint64_t n_pieces, uint8_t value);

/* Where the host copy of the byte at that address is, and how many bytes of its piece follow it
 * there; NULL when there is none. */
uint8_t *dvmm_host_copy_find(const dvmm_host_copy *saved, ductile_addr addr, uint64_t *bytes);

/* A restore is begun once, goes on between two addresses as memory is mapped there, and is ended by
 * a wait. What is copied back, or filled, are the pieces, or parts of them, that did not stay
 * mapped and for whose address `wants` returns true. The host copy does not change. After a failure
 * copies may be under way, until dvmm_host_copy_wait_next says otherwise. */
ductile_status dvmm_host_copy_begin_restore(dvmm_host_copy *saved);
ductile_status dvmm_host_copy_restore_between(dvmm_host_copy *saved, ductile_addr from,
                                              ductile_addr to,
                                              bool (*wants)(void *user, ductile_addr addr),
                                              void *user);
ductile_status dvmm_host_copy_end_restore(dvmm_host_copy *saved);

/* Waits for copies that are under way, and gives the spans back. An empty copy is all zeros. */
void dvmm_host_copy_drop(dvmm_host_copy *saved);

#endif
