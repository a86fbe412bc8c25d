/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tied.h"

#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "segments/granules.h"
#include "vmm/base/align.h"

/* Handles are widened to in the order of addresses, so that blocks that share one count it once. */
uint64_t tied_granules(ductile_allocator *allocator, const model *m) {
    uint64_t n = 0;
    ductile_addr counted = 0; /* up to there */
    for (size_t i = 0; i < m->n; i++) {
        const dpool_block *b = dpool_map_find(&allocator->map, m->blocks[i].address);
        const dseg_segment *seg = b->region->seg;
        dseg_span s =
            dseg_widen_to_handles(seg, dseg_granules_over(seg, b->addr, b->addr + b->size));
        ductile_addr from = dti_max(dseg_addr(seg, s.first), counted);
        ductile_addr to = dseg_addr(seg, s.end);
        n += to > from ? (to - from) / allocator->granule : 0;
        counted = dti_max(to, counted);
    }
    return n;
}
