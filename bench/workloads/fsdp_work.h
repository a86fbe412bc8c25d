/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps a stream busy for a given time, and the clock that goes with it.
 *
 *   CUDA          copies within the device on one stream, copies from the host on the other: they
 *                 use different parts of the hardware, so that the streams can overlap. How long a
 *                 copy takes is measured first. The clock is the host's.
 *   virtual GPU   a kernel that completes only when it is waited for, and a simulation that
 *                 waits for it when its time is over. A kernel starts when everything before it in
 *                 its stream is done, including waits that the allocator has put there. The host
 *                 takes time, too, so that it runs ahead of the device as far as a real host does.
 *                 A host wait for a kernel ends the kernel and moves the clock to its end.
 */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_WORK_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_WORK_H

#include "bench/replay/testbed.h"
#include "bench/workloads/fsdp_model.h"

typedef struct fsdp_work fsdp_work;

/* One kind of work. */
typedef struct fsdp_work_ops {
    /* Keeps the stream busy for `ns`. On the virtual GPU the work reads [address, address + size);
     * size 0: it reads nothing. */
    ductile_status (*busy)(fsdp_work *w, size_t stream, uint64_t ns, ductile_addr address,
                           uint64_t size);
    /* Advances the simulated clock by `ns` of host time and by what driver calls have cost since
     * the last call. Call it after each call of the allocator. CUDA: does nothing. */
    ductile_status (*host)(fsdp_work *w, uint64_t ns);
    ductile_status (*sync)(fsdp_work *w);   /* waits for all issued work */
    uint64_t (*now_ns)(const fsdp_work *w); /* since an arbitrary moment */
    void (*close)(fsdp_work *w);
} fsdp_work_ops;

/* First member of each kind. */
struct fsdp_work {
    const fsdp_work_ops *ops;
    const testbed *on;
};

/* On a real device, and on the virtual GPU, whose own kernels take no time.
 * *out is NULL on failure. */
ductile_status fsdp_work_open_cuda(const testbed *on, fsdp_work **out);
ductile_status fsdp_work_open_virtual(const testbed *on, fsdp_work **out);

#endif
