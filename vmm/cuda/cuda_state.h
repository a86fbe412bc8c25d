/* SPDX-License-Identifier: Apache-2.0 */
/* The struct of the CUDA backend. */
#ifndef DUCTILE_VMM_CUDA_CUDA_STATE_H
#define DUCTILE_VMM_CUDA_CUDA_STATE_H

#include "vmm/cuda/abi.h"

#include <stdatomic.h>

/* One open device. Owned by its dvmm_driver. Constant after opening, but for the atomic fields. */
typedef struct cuda_backend {
    const cu_api *api;
    cu_device device;
    cu_context context; /* the primary context, retained until close                        */
    cu_mem_pool pool;   /* the device's default pool; NULL: no stream-ordered allocation     */
    bool has_wait_value;
    /* Set once the pool was told to keep freed memory, at its first use, so that a program that
     * never allocates from the pool does not change it. */
    atomic_bool keeps_pool;
    _Atomic(ductile_stream) joining; /* see foreign.c; NULL until it is needed */
} cuda_backend;

#endif
