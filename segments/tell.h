/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool hears of mappings (vmm/nvtx/regions.h): a handle's memory, at one address, once all
 * devices have access to it, until just before it is unmapped. Private to segments.
 */
#ifndef DUCTILE_SEGMENTS_TELL_H
#define DUCTILE_SEGMENTS_TELL_H

#include "segments/segment.h"

/* The handles in [first, end) are mapped. */
void dseg_tell_mapped(const dseg_segment *seg, uint32_t first, uint32_t end);

/* The handle at `first` is about to be unmapped, or turns out to be. May be told again. */
void dseg_tell_gone(const dseg_segment *seg, uint32_t first);

#endif
