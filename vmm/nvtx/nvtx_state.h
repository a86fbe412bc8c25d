/* SPDX-License-Identifier: Apache-2.0 */
/* The object behind dvmm_nvtx. Private to this room. */
#ifndef DUCTILE_VMM_NVTX_NVTX_STATE_H
#define DUCTILE_VMM_NVTX_NVTX_STATE_H

#include "vmm/base/lock.h"
#include "vmm/nvtx/attach.h"

/* Memory that the tool was told of: [addr, addr + size). */
typedef struct nvtx_known {
    uint64_t addr;
    uint64_t size;
    nvtx_heap heap;  /* heaps: the tool's handle                        */
    uint64_t number; /* blocks: which one this is, from 1               */
    const void *of;  /* blocks: the stream                              */
} nvtx_known;

/* Sorted by address; no two overlap. */
typedef struct nvtx_list {
    nvtx_known *items;
    uint32_t n;
    uint32_t room;
} nvtx_list;

/* Owner: the driver of the allocator. */
struct dvmm_nvtx {
    const nvtx_tool *tool; /* constant */
    /* The rest is guarded by the lock, which is held across calls of the tool, so that it hears of
     * memory in the order in which it changes. */
    dti_lock lock;
    nvtx_list heaps;
    nvtx_list blocks;
    uint64_t n_blocks;  /* ever registered       */
    uint64_t n_refused; /* heaps, not yet taken  */
};

#endif
