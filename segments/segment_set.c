/* SPDX-License-Identifier: Apache-2.0 */
#include "segments/segment_set.h"

#include "vmm/base/array.h"
#include "vmm/base/check.h"

#include <stdlib.h>
#include <string.h>

void dseg_set_fini(dseg_set *set) {
    free(set->items);
    *set = (dseg_set){0};
}

ductile_status dseg_set_reserve(dseg_set *set) {
    return dti_have_room(&set->items, sizeof *set->items, &set->capacity, set->count + 1)
               ? DUCTILE_OK
               : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

/* The number of segments that start at or below the address. */
static uint32_t count_up_to(const dseg_set *set, ductile_addr addr) {
    uint32_t at = 0;
    DTI_FIRST(at, set->count, set->items[at]->range.addr > addr);
    return at;
}

void dseg_set_insert(dseg_set *set, dseg_segment *seg) {
    DTI_ASSERT(set->count < set->capacity);
    uint32_t at = count_up_to(set, seg->range.addr);
    dti_insert(set->items, sizeof seg, &set->count, at, &seg);
}

void dseg_set_remove(dseg_set *set, const dseg_segment *seg) {
    uint32_t at = count_up_to(set, seg->range.addr) - 1;
    DTI_ASSERT(set->items[at] == seg);
    dti_remove(set->items, sizeof seg, &set->count, at);
}

dseg_segment *dseg_set_find(const dseg_set *set, ductile_addr addr) {
    uint32_t n = count_up_to(set, addr);
    if (n == 0 || !dseg_contains(set->items[n - 1], addr)) {
        return NULL;
    }
    return set->items[n - 1];
}
