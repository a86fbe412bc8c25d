/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/slots.h"

#include "vmm/base/align.h"

/* ---- States -------------------------------------------------------------------------------- */

static uint32_t *count_of(dseg_segment *seg, uint32_t state) {
    switch (state) {
    case DSEG_MAPPED:
        return &seg->n_mapped;
    case DSEG_RETIRING:
        return &seg->n_retiring;
    case DSEG_QUARANTINED:
        return &seg->n_quarantined;
    default:
        return NULL;
    }
}

static void widen_span(dseg_segment *seg, uint32_t first, uint32_t end) {
    if (seg->low == seg->high) {
        seg->low = first;
        seg->high = end;
        return;
    }
    seg->low = (uint32_t)dti_min(seg->low, first);
    seg->high = (uint32_t)dti_max(seg->high, end);
}

static void narrow_span(dseg_segment *seg) {
    while (seg->high > seg->low && seg->slots[seg->high - 1].state == DSEG_EMPTY) {
        seg->high--;
    }
    while (seg->low < seg->high && seg->slots[seg->low].state == DSEG_EMPTY) {
        seg->low++;
    }
}

void dseg_set_states(dseg_segment *seg, uint32_t first, uint32_t n, dseg_state state) {
    for (uint32_t g = first; g < first + n; g++) {
        uint32_t *before = count_of(seg, seg->slots[g].state);
        uint32_t *after = count_of(seg, state);
        if (before != NULL) {
            (*before)--;
        }
        if (after != NULL) {
            (*after)++;
        }
        seg->slots[g].state = (uint16_t)state;
        if (state == DSEG_EMPTY) {
            seg->slots[g].stays = 0;
            seg->slots[g].handle = NULL;
        }
    }
    if (state == DSEG_EMPTY) {
        narrow_span(seg);
    } else {
        widen_span(seg, first, first + n);
    }
}

void dseg_book_map(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    for (uint32_t i = 0; i < h->n_granules; i++) {
        seg->slots[first + i].handle = h;
        seg->slots[first + i].offset = i;
    }
    h->home = h->n_mappings == 0 ? dseg_addr(seg, first) : h->home;
    h->n_mappings++;
    dseg_set_states(seg, first, h->n_granules, DSEG_MAPPED);
}

void dseg_book_unmap(dseg_segment *seg, uint32_t first, ductile_status status) {
    dvmm_handle *h = seg->slots[first].handle;
    h->n_mappings -= status == DUCTILE_OK ? 1 : 0;
    h->home = h->home == dseg_addr(seg, first) ? 0 : h->home;
    dseg_set_states(seg, first, h->n_granules,
                    status == DUCTILE_OK ? DSEG_EMPTY : DSEG_QUARANTINED);
}

/* ---- The driver's view --------------------------------------------------------------------- */

/* The driver reports "not mapped" for an address without memory;
 * any other failure tells nothing. */
static dseg_reading read_granule(const dseg_segment *seg, uint32_t granule) {
    dvmm_access access;
    if (dvmm_get_access(seg->store->driver, dseg_addr(seg, granule), &access) == DUCTILE_OK) {
        return DSEG_READ_MAPPED;
    }
    return dvmm_last_code() == DVMM_INVALID_VALUE ? DSEG_READ_EMPTY : DSEG_READ_NEITHER;
}

/* When both ends differ, the handle is not mapped there. */
dseg_reading dseg_read_mapping(const dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    dseg_reading found = read_granule(seg, first);
    if (n_granules == 1 || found == DSEG_READ_NEITHER) {
        return found;
    }
    return read_granule(seg, first + n_granules - 1) == found ? found : DSEG_READ_NEITHER;
}
