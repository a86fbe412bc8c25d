/* SPDX-License-Identifier: Apache-2.0 */
/* Access of devices to a segment, and the loop over the handles of a span. */
#ifndef DUCTILE_SEGMENTS_ACCESS_H
#define DUCTILE_SEGMENTS_ACCESS_H

#include "segments/segment.h"

/*
 * Gives a device access to all that is mapped in the segment, or takes it. All or nothing, if the
 * driver undoes it: on failure the device has the access it had, provided that before the call all
 * of the segment had the opposite.
 */
ductile_status dseg_set_device(dseg_segment *seg, int device, bool may_access);

/* A function to call with each handle of a span. */
typedef void (*dseg_handle_fn)(dvmm_handle_store *store, dvmm_handle *handle);

/* Visits every handle behind [first, first + n) once, those cut by its ends too. Pre: no granule
 * is EMPTY. */
void dseg_each_handle(dseg_segment *seg, uint32_t first, uint32_t n_granules, dseg_handle_fn visit);

#endif
