/* SPDX-License-Identifier: Apache-2.0 */
/* The bench's table of the CUDA driver. */
#ifndef DUCTILE_BENCH_DRIVER_CUDA_CALLS_H
#define DUCTILE_BENCH_DRIVER_CUDA_CALLS_H

#include "vmm/driver/bench_calls.h"

/* Its entries get the `ctx` of a driver that dvmm_open_cuda opened. One whose function the driver
 * lacks returns DVMM_NOT_SUPPORTED. */
extern const dvmm_bench_ops bench_cuda_ops;

#endif
