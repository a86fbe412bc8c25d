/* SPDX-License-Identifier: Apache-2.0 */
/* The bench's table of the virtual GPU. */
#ifndef DUCTILE_VMM_VIRTUAL_BENCH_TABLE_H
#define DUCTILE_VMM_VIRTUAL_BENCH_TABLE_H

#include "vmm/driver/bench_calls.h"

extern const dvmm_bench_ops dvmm_vgpu_bench_ops;

#endif
