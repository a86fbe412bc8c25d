/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting memory behind empty granules, and undoing it. The undo unmaps without a proof that the
 * GPU is done (unmap_handles.h), because it needs none: it takes back what was mapped a moment ago
 * and handed to nobody, so no work on the addresses can have been submitted.
 */
#include "segments/grow.h"

#include "segments/slots.h"

/* ---- Undo ---------------------------------------------------------------------------------- */

static void undo_one(dseg_segment *seg, uint32_t first) {
    uint64_t bytes = dvmm_handle_bytes(seg->store, seg->slots[first].handle);
    ductile_status status = dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes);
    dseg_book_unmap(seg, first, status);
}

/* The last one first. */
void dseg_undo_map(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    for (uint32_t end = first + n_granules; end > first;) {
        end -= 1 + seg->slots[end - 1].offset;
        undo_one(seg, end);
    }
}

/* A map that failed may have been done all the same: mapping over it would fail later, and
 * unmapping what is not mapped is a mistake of its own. What cannot be known is never used again.
 */
static void undo_failed_map(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    dseg_sight found = dseg_look(seg, first, h->n_granules);
    if (found == DSEG_SEES_EMPTY) {
        return;
    }
    dseg_book_map(seg, first, h);
    if (found == DSEG_SEES_MAPPED) {
        undo_one(seg, first);
    } else {
        dseg_set_states(seg, first, h->n_granules, DSEG_QUARANTINED);
    }
}

/* ---- Map ----------------------------------------------------------------------------------- */

static ductile_status map_one(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    ductile_status status = dvmm_map(seg->store->driver, dseg_addr(seg, first),
                                     dvmm_handle_bytes(seg->store, h), h->phys);
    if (status == DUCTILE_OK) {
        dseg_book_map(seg, first, h);
    } else {
        undo_failed_map(seg, first, h);
    }
    return status;
}

ductile_status dseg_map(dseg_segment *seg, uint32_t first, dvmm_handle *const *handles,
                        uint32_t n_handles, bool *quarantined) {
    uint32_t quarantined_before = seg->n_quarantined;
    uint32_t at = first;
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < n_handles && status == DUCTILE_OK; i++) {
        status = map_one(seg, at, handles[i]);
        at += status == DUCTILE_OK ? handles[i]->n_granules : 0;
    }
    if (status == DUCTILE_OK) {
        status = dvmm_store_grant(seg->store, dseg_addr(seg, first),
                                  (at - first) * seg->store->granule_bytes);
    }
    if (status != DUCTILE_OK) {
        dseg_undo_map(seg, first, at - first);
    }
    *quarantined = seg->n_quarantined != quarantined_before;
    return status;
}
