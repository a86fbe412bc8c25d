/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole-handle arithmetic: which granules a span of addresses has, which of them end with handles,
 * and which handles may leave their address. No driver call, nothing changes.
 */
#ifndef DUCTILE_SEGMENTS_GRANULES_H
#define DUCTILE_SEGMENTS_GRANULES_H

#include "segments/segment.h"

/* Granules [first, end) of a segment; empty where first is not below end. */
typedef struct dseg_span {
    uint32_t first;
    uint32_t end;
} dseg_span;

static inline bool dseg_is_empty(dseg_span s) {
    return s.first >= s.end;
}

/* The granules that lie wholly between two addresses of the segment. */
dseg_span dseg_granules_in(const dseg_segment *seg, ductile_addr from, ductile_addr to);

/* The granules that something between the two addresses lies in. */
dseg_span dseg_granules_over(const dseg_segment *seg, ductile_addr from, ductile_addr to);

static inline dseg_state dseg_state_at(const dseg_segment *seg, uint32_t granule) {
    return (dseg_state)seg->slots[granule].state;
}

/* Is any granule of the span in that state? */
bool dseg_has_state(const dseg_segment *seg, dseg_span s, dseg_state state);

/* Where the granules from s.first on come to be in another state: s.end at the latest. */
uint32_t dseg_state_until(const dseg_segment *seg, dseg_span s);

/* The first granule from `from` on where a MAPPED handle begins; the segment's n_granules: none. */
uint32_t dseg_next_mapped(const dseg_segment *seg, uint32_t from);

/* ---- Handles of a span without EMPTY granules ---------------------------------------------- */

/* The span, and the rest of the handles that its ends cut. */
dseg_span dseg_widen_to_handles(const dseg_segment *seg, dseg_span s);

/* The span without the handles that its ends cut, and without the pinned ones at its ends: from one
 * handle that may move to another. Those between may be pinned. */
dseg_span dseg_movable_in(const dseg_segment *seg, dseg_span s);

/* Is the handle behind the granule pinned: must it keep its address (U10)? */
bool dseg_is_pinned(const dseg_segment *seg, uint32_t granule);

/* What the handles of a span are needed for. */
typedef struct dseg_ties {
    bool pinned;
    bool exported;
} dseg_ties;

dseg_ties dseg_ties_of(const dseg_segment *seg, dseg_span s);

/* Can the memory of the handle behind the granule go: is it mapped here alone, and not pinned? */
bool dseg_can_go(const dseg_segment *seg, uint32_t granule);

/* The run of handles that can go at one end of the span: of about `most` granules, or one handle
 * more when that does not come out even. Empty when the handle at that end has to stay. Pre: the
 * span is of whole handles. */
dseg_span dseg_run_at_end(const dseg_segment *seg, dseg_span s, uint64_t most, bool at_top);

/* The topmost run of handles wholly inside the span that can go, as above. */
dseg_span dseg_topmost_run(const dseg_segment *seg, dseg_span s, uint64_t most);

#endif
