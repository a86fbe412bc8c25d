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
    cu_context context; /* the primary context, retained until close */
    cu_location host;   /* where its memory of the host lies: at its NUMA node, if the driver can */
    _Atomic(ductile_stream) joining; /* see foreign.c; NULL until it is needed */
} cuda_backend;

#endif
