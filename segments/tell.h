/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool hears of mappings (vmm/nvtx/regions.h): a handle's memory, at one address, once all
 * devices have access to it, until just before it is unmapped. Private to segments.
 */
#ifndef DUCTILE_SEGMENTS_TELL_H
#define DUCTILE_SEGMENTS_TELL_H

#include "segments/segment.h"

/* The handles from `first` on have come, up to `end`. */
void dseg_tell_mapped(const dseg_segment *seg, uint32_t first, uint32_t end);

/* Tells that the handle at `first` goes, and makes the driver call that unmaps it. */
ductile_status dseg_unmap_told(const dseg_segment *seg, uint32_t first);

/* The driver unmapped it in a call that it said had failed. */
void dseg_tell_gone(const dseg_segment *seg, uint32_t first);

#endif
