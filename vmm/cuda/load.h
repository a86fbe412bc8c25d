/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver's functions, or says in one sentence why not. */
#ifndef DUCTILE_VMM_CUDA_LOAD_H
#define DUCTILE_VMM_CUDA_LOAD_H

#include "vmm/cuda/abi.h"
#include "vmm/driver/probe.h"

/* Loads the library once for the process. Returns OK, ERR_NO_LIBRARY or ERR_DRIVER_TOO_OLD. */
ductile_status dvmm_cuda_load(const cu_api **out, dvmm_reason why);

#endif
