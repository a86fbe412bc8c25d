/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of a segment's granules, for the files that call the driver: each books here what its
 * call has done. No call but dseg_read_mapping asks the driver anything. Used within segments
 * alone.
 */
#ifndef DUCTILE_SEGMENTS_SLOTS_H
#define DUCTILE_SEGMENTS_SLOTS_H

#include "segments/segment.h"

/* Sets the state of granules, and the counts and the span in use with it. */
void dseg_set_states(dseg_segment *seg, uint32_t first, uint32_t n, dseg_state state);

/* The handle is mapped at `first` from now on. Pre: its granules there are EMPTY. */
void dseg_book_map(dseg_segment *seg, uint32_t first, dvmm_handle *h);

/* The driver has unmapped the handle at `first`: EMPTY; or it has refused to: QUARANTINED, and the
 * spot stays counted in n_mappings. What becomes of the handle is the caller's to decide. */
void dseg_book_unmap(dseg_segment *seg, uint32_t first, ductile_status status);

/* What the driver says of a handle's place. A handle is mapped whole or not at all. */
typedef enum dseg_reading { DSEG_READ_EMPTY, DSEG_READ_MAPPED, DSEG_READ_NEITHER } dseg_reading;

dseg_reading dseg_read_mapping(const dseg_segment *seg, uint32_t first, uint32_t n_granules);

#endif
