/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/segment.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <stdlib.h>

/* ---- Life ---------------------------------------------------------------------------------- */

ductile_status dseg_create(dvmm_handle_store *store, uint64_t need_bytes, uint64_t wish_bytes,
                           uint64_t budget_bytes, dseg_segment **out) {
    *out = NULL;
    dseg_segment *seg = calloc(1, sizeof *seg);
    if (seg == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dvmm_range_reserve(store->driver, need_bytes, wish_bytes, budget_bytes,
                                               store->granule_bytes, &seg->range);
    if (status != DUCTILE_OK) {
        goto free_segment;
    }
    seg->store = store;
    seg->n_granules = (uint32_t)(seg->range.size / store->granule_bytes);
    /* calloc of this size is lazily zeroed: untouched slots cost no memory */
    seg->slots = calloc(seg->n_granules, sizeof *seg->slots);
    if (seg->slots == NULL) {
        status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        goto free_range;
    }
    *out = seg;
    return DUCTILE_OK;

free_range:
    (void)dvmm_range_free(store->driver, &seg->range);
free_segment:
    free(seg);
    return status;
}

ductile_status dseg_destroy(dseg_segment *seg) {
    DTI_ASSERT(seg->n_mapped == 0 && seg->n_retiring == 0);
    ductile_status status = DUCTILE_ERR_DRIVER;
    if (seg->n_quarantined == 0) {
        status = dvmm_range_free(seg->store->driver, &seg->range);
    }
    free(seg->slots);
    free(seg);
    return status;
}

/* ---- Slots --------------------------------------------------------------------------------- */

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

static void set_states(dseg_segment *seg, uint32_t first, uint32_t n, dseg_state state) {
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

static void fill_slots(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    for (uint32_t i = 0; i < h->n_granules; i++) {
        seg->slots[first + i].handle = h;
        seg->slots[first + i].offset = i;
    }
    h->n_mappings++;
    set_states(seg, first, h->n_granules, DSEG_MAPPED);
}

uint64_t dseg_span_bytes(const dseg_segment *seg) {
    return (seg->high - seg->low) * seg->store->granule_bytes;
}

dvmm_handle *dseg_handle_at(const dseg_segment *seg, uint32_t granule, uint32_t *offset) {
    const dseg_slot *slot = &seg->slots[granule];
    if (offset != NULL) {
        *offset = slot->offset;
    }
    return slot->handle;
}

/* A span of whole handles begins and ends at handle borders. */
static bool is_whole(const dseg_segment *seg, uint32_t first, uint32_t n) {
    const dseg_slot *last = &seg->slots[first + n - 1];
    return n != 0 && seg->slots[first].offset == 0 && last->offset == last->handle->n_granules - 1;
}

/* ---- Map ----------------------------------------------------------------------------------- */

/* Unmaps one handle at `first`. On failure the spot is quarantined and stays counted in
 * n_mappings; what becomes of the handle is the caller's to decide. */
static ductile_status unmap_one(dseg_segment *seg, uint32_t first) {
    dvmm_handle *h = seg->slots[first].handle;
    uint64_t bytes = dvmm_handle_bytes(seg->store, h);
    ductile_status status = dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes);
    if (status == DUCTILE_OK) {
        h->n_mappings--;
        set_states(seg, first, h->n_granules, DSEG_EMPTY);
    } else {
        set_states(seg, first, h->n_granules, DSEG_QUARANTINED);
    }
    return status;
}

typedef enum spot { SPOT_EMPTY, SPOT_MAPPED, SPOT_UNKNOWN } spot;

/* "Not mapped" is the driver's answer to an address without memory; any other failure answers
 * nothing. */
static spot look_at(const dseg_segment *seg, uint32_t granule) {
    dvmm_access access;
    if (dvmm_get_access(seg->store->driver, dseg_addr(seg, granule), &access) == DUCTILE_OK) {
        return SPOT_MAPPED;
    }
    return dvmm_last_code() == DVMM_INVALID_VALUE ? SPOT_EMPTY : SPOT_UNKNOWN;
}

/* A handle is mapped whole or not at all: ends that differ are not its mapping. */
static spot look_at_ends(const dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    spot found = look_at(seg, first);
    if (n_granules == 1 || found == SPOT_UNKNOWN) {
        return found;
    }
    return look_at(seg, first + n_granules - 1) == found ? found : SPOT_UNKNOWN;
}

/* A map that failed may have been done all the same: mapping over it would fail later, and
 * unmapping what is not mapped is a mistake of its own. What cannot be known is never used again.
 */
static void settle_failed_map(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    spot found = look_at_ends(seg, first, h->n_granules);
    if (found == SPOT_EMPTY) {
        return;
    }
    fill_slots(seg, first, h);
    if (found == SPOT_MAPPED) {
        (void)unmap_one(seg, first);
    } else {
        set_states(seg, first, h->n_granules, DSEG_QUARANTINED);
    }
}

static ductile_status map_one(dseg_segment *seg, uint32_t first, dvmm_handle *h) {
    ductile_status status = dvmm_map(seg->store->driver, dseg_addr(seg, first),
                                     dvmm_handle_bytes(seg->store, h), h->phys);
    if (status == DUCTILE_OK) {
        fill_slots(seg, first, h);
    } else {
        settle_failed_map(seg, first, h);
    }
    return status;
}

static void unmap_back_to(dseg_segment *seg, uint32_t first, uint32_t end) {
    while (end > first) {
        uint32_t start = end - 1 - seg->slots[end - 1].offset;
        (void)unmap_one(seg, start);
        end = start;
    }
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
        unmap_back_to(seg, first, at);
    }
    *quarantined = seg->n_quarantined != quarantined_before;
    return status;
}

/* ---- Retire, reclaim, unmap ---------------------------------------------------------------- */

void dseg_retire(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    DTI_ASSERT(is_whole(seg, first, n_granules));
    set_states(seg, first, n_granules, DSEG_RETIRING);
}

typedef void (*after_unmap)(dseg_segment *seg, dvmm_handle *h, bool unmapped);

static ductile_status unmap_each(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                                 after_unmap then) {
    DTI_ASSERT(is_whole(seg, first, n_granules));
    ductile_status result = DUCTILE_OK;
    for (uint32_t g = first; g < first + n_granules;) {
        dvmm_handle *h = seg->slots[g].handle;
        uint32_t next = g + h->n_granules;
        ductile_status status = unmap_one(seg, g);
        then(seg, h, status == DUCTILE_OK);
        result = result == DUCTILE_OK ? status : result;
        g = next;
    }
    return result;
}

static void leave_alone(dseg_segment *seg, dvmm_handle *h, bool unmapped) {
    (void)seg;
    (void)h;
    (void)unmapped;
}

static void put_into_cache(dseg_segment *seg, dvmm_handle *h, bool unmapped) {
    if (unmapped) {
        dvmm_store_put(seg->store, h);
    } else {
        dvmm_store_lose(seg->store, h);
    }
}

ductile_status dseg_reclaim(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    return unmap_each(seg, first, n_granules, leave_alone);
}

ductile_status dseg_unmap_handles(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    return unmap_each(seg, first, n_granules, put_into_cache);
}

ductile_status dseg_unmap_unused(dseg_segment *seg, uint32_t first, uint32_t n_granules) {
    return unmap_each(seg, first, n_granules, leave_alone);
}

/* ---- Vacate -------------------------------------------------------------------------------- */

static void cache_unmapped(dseg_segment *seg, uint32_t first) {
    dvmm_handle *h = seg->slots[first].handle;
    h->n_mappings--;
    set_states(seg, first, h->n_granules, DSEG_EMPTY);
    dvmm_store_put(seg->store, h);
}

/* A failed unmap may have been done all the same. */
static bool vacate_one(dseg_segment *seg, uint32_t first) {
    const dvmm_handle *h = seg->slots[first].handle;
    uint64_t bytes = dvmm_handle_bytes(seg->store, h);
    bool may_go = h->n_mappings == 1 && h->n_pins == 0 && seg->slots[first].stays == 0;
    bool is_gone =
        may_go && (dvmm_unmap(seg->store->driver, dseg_addr(seg, first), bytes) == DUCTILE_OK ||
                   look_at_ends(seg, first, h->n_granules) == SPOT_EMPTY);
    if (is_gone) {
        cache_unmapped(seg, first);
    }
    return is_gone;
}

uint32_t dseg_vacate(dseg_segment *seg, uint32_t *at, uint32_t most) {
    uint32_t n_gone = 0;
    uint32_t end = seg->high;
    uint32_t g = *at < seg->low ? seg->low : *at;
    while (g < end && n_gone < most) {
        bool is_mapped = seg->slots[g].state == DSEG_MAPPED;
        uint32_t n = is_mapped ? seg->slots[g].handle->n_granules : 1;
        n_gone += is_mapped && vacate_one(seg, g) ? n : 0;
        g += n;
    }
    *at = g < end ? g : seg->n_granules;
    return n_gone;
}

ductile_status dseg_confirm(dseg_segment *seg, uint32_t granule) {
    uint32_t first = granule - seg->slots[granule].offset;
    spot found = look_at_ends(seg, first, seg->slots[granule].handle->n_granules);
    if (found == SPOT_EMPTY) {
        cache_unmapped(seg, first);
    }
    return found == SPOT_UNKNOWN ? DUCTILE_ERR_DRIVER : DUCTILE_OK;
}

ductile_status dseg_sync(dvmm_handle_store *store, ductile_stream stream) {
    return dvmm_stream_sync(store->driver, stream);
}

ductile_status dseg_zero(dvmm_handle_store *store, ductile_addr addr, uint64_t size,
                         ductile_stream stream) {
    return dvmm_fill(store->driver, addr, 0, size, stream);
}
