/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/segment.h"

#include "vmm/base/check.h"
#include "vmm/base/table.h"

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
