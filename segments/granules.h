/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole-handle arithmetic: the granules of a span of addresses, how handles lie in them, and which
 * handles may leave their address. These functions call no driver and change nothing.
 */
#ifndef DUCTILE_SEGMENTS_GRANULES_H
#define DUCTILE_SEGMENTS_GRANULES_H

#include "segments/segment.h"

/* Granules [first, end) of a segment; empty unless first < end. */
typedef struct dseg_span {
    uint32_t first;
    uint32_t end;
} dseg_span;

static inline bool dseg_is_empty(dseg_span s) {
    return s.first >= s.end;
}

/* The granules that lie wholly between the two addresses. */
dseg_span dseg_granules_in(const dseg_segment *seg, ductile_addr from, ductile_addr to);

/* The granules that overlap the span between the two addresses. */
dseg_span dseg_granules_over(const dseg_segment *seg, ductile_addr from, ductile_addr to);

static inline dseg_state dseg_state_at(const dseg_segment *seg, uint32_t granule) {
    return (dseg_state)seg->slots[granule].state;
}

/* Is any granule of the span in that state? */
bool dseg_has_state(const dseg_segment *seg, dseg_span s, dseg_state state);

/* The first granule after s.first that is in another state than s.first; at most s.end. */
uint32_t dseg_state_until(const dseg_segment *seg, dseg_span s);

/* The first granule at or above `from` where a MAPPED handle begins; the n_granules of the segment
 * when there is none. */
uint32_t dseg_next_mapped(const dseg_segment *seg, uint32_t from);

/* ---- Handles of a span without EMPTY granules ---------------------------------------------- */

/* The span, widened to whole handles. */
dseg_span dseg_widen_to_handles(const dseg_segment *seg, dseg_span s);

/* The span without the handles that its ends cut, and without the pinned handles at its ends, so
 * that it begins and ends with a handle that may move. Handles inside may be pinned. */
dseg_span dseg_movable_in(const dseg_segment *seg, dseg_span s);

/* Is the handle behind the granule pinned, so that it must keep its address (U10)? */
bool dseg_is_pinned(const dseg_segment *seg, uint32_t granule);

/* Why the handles of a span must stay. */
typedef struct dseg_ties {
    bool pinned;
    bool exported;
} dseg_ties;

dseg_ties dseg_ties_of(const dseg_segment *seg, dseg_span s);

/* A function to call with each handle of a span. */
typedef void (*dseg_handle_fn)(dvmm_handle_store *store, dvmm_handle *handle);

/* Visits every handle behind [first, first + n) once, those cut by its ends too. Pre: no granule
 * is EMPTY. */
void dseg_each_handle(dseg_segment *seg, uint32_t first, uint32_t n_granules, dseg_handle_fn visit);

/* Can the memory of the handle behind the granule be released? Yes when it is mapped at this
 * address alone and not pinned. */
bool dseg_can_go(const dseg_segment *seg, uint32_t granule);

/* The run of handles that can go at one end of the span: about `most` granules, one handle more
 * when `most` would cut it. Empty when the handle at that end must stay. Pre: the span consists of
 * whole handles. */
dseg_span dseg_run_at_end(const dseg_segment *seg, dseg_span s, uint64_t most, bool at_top);

/* The topmost run of handles wholly inside the span that can go: about `most` granules, one handle
 * more when `most` would cut it. Handles of less than `least` granules stay. Empty when no handle
 * can go. */
dseg_span dseg_topmost_run(const dseg_segment *seg, dseg_span s, uint64_t most, uint32_t least);

#endif
