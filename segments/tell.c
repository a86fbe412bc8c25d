/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/tell.h"

#include "vmm/nvtx/regions.h"

void dseg_tell_mapped(const dseg_segment *seg, uint32_t first, uint32_t end) {
    dvmm_nvtx *nvtx = dvmm_nvtx_of(seg->store->driver);
    if (!dvmm_nvtx_has_memory(nvtx)) {
        return;
    }
    while (first < end) {
        const dvmm_handle *h = seg->slots[first].handle;
        dvmm_nvtx_heap_begin(nvtx, dseg_addr(seg, first), dvmm_handle_bytes(seg->store, h));
        first += h->n_granules;
    }
}

void dseg_tell_gone(const dseg_segment *seg, uint32_t first) {
    dvmm_nvtx_heap_end(dvmm_nvtx_of(seg->store->driver), dseg_addr(seg, first));
}
