/* SPDX-License-Identifier: Apache-2.0 */
/* Access of devices to all of a segment, and the loop over the handles of a span. */
#include "segments/access.h"

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

void dseg_each_handle(dseg_segment *seg, uint32_t first, uint32_t n_granules,
                      dseg_handle_fn visit) {
    for (uint32_t g = first - seg->slots[first].offset; g < first + n_granules;) {
        dvmm_handle *h = seg->slots[g].handle;
        g += h->n_granules;
        visit(seg->store, h);
    }
}
