/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/granules.h"

/* ---- Spans --------------------------------------------------------------------------------- */

dseg_span dseg_granules_in(const dseg_segment *seg, ductile_addr from, ductile_addr to) {
    uint64_t granule = seg->store->granule_bytes;
    return (dseg_span){(uint32_t)((from - seg->range.addr + granule - 1) / granule),
                       (uint32_t)((to - seg->range.addr) / granule)};
}

dseg_span dseg_granules_over(const dseg_segment *seg, ductile_addr from, ductile_addr to) {
    return (dseg_span){dseg_granule(seg, from), dseg_granule(seg, to - 1) + 1};
}

bool dseg_has_state(const dseg_segment *seg, dseg_span s, dseg_state state) {
    for (uint32_t g = s.first; g < s.end; g++) {
        if (dseg_state_at(seg, g) == state) {
            return true;
        }
    }
    return false;
}

uint32_t dseg_state_until(const dseg_segment *seg, dseg_span s) {
    uint32_t end = s.first;
    while (end < s.end && dseg_state_at(seg, end) == dseg_state_at(seg, s.first)) {
        end++;
    }
    return end;
}

uint32_t dseg_next_mapped(const dseg_segment *seg, uint32_t from) {
    for (uint32_t g = from > seg->low ? from : seg->low; g < seg->high; g++) {
        if (dseg_state_at(seg, g) == DSEG_MAPPED && seg->slots[g].offset == 0) {
            return g;
        }
    }
    return seg->n_granules;
}

/* ---- Handles ------------------------------------------------------------------------------- */

/* The first granule of the handle behind a granule, and the first granule after it. */
static dseg_span handle_over(const dseg_segment *seg, uint32_t granule) {
    const dseg_slot *slot = &seg->slots[granule];
    uint32_t first = granule - slot->offset;
    return (dseg_span){first, first + slot->handle->n_granules};
}

dseg_span dseg_widen_to_handles(const dseg_segment *seg, dseg_span s) {
    return (dseg_span){handle_over(seg, s.first).first, handle_over(seg, s.end - 1).end};
}

static dseg_span without_cut_handles(const dseg_segment *seg, dseg_span s) {
    if (!dseg_is_empty(s) && seg->slots[s.first].offset != 0) {
        s.first = handle_over(seg, s.first).end;
    }
    if (!dseg_is_empty(s) && handle_over(seg, s.end - 1).end != s.end) {
        s.end = handle_over(seg, s.end - 1).first;
    }
    return s;
}

bool dseg_is_pinned(const dseg_segment *seg, uint32_t granule) {
    return seg->slots[granule].handle->n_pins > 0;
}

dseg_span dseg_movable_in(const dseg_segment *seg, dseg_span s) {
    s = without_cut_handles(seg, s);
    while (!dseg_is_empty(s) && dseg_is_pinned(seg, s.end - 1)) {
        s.end = handle_over(seg, s.end - 1).first;
    }
    while (!dseg_is_empty(s) && dseg_is_pinned(seg, s.first)) {
        s.first = handle_over(seg, s.first).end;
    }
    return s;
}

dseg_ties dseg_ties_of(const dseg_segment *seg, dseg_span s) {
    dseg_ties ties = {false, false};
    for (uint32_t g = s.first; seg->store->totals.pinned_bytes > 0 && g < s.end; g++) {
        ties.pinned |= seg->slots[g].handle->n_pins > 0;
        ties.exported |= seg->slots[g].handle->n_exports > 0;
    }
    return ties;
}

void dseg_each_handle(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                      dseg_handle_fn visit) {
    for (uint32_t g = first - seg->slots[first].offset; g < first + n_granules;) {
        dvmm_handle *h = seg->slots[g].handle;
        g += h->n_granules;
        visit(seg->store, h);
    }
}

/* ---- What can go --------------------------------------------------------------------------- */

bool dseg_can_go(const dseg_segment *seg, uint32_t granule) {
    const dvmm_handle *h = seg->slots[granule].handle;
    return h->n_mappings == 1 && h->n_pins == 0;
}

dseg_span dseg_run_at_end(const dseg_segment *seg, dseg_span s, uint64_t most, bool at_top) {
    uint32_t n = 0;
    while (n < most && n < s.end - s.first) {
        uint32_t at = at_top ? s.end - 1 - n : s.first + n;
        if (!dseg_can_go(seg, at)) {
            break;
        }
        n += seg->slots[at].handle->n_granules;
    }
    return at_top ? (dseg_span){s.end - n, s.end} : (dseg_span){s.first, s.first + n};
}

dseg_span dseg_topmost_run(const dseg_segment *seg, dseg_span s, uint64_t most, uint32_t least) {
    dseg_span run = {0, 0};
    while (s.end > s.first && run.end - run.first < most) {
        dseg_span last = handle_over(seg, s.end - 1);
        if (last.first < s.first) {
            break;
        }
        bool is_large = last.end - last.first >= least;
        if (last.end == s.end && is_large && dseg_can_go(seg, last.first)) {
            run = (dseg_span){last.first, run.end == 0 ? s.end : run.end};
        } else if (run.end != 0) {
            break;
        }
        s.end = last.first;
    }
    return run;
}
