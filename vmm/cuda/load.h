/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver's functions, or says in one sentence why not. */
#ifndef DUCTILE_VMM_CUDA_LOAD_H
#define DUCTILE_VMM_CUDA_LOAD_H

#include "vmm/cuda/abi.h"

/* A buffer for one sentence; text may be NULL. */
typedef struct cu_reason {
    char *text;
    size_t size;
} cu_reason;

/* Writes one sentence, cut to fit. Returns `status`, for the caller's return. */
__attribute__((format(printf, 3, 4))) ductile_status
dvmm_cuda_refuse(ductile_status status, cu_reason why, const char *format, ...);

/* Loads the library once for the process. Returns OK, ERR_NO_LIBRARY or ERR_DRIVER_TOO_OLD. */
ductile_status dvmm_cuda_load(const cu_api **out, cu_reason why);

#endif
