/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps memory behind empty granules: handles of donors, then cached handles, then new ones. The
 * upper layer chooses the granules and the donors; this file makes the driver calls, all or
 * nothing.
 *
 * A donor is a span of whole handles whose memory is to serve elsewhere. Its handles move: each is
 * mapped at its new place while it is still mapped at the old one, which retires (unmap_handles.h).
 * Handles of several granules may fit no piece. When the GPU is known to be done with such a donor,
 * it may be unmapped first instead: its handles go to the handle cache, and may be released to make
 * room for handles of another size. That step is not undone.
 */
#ifndef DUCTILE_SEGMENTS_GROW_H
#define DUCTILE_SEGMENTS_GROW_H

#include "segments/unmap_handles.h"

/* A run of empty granules to map. */
typedef struct dseg_piece {
    uint32_t first;
    uint32_t n_granules;
    uint32_t first_handle; /* index of its first handle in the handles of the growth */
    uint32_t n_handles;
} dseg_piece;

/* What the growth does with a donor. */
typedef enum dseg_donation {
    DSEG_MAY_MOVE = 0, /* not yet, or its first handle fits no piece    */
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
    dseg_segment *seg; /* the segment that grows */
    dseg_piece *pieces;
    uint32_t n_pieces;
    dseg_donor *donors;
    uint32_t n_donors;
    uint32_t max_created;  /* granules of a handle that is created, at most */
    uint64_t max_held;     /* the held bytes may exceed neither this nor the limit */
    dvmm_handle **handles; /* of the pieces, in their order */
    uint32_t max_handles;  /* room for as many as there are granules */
    /* results */
    uint32_t n_handles;
    uint32_t n_moved;         /* of them, donors' */
    uint64_t granules_lacked; /* after a failure: for which there was no handle */
} dseg_growth;

/* On success the pieces are MAPPED with access, and the handles of donors that MOVED are RETIRING
 * at their old place. On failure all is as before, except that donors may have been unmapped, and
 * that the undo may have left granules QUARANTINED. ERR_OUT_OF_MEMORY, ... */
ductile_status dseg_grow(dseg_growth *g);

/*
 * Maps memory behind all of [first, end) again, after a sleep unmapped it. A handle that the sleep
 * left stays, if the driver confirms that it is mapped. After a failure, a part may be mapped.
 * ERR_DRIVER when a granule is QUARANTINED, or when the driver cannot tell whether it is mapped.
 */
ductile_status dseg_refill(dseg_segment *seg, uint32_t first, uint32_t end, uint32_t max_created);

/* The same for all of a segment, with one handle behind it; what is held stays below max_held. */
ductile_status dseg_fill_with_one(dseg_segment *seg, uint64_t max_held);

/* How dseg_fill_spilled fills a segment. */
typedef struct dseg_spill {
    uint32_t most_device; /* granules of device memory, at most; they come first */
    uint32_t max_created; /* granules of a handle of it that is created, at most */
    uint64_t max_held;    /* the held bytes may exceed neither this nor the limit */
    /* results: granules for which there was no handle, and of them those of the device's part */
    uint32_t lacks;
    uint32_t lacks_device;
} dseg_spill;

/* Maps memory behind all of an empty segment: handles of the device, behind them cached ones of the
 * host, to which the host gets access too. On failure the segment is as before, or
 * QUARANTINED where the undo failed; device memory that was created is in the cache.
 * ERR_OUT_OF_MEMORY, ERR_OUT_OF_HOST_MEMORY, ... */
ductile_status dseg_fill_spilled(dseg_segment *seg, dseg_spill *how);

/* What dseg_exchange exchanges. */
typedef struct dseg_exchanged {
    dseg_span span;       /* whole handles of the host */
    dseg_idle idle;       /* proof for it */
    uint32_t max_created; /* granules of a handle of the device that is created, at most */
    uint64_t max_held;    /* the held bytes may exceed neither this nor the limit */
    bool is_back; /* result of a failure: all of it is mapped as before, with what it holds */
} dseg_exchanged;

/* Maps memory of the device behind granules in place of the host's, which goes to the cache. What
 * they hold is lost. ERR_OUT_OF_MEMORY: nothing was unmapped. Another failure: the host's is mapped
 * again; where that fails too, or the driver cannot tell whether it has unmapped a handle, a part
 * may be EMPTY or QUARANTINED. */
ductile_status dseg_exchange(dseg_segment *seg, dseg_exchanged *x);

/*
 * The step that dseg_grow and dseg_refill share: maps handles one behind the other from granule
 * `first` on and makes them accessible. On failure every granule is EMPTY as before, or QUARANTINED
 * where the undo failed or the driver cannot tell. The caller then still owns every handle; a
 * handle with n_mappings above 0 is stuck at such a place. Pre: the granules are EMPTY; the sizes
 * of the handles add up to the span.
 */
ductile_status dseg_map(dseg_segment *seg, uint32_t first, dvmm_handle *const *handles,
                        uint32_t n_handles);

#endif
