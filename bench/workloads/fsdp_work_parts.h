/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of work behind fsdp_work.h. */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_WORK_PARTS_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_WORK_PARTS_H

#include "bench/workloads/fsdp_work.h"

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

ductile_status fsdp_work_open_cuda(const stage *on, fsdp_work **out);
ductile_status fsdp_work_open_virtual(const stage *on, fsdp_work **out);

#endif
