/* SPDX-License-Identifier: Apache-2.0 */
/* Work on the virtual GPU, whose own kernels take no time: see fsdp_work.h. */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_WORK_VIRTUAL_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_WORK_VIRTUAL_H

#include "bench/workloads/fsdp_work.h"

/* *out is NULL on failure. Release with fsdp_work_close. */
ductile_status fsdp_work_open_virtual(const stage *on, uint64_t seed, fsdp_work **out);

#endif
