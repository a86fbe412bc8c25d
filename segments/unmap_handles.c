/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/unmap_handles.h"

#include "segments/slots.h"

#include "vmm/base/check.h"

/* ---- 1. The GPU is done -------------------------------------------------------------------- */

enum { BY_STREAM = 1, BY_STREAM_MARKER = 2, BY_DEVICE = 3, BY_CONTEXT_MARKER = 4 };

/* A failed wait proves nothing. */
ductile_status dseg_sync(dvmm_handle_store *store, ductile_stream stream, dseg_stream_idle *proof) {
    ductile_status status = dvmm_stream_sync(store->driver, stream);
    *proof = (dseg_stream_idle){status == DUCTILE_OK ? BY_STREAM : 0};
    return status;
}

dseg_stream_idle dseg_stream_idle_by_marker(const dvmm_marker *marker) {
    return (dseg_stream_idle){dvmm_marker_is_done(marker) ? BY_STREAM_MARKER : 0};
}

dseg_idle dseg_idle_if_joined(dseg_stream_idle proof) {
    return (dseg_idle){proof.made_by};
}

ductile_status dseg_sync_device(dvmm_marker_pool *markers, dseg_idle *proof) {
    ductile_status status = dvmm_markers_wait_all(markers);
    *proof = (dseg_idle){status == DUCTILE_OK ? BY_DEVICE : 0};
    return status;
}

dseg_idle dseg_idle_by_marker(const dvmm_marker *marker) {
    bool is_done = marker->is_of_context && dvmm_marker_is_done(marker);
    return (dseg_idle){is_done ? BY_CONTEXT_MARKER : 0};
}

/* ---- 2. Unmap, 3. into the cache ----------------------------------------------------------- */

/* The handle cache releases it, at once or later: dvmm_store_shrink_cache. */
static void put_into_cache(dseg_segment *seg, dvmm_handle *h, ductile_status unmapped) {
    if (unmapped == DUCTILE_OK) {
        dvmm_store_put(seg->store, h);
    } else {
        dvmm_store_lose(seg->store, h);
    }
}

static ductile_status unmap_one(dseg_segment *seg, uint32_t first) {
    dvmm_handle *h = seg->slots[first].handle;
    bool serves_here = seg->slots[first].state == DSEG_MAPPED;
    uint64_t bytes = dvmm_handle_bytes(seg->store, h);
    ductile_status status = dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes);
    dseg_book_unmap(seg, first, status);
    if (serves_here) {
        put_into_cache(seg, h, status);
    }
    return status;
}

/* A span of whole handles begins and ends at handle borders. */
static bool is_whole(const dseg_segment *seg, uint32_t first, uint32_t n) {
    const dseg_slot *last = &seg->slots[first + n - 1];
    return n != 0 && seg->slots[first].offset == 0 && last->offset == last->handle->n_granules - 1;
}

ductile_status dseg_unmap_handles(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                                  dseg_idle proof) {
    DTI_ASSERT(dseg_is_proven(proof));
    DTI_ASSERT(is_whole(seg, first, n_granules));
    ductile_status result = DUCTILE_OK;
    for (uint32_t g = first, next; g < first + n_granules; g = next) {
        next = g + seg->slots[g].handle->n_granules;
        result = dti_first_error(result, unmap_one(seg, g));
    }
    return result;
}

ductile_status dseg_unmap_all(dseg_segment *seg, dseg_state state, dseg_idle proof) {
    ductile_status result = DUCTILE_OK;
    for (uint32_t g = seg->low, next; g < seg->high; g = next) {
        bool is_in_state = seg->slots[g].state == (uint32_t)state;
        uint32_t n = is_in_state ? seg->slots[g].handle->n_granules : 1;
        next = g + n;
        if (is_in_state) {
            result = dti_first_error(result, dseg_unmap_handles(seg, g, n, proof));
        }
    }
    return result;
}

/* ---- Two addresses ------------------------------------------------------------------------- */

void dseg_retire(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    DTI_ASSERT(is_whole(seg, first, n_granules));
    dseg_set_states(seg, first, n_granules, DSEG_RETIRING);
}

void dseg_serve_again(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    DTI_ASSERT(is_whole(seg, first, n_granules));
    dseg_set_states(seg, first, n_granules, DSEG_MAPPED);
}

/* ---- Taking handles out -------------------------------------------------------------------- */

/* A failed unmap call may have unmapped the handle. *found: what the driver reports after it. */
static ductile_status take_out_one(dseg_segment *seg, uint32_t first, dseg_reading *found) {
    const dvmm_handle *h = seg->slots[first].handle;
    uint64_t bytes = dvmm_handle_bytes(seg->store, h);
    ductile_status status = dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes);
    *found = status == DUCTILE_OK ? DSEG_READ_EMPTY : dseg_read_mapping(seg, first, h->n_granules);
    if (*found == DSEG_READ_EMPTY) {
        dseg_book_unmap(seg, first, DUCTILE_OK);
        return DUCTILE_OK;
    }
    return status;
}

ductile_status dseg_take_out(dseg_segment *seg, dseg_span s, dseg_idle proof, dvmm_handle **taken,
                             uint32_t *n_taken, bool *is_known) {
    DTI_ASSERT(dseg_is_proven(proof));
    DTI_ASSERT(is_whole(seg, s.first, s.end - s.first));
    dseg_reading found = DSEG_READ_EMPTY;
    ductile_status status = DUCTILE_OK;
    *n_taken = 0;
    for (uint32_t g = s.first; g < s.end && status == DUCTILE_OK;) {
        dvmm_handle *h = seg->slots[g].handle;
        g += h->n_granules;
        status = take_out_one(seg, g - h->n_granules, &found);
        if (status == DUCTILE_OK) {
            taken[(*n_taken)++] = h;
        }
    }
    *is_known = found != DSEG_READ_NEITHER;
    return status;
}

/* ---- Sleep --------------------------------------------------------------------------------- */

/* Sets or clears the mark at every granule: only where a handle begins it may be set. */
void dseg_mark_what_stays(dseg_segment *seg, dseg_span may_go) {
    for (uint32_t g = seg->low; g < seg->high; g++) {
        bool begins = seg->slots[g].state == DSEG_MAPPED && seg->slots[g].offset == 0;
        bool is_kept = g < may_go.first || g >= may_go.end;
        seg->slots[g].stays = begins && (is_kept || !dseg_can_go(seg, g));
    }
}

bool dseg_is_marked(const dseg_segment *seg, uint32_t first) {
    return seg->slots[first].stays != 0;
}

static bool is_behind_mark(const dseg_segment *seg, uint32_t granule) {
    const dseg_slot *slot = &seg->slots[granule];
    return slot->state == DSEG_MAPPED && dseg_is_marked(seg, granule - slot->offset);
}

dseg_span dseg_marked_in(const dseg_segment *seg, dseg_span s) {
    while (!dseg_is_empty(s) && !is_behind_mark(seg, s.first)) {
        s.first++;
    }
    uint32_t end = s.first;
    while (end < s.end && is_behind_mark(seg, end)) {
        end++;
    }
    return (dseg_span){s.first, end};
}

static bool has_stayed(const dseg_segment *seg, uint32_t granule) {
    const dseg_slot *slot = &seg->slots[granule];
    return slot->state == DSEG_MAPPED && (slot->handle->n_pins > 0 || is_behind_mark(seg, granule));
}

bool dseg_has_stayed(const dseg_segment *seg, dseg_span s) {
    while (!dseg_is_empty(s) && has_stayed(seg, s.first)) {
        s.first++;
    }
    return dseg_is_empty(s);
}

static void give_to_cache(dseg_segment *seg, uint32_t first) {
    dvmm_handle *h = seg->slots[first].handle;
    dseg_book_unmap(seg, first, DUCTILE_OK);
    dvmm_store_put(seg->store, h);
}

static bool unmap_if_movable(dseg_segment *seg, uint32_t first) {
    bool may_go = dseg_can_go(seg, first) && !dseg_is_marked(seg, first);
    dvmm_handle *h = seg->slots[first].handle;
    dseg_reading found = DSEG_READ_MAPPED;
    if (may_go && take_out_one(seg, first, &found) == DUCTILE_OK) {
        dvmm_store_put(seg->store, h);
        return true;
    }
    return false;
}

uint32_t dseg_unmap_for_sleep(dseg_segment *seg, uint32_t *at, uint32_t end, uint32_t most,
                              dseg_idle proof) {
    uint32_t n_gone = 0;
    uint32_t g = *at < seg->low ? seg->low : *at;
    for (uint32_t n; g < end && g < seg->high && n_gone < most; g += n) {
        bool is_mapped = seg->slots[g].state == DSEG_MAPPED;
        n = is_mapped ? seg->slots[g].handle->n_granules : 1;
        if (n > end - g) {
            break;
        }
        DTI_ASSERT(!is_mapped || dseg_is_proven(proof));
        n_gone += is_mapped && unmap_if_movable(seg, g) ? n : 0;
    }
    *at = g < seg->high ? g : end;
    return n_gone;
}

ductile_status dseg_confirm(dseg_segment *seg, uint32_t granule) {
    if (has_stayed(seg, granule)) {
        return DUCTILE_OK; /* no unmap was tried */
    }
    uint32_t first = granule - seg->slots[granule].offset;
    dseg_reading found = dseg_read_mapping(seg, first, seg->slots[granule].handle->n_granules);
    if (found == DSEG_READ_EMPTY) {
        give_to_cache(seg, first);
    }
    return found == DSEG_READ_NEITHER ? DUCTILE_ERR_DRIVER : DUCTILE_OK;
}
