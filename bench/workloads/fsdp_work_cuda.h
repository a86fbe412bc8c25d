/* SPDX-License-Identifier: Apache-2.0 */
/* Work on a real device: see fsdp_work.h. */
#ifndef DUCTILE_BENCH_WORKLOADS_FSDP_WORK_CUDA_H
#define DUCTILE_BENCH_WORKLOADS_FSDP_WORK_CUDA_H

#include "bench/workloads/fsdp_work.h"

/* *out is NULL on failure. Release with fsdp_work_close. */
ductile_status fsdp_work_open_cuda(const stage *on, uint64_t seed, fsdp_work **out);

#endif
