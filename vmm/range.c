/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/range.h"

#include "vmm/base/align.h"

#include <stdatomic.h>

/* A range takes at most one part in this many of the remaining budget: ranges begin to shrink when
 * about sixty more of full size would use it up, and hundreds still fit after that. */
enum { SHARE_OF_REST = 64 };

static _Atomic uint64_t process_total;

uint64_t dvmm_range_process_total(void) {
    return atomic_load_explicit(&process_total, memory_order_relaxed);
}

static uint64_t choose_size(uint64_t need, uint64_t wish, uint64_t budget, uint64_t granule) {
    uint64_t total = dvmm_range_process_total();
    uint64_t rest = total < budget ? budget - total : 0;
    uint64_t share = dti_round_down(rest / SHARE_OF_REST, granule);
    uint64_t size = dti_max(need, dti_min(wish, share));
    return size <= rest ? size : 0;
}

ductile_status dvmm_range_reserve(dvmm_driver *d, uint64_t need, uint64_t wish, uint64_t guard,
                                  uint64_t budget, uint64_t granule, dvmm_range *out) {
    *out = (dvmm_range){0, 0, 0};
    need += guard;
    uint64_t size = choose_size(need, wish + guard, budget, granule);
    ductile_status status = DUCTILE_ERR_OUT_OF_ADDRESSES;
    while (size != 0) {
        status = dvmm_address_reserve(d, size, &out->addr);
        if (status != DUCTILE_ERR_OUT_OF_ADDRESSES) {
            break;
        }
        /* Some systems have few addresses: a smaller range still serves. */
        size = size > need ? dti_max(need, dti_round_down(size / 2, granule)) : 0;
    }
    if (status == DUCTILE_OK) {
        out->size = size - guard;
        out->guard = guard;
        atomic_fetch_add_explicit(&process_total, size, memory_order_relaxed);
    }
    return status;
}

ductile_status dvmm_range_free(dvmm_driver *d, dvmm_range *range) {
    uint64_t reserved = dvmm_range_reserved(range);
    ductile_status status = dvmm_address_free(d, range->addr, reserved);
    if (status == DUCTILE_OK) {
        atomic_fetch_sub_explicit(&process_total, reserved, memory_order_relaxed);
        *range = (dvmm_range){0, 0, 0};
    }
    return status;
}
