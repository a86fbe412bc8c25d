/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting memory behind empty granules: handles of donors, then cached ones, then new ones. The
 * upper layer has chosen which granules and which donors; here they get a driver's calls, all or
 * nothing.
 *
 * A donor is a span of whole handles whose memory serves elsewhere from now on. Its handles move:
 * each is mapped at its new place while it is still mapped at the old one, which retires
 * (unmap_handles.h). Handles of several granules may fit no piece; where the GPU is known to be
 * done with a donor it may be unmapped first instead, so that what does not suit makes room for a
 * handle that does. That is not undone: the memory is in the handle cache then.
 */
#ifndef DUCTILE_SEGMENTS_GROW_H
#define DUCTILE_SEGMENTS_GROW_H

#include "segments/unmap_handles.h"

/* Empty granules that are to get memory. */
typedef struct dseg_piece {
    uint32_t first;
    uint32_t n_granules;
    uint32_t first_handle; /* its handles within the growth's */
    uint32_t n_handles;
} dseg_piece;

/* What becomes of a donor. */
typedef enum dseg_donation {
    DSEG_MAY_MOVE = 0, /* not yet, or none of its handles fits          */
    DSEG_MOVED = 1,    /* all its handles are mapped elsewhere as well  */
    DSEG_TO_UNMAP = 2, /* first of all; `idle` is the proof             */
    DSEG_UNMAPPED = 3, /* its handles went to the cache                 */
    DSEG_STUCK = 4     /* the driver would not unmap all of it          */
} dseg_donation;

typedef struct dseg_donor {
    dseg_segment *seg;
    uint32_t first;
    uint32_t n_granules;
    dseg_donation state;
    dseg_idle idle;
} dseg_donor;

typedef struct dseg_growth {
    dseg_segment *seg; /* that grows */
    dseg_piece *pieces;
    uint32_t n_pieces;
    dseg_donor *donors;
    uint32_t n_donors;
    uint32_t max_created;  /* granules of a handle that is created, at most */
    uint64_t max_held;     /* what is held may not grow above it, nor above the limit */
    bool one_handle;       /* the one piece is to be one handle, and no donor's */
    dvmm_handle **handles; /* of the pieces, in their order: those of donors first */
    uint32_t max_handles;  /* room for as many as there are granules */
    /* results */
    uint32_t n_handles;
    uint32_t n_moved;         /* of them, donors' */
    uint64_t granules_lacked; /* after a failure: for which there was no handle */
} dseg_growth;

/* MAPPED with access, and donors that MOVED are RETIRING; or all as before, but for donors that
 * were unmapped, and for granules that the undo left QUARANTINED. ERR_OUT_OF_MEMORY, ... */
ductile_status dseg_grow(dseg_growth *g);

/*
 * Puts memory behind all of [first, end), which a pause took it from: what it left where it is
 * stays, if it is mapped indeed. After a failure as far as memory went. ERR_DRIVER when a granule
 * has lost its address for good, or nobody can tell.
 */
ductile_status dseg_refill(dseg_segment *seg, uint32_t first, uint32_t end, uint32_t max_created);

/*
 * The step that both are made of: maps handles one behind the other from granule `first` on and
 * makes them accessible. On failure every granule is EMPTY as before, or QUARANTINED where the undo
 * itself failed or nobody can tell, and the caller still owns every handle; one with n_mappings
 * left over is stuck at such a place. Pre: the granules are EMPTY; the handles' sizes add up to the
 * span.
 */
ductile_status dseg_map(dseg_segment *seg, uint32_t first, dvmm_handle *const *handles,
                        uint32_t n_handles);

#endif
