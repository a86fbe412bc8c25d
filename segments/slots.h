/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of the granules of a segment. The files that call the driver record here what their
 * calls have done. Only dseg_read_mapping calls the driver. Private to segments.
 */
#ifndef DUCTILE_SEGMENTS_SLOTS_H
#define DUCTILE_SEGMENTS_SLOTS_H

#include "segments/segment.h"

/* Sets the state of granules, and updates the counts and the span in use. */
void dseg_set_states(dseg_segment *seg, uint32_t first, uint32_t n, dseg_state state);

/* Records that the handle is mapped at `first`. Pre: its granules there are EMPTY. */
void dseg_book_map(dseg_segment *seg, uint32_t first, dvmm_handle *h);

/* Records that the driver has unmapped the handle at `first`: EMPTY; or that it has refused to:
 * QUARANTINED, and the address stays counted in n_mappings. The caller decides what happens to the
 * handle. */
void dseg_book_unmap(dseg_segment *seg, uint32_t first, ductile_status status);

/* What the driver reports for the granules of a handle. A handle is mapped whole or not at all. */
typedef enum dseg_reading { DSEG_READ_EMPTY, DSEG_READ_MAPPED, DSEG_READ_NEITHER } dseg_reading;

dseg_reading dseg_read_mapping(const dseg_segment *seg, uint32_t first, uint32_t n_granules);

#endif
