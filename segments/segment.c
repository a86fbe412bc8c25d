/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/segment.h"

#include "vmm/base/array.h"
#include "vmm/base/check.h"

#include <stdlib.h>

/* ---- Life ---------------------------------------------------------------------------------- */

static uint32_t log2_of(uint64_t granule_bytes) {
    bool is_power = (granule_bytes & (granule_bytes - 1)) == 0;
    return is_power ? (uint32_t)__builtin_ctzll(granule_bytes) : 0;
}

ductile_status dseg_create(dvmm_handle_store *store, uint64_t need_bytes, uint64_t wish_bytes,
                           uint64_t guard_bytes, uint64_t budget_bytes, dseg_segment **out) {
    *out = NULL;
    dseg_segment *seg = calloc(1, sizeof *seg);
    if (seg == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = dvmm_range_reserve(store->driver, need_bytes, wish_bytes, guard_bytes,
                                               budget_bytes, store->granule_bytes, &seg->range);
    if (status != DUCTILE_OK) {
        goto free_segment;
    }
    seg->store = store;
    seg->n_granules = (uint32_t)(seg->range.size / store->granule_bytes);
    seg->granule_log2 = log2_of(store->granule_bytes);
    seg->slots = dti_table_new(seg->n_granules, sizeof *seg->slots);
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
    dti_table_free(seg->slots, seg->n_granules, sizeof *seg->slots);
    free(seg);
    return status;
}

void dseg_forget(dseg_segment *seg) {
    seg->n_quarantined += seg->n_mapped + seg->n_retiring;
    seg->n_mapped = seg->n_retiring = 0;
}

/* ---- Looking ------------------------------------------------------------------------------- */

uint64_t dseg_span_bytes(const dseg_segment *seg) {
    return (seg->high - seg->low) * seg->store->granule_bytes;
}

/* ---- Contents ------------------------------------------------------------------------------ */

ductile_status dseg_zero(dvmm_handle_store *store, ductile_addr addr, uint64_t size,
                         ductile_stream stream) {
    return dvmm_fill(store->driver, addr, 0, size, stream);
}

/* ---- Access -------------------------------------------------------------------------------- */

/* A span of granules without an empty or unknown one between. */
typedef struct run {
    uint32_t first;
    uint32_t end;
} run;

static bool is_mapped(const dseg_slot *slot) {
    return slot->state == DSEG_MAPPED || slot->state == DSEG_RETIRING;
}

/* The next run at or above `from`; empty at the end. */
static run next_run(const dseg_segment *seg, uint32_t from) {
    uint32_t first = from > seg->low ? from : seg->low;
    while (first < seg->high && !is_mapped(&seg->slots[first])) {
        first++;
    }
    uint32_t end = first;
    while (end < seg->high && is_mapped(&seg->slots[end])) {
        end++;
    }
    return (run){first, end};
}

static ductile_status set_run(dseg_segment *seg, run r, int device, bool may_access) {
    return dvmm_set_access_for(seg->store->driver, dseg_addr(seg, r.first),
                               (r.end - r.first) * seg->store->granule_bytes,
                               may_access ? DVMM_ACCESS_RW : DVMM_ACCESS_NONE, &device, 1);
}

/* The failed run may be done in part, so it is undone with the others. */
static void take_back(dseg_segment *seg, uint32_t end, int device, bool may_access) {
    for (run r = next_run(seg, 0); r.first < r.end && r.first < end; r = next_run(seg, r.end)) {
        (void)set_run(seg, r, device, !may_access);
    }
}

ductile_status dseg_set_device(dseg_segment *seg, int device, bool may_access) {
    for (run r = next_run(seg, 0); r.first < r.end; r = next_run(seg, r.end)) {
        ductile_status status = set_run(seg, r, device, may_access);
        if (status != DUCTILE_OK) {
            take_back(seg, r.end, device, may_access);
            return status;
        }
    }
    return DUCTILE_OK;
}
