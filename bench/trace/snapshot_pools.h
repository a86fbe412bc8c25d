/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which private pool each entry of a PyTorch snapshot belongs to. Newer versions say it (pool_id);
 * of others the segments that were held at the end do (segment_pool_id), each for as long as it was
 * held. Of a segment that went back to the driver before the end it is not known then: its blocks
 * count as in no pool.
 */
#ifndef DUCTILE_BENCH_TRACE_SNAPSHOT_POOLS_H
#define DUCTILE_BENCH_TRACE_SNAPSHOT_POOLS_H

#include "bench/trace/history.h"

/* A pool of the history's; 0 of what names none. */
uint16_t snapshot_pool_of_segment(history *h, const pickle_value *segment);

/* What pools held when the history began, as far as they hold it at the end. */
typedef struct snapshot_kept {
    uint64_t size, stream;
    uint16_t pool; /* of the history's */
} snapshot_kept;

typedef struct snapshot_kept_list {
    snapshot_kept *all; /* the caller frees it */
    size_t n;
    uint32_t capacity;
} snapshot_kept_list;

/* Notes in the entries of a GPU's trace which pool each belongs to, if the snapshot names any,
 * and in *kept what pools held. False: the host has no memory left. */
bool snapshot_pools_find(history *h, const pickle_value *trace, uint64_t gpu,
                         const pickle_value *segments, snapshot_kept_list *kept);

#endif
