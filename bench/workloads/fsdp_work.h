/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps a stream busy for a given time, and the clock that goes with it.
 *
 *   CUDA          copies within the device on one stream, copies from the host on the other: they
 *                 use different parts of the hardware, so that the streams can overlap. How long a
 *                 copy takes is measured first. The clock is the host's.
 *   virtual GPU   a kernel that completes only when somebody waits for it, and a simulation that
 *                 waits for it when its time is over: a kernel starts once all before it in its
 *                 stream is done, waits that the allocator has put there included. The host takes
 *                 time, too, so that it runs ahead of the device no further than in life. Whoever
 *                 waits on the host for a kernel ends it, and the clock moves to its end.
 */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_WORK_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_WORK_H

#include "bench/replay/stage.h"
#include "bench/workloads/fsdp_model.h"

typedef struct fsdp_work fsdp_work;

/* One kind of work. */
typedef struct fsdp_work_ops {
    ductile_status (*busy)(fsdp_work *w, size_t stream, uint64_t ns, ductile_addr address,
                           uint64_t size);
    ductile_status (*host)(fsdp_work *w, uint64_t ns);
    ductile_status (*sync)(fsdp_work *w);
    uint64_t (*now_ns)(const fsdp_work *w);
    void (*close)(fsdp_work *w);
} fsdp_work_ops;

/* First member of each kind. */
struct fsdp_work {
    const fsdp_work_ops *ops;
    const stage *on;
    uint64_t random;
};

/* Sets up what both kinds have. Durations are drawn anew within 10 % by `seed`. */
void fsdp_work_init(fsdp_work *w, const fsdp_work_ops *ops, const stage *on, uint64_t seed);
/* NULL: nothing to close. */
void fsdp_work_close(fsdp_work *w);

/* The stream is busy for so long, and on the virtual GPU reads [address, address + size) all the
 * while; size 0: nothing. */
ductile_status fsdp_work_busy(fsdp_work *w, size_t stream, uint64_t ns, ductile_addr address,
                              uint64_t size);

/* The host has spent time since the last call: `ns` of it outside the allocator. To be called
 * behind every call of the allocator. */
ductile_status fsdp_work_host(fsdp_work *w, uint64_t ns);

/* Waits for all that was issued. */
ductile_status fsdp_work_sync(fsdp_work *w);

/* Since some moment. */
uint64_t fsdp_work_now_ns(const fsdp_work *w);

#endif
