/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All segments of one allocator, sorted by address, to find the segment that holds an address. Read
 * under the index lock; changed under both locks. The set does not own the segments.
 */
#ifndef DUCTILE_SEGMENTS_SEGMENT_SET_H
#define DUCTILE_SEGMENTS_SEGMENT_SET_H

#include "segments/segment.h"

typedef struct dseg_set {
    dseg_segment **items;
    uint32_t count;
    uint32_t capacity;
} dseg_set;

void dseg_set_fini(dseg_set *set);

/* Reserves room for one more segment, so that dseg_set_insert cannot fail.
 * ERR_OUT_OF_HOST_MEMORY. */
ductile_status dseg_set_reserve(dseg_set *set);

/* Pre: dseg_set_reserve succeeded since the last insert. */
void dseg_set_insert(dseg_set *set, dseg_segment *seg);

void dseg_set_remove(dseg_set *set, const dseg_segment *seg);

/* The segment whose range holds the address; NULL when none does. Logarithmic. */
dseg_segment *dseg_set_find(const dseg_set *set, ductile_addr addr);

#endif
