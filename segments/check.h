/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recounts the slots of segments and the counts of their handles. Each check records the first
 * invariant that does not hold in *fault, which the caller zeroed, and returns false once one was
 * found. Grow lock held.
 */
#ifndef DUCTILE_SEGMENTS_CHECK_H
#define DUCTILE_SEGMENTS_CHECK_H

#include "segments/segment_set.h"
#include "vmm/base/fault.h"

/* Checks the slots of one segment, its counts and its span: S1, S3, S5. */
bool dseg_check(const dseg_segment *seg, dti_fault *fault);

/* The sums over all handles, for the upper layer to compare with its statistics. */
typedef struct dseg_handle_sums {
    uint64_t pinned_bytes;
    uint64_t exported_bytes;
} dseg_handle_sums;

/* Checks the handles, mapped and cached, of a store whose segments these are: P6, P7, P8, P12. For
 * a moment it changes their counts, which the grow lock guards. */
bool dseg_check_handles(const dseg_set *segments, const dvmm_handle_store *store,
                        dseg_handle_sums *sums, dti_fault *fault);

#endif
