/* SPDX-License-Identifier: Apache-2.0 */
/* Putting memory behind empty granules. */
#ifndef DUCTILE_SEGMENTS_GROW_H
#define DUCTILE_SEGMENTS_GROW_H

#include "segments/segment.h"

/*
 * Maps handles one behind the other from granule `first` on and makes them accessible.
 * All or nothing: on failure every granule is EMPTY as before, or QUARANTINED where the undo
 * itself failed or nobody can tell (then *quarantined is set), and the caller still owns every
 * handle; one with n_mappings left over is stuck at such a place.
 * Pre: the granules are EMPTY; the handles' sizes add up to the span.
 */
ductile_status dseg_map(dseg_segment *seg, uint32_t first, dvmm_handle *const *handles,
                        uint32_t n_handles, bool *quarantined);

/* Undoes a dseg_map whose memory nobody has been given: MAPPED -> EMPTY, the caller owns the
 * handles. */
void dseg_undo_map(dseg_segment *seg, uint32_t first, uint32_t n_granules);

#endif
