/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual address ranges. A process has about 125 TiB of addresses for all its devices. So the
 * reservations of all its allocators are counted in one place, and ranges shrink as the sum nears
 * the budget. Running out is ERR_OUT_OF_ADDRESSES, never out of memory.
 */
#ifndef DUCTILE_VMM_RANGE_H
#define DUCTILE_VMM_RANGE_H

#include "vmm/driver/driver.h"

typedef struct dvmm_range {
    ductile_addr addr;
    uint64_t size;  /* bytes that may be mapped */
    uint64_t guard; /* bytes behind them that never are; both are one reservation of the driver */
} dvmm_range;

/*
 * Reserves a range of at least `need` bytes; of `wish` bytes if the budget and the driver allow it;
 * and `guard` bytes behind it. All are multiples of the granule. On failure *out is zero and
 * nothing is reserved.
 */
ductile_status dvmm_range_reserve(dvmm_driver *d, uint64_t need, uint64_t wish, uint64_t guard,
                                  uint64_t budget, uint64_t granule, dvmm_range *out);

/* All addresses of the range, the guard's too. */
static inline uint64_t dvmm_range_reserved(const dvmm_range *range) {
    return range->size + range->guard;
}

/* Frees the range. Pre: nothing is mapped in it. On failure it stays reserved and counted. */
ductile_status dvmm_range_free(dvmm_driver *d, dvmm_range *range);

/* Bytes reserved by this process through ranges. */
uint64_t dvmm_range_process_total(void);

#endif
