/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounting what segments and their handles say of themselves. Each check returns false and fills
 * *fault with the first that does not hold. Grow lock held.
 */
#ifndef DUCTILE_SEGMENTS_CHECK_H
#define DUCTILE_SEGMENTS_CHECK_H

#include "segments/segment_set.h"

typedef struct dseg_fault {
    const char *invariant; /* its number in docs/invariants.md */
    const char *what;
    uint64_t is;
    uint64_t should;
    uint64_t where;
} dseg_fault;

/* The slots of one segment, its counts and its span: S1, S3, S5. */
bool dseg_check(const dseg_segment *seg, dseg_fault *fault);

/* What all handles add up to, for the upper layer to compare with what it published. */
typedef struct dseg_handle_sums {
    uint64_t pinned_bytes;
    uint64_t exported_bytes;
} dseg_handle_sums;

/* The handles, mapped and cached, of a store whose segments these are: P6, P7, P8. For a moment it
 * changes their counts, which the grow lock guards. */
bool dseg_check_handles(const dseg_set *segments, const dvmm_handle_store *store,
                        dseg_handle_sums *sums, dseg_fault *fault);

#endif
