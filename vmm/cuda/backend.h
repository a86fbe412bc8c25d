/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the CUDA backend, shared by its files: driver_cuda_load.c finds the functions,
 * driver_cuda_open.c opens a device, driver_cuda_probe.c proves that it can map memory, and
 * driver_cuda.c is the table; driver_cuda_foreign.c marks streams of other devices. Nobody else
 * includes it. */
#ifndef DUCTILE_VMM_CUDA_BACKEND_H
#define DUCTILE_VMM_CUDA_BACKEND_H

#include "vmm/cuda/abi.h"

#include <stdatomic.h>

/* One open device. Owned by its dvmm_driver. Constant after opening, but for what is atomic. */
typedef struct cuda_backend {
    const cu_api *api;
    cu_device device;
    cu_context context; /* the primary context, retained until close                        */
    cu_mem_pool pool;   /* the device's default pool; NULL: no stream-ordered allocation     */
    bool has_wait_value;
    /* Set once the pool was told to keep freed memory. Done at first use, so that a program that
     * allocates nothing this way finds its pool as the driver made it. */
    atomic_bool keeps_pool;
    _Atomic(ductile_stream) joining; /* see driver_cuda_foreign.c; NULL until it is needed */
} cuda_backend;

extern const dvmm_driver_ops dvmm_cuda_ops;

/* Records the event behind the work of a stream of another context. DVMM_INVALID_HANDLE when it is
 * none of another context, or the driver cannot tell. Our context is current. */
int dvmm_cuda_record_foreign(cuda_backend *b, dvmm_event event, ductile_stream stream);
void dvmm_cuda_drop_joining(cuda_backend *b);

/* What cuMemCreate is told; also what the granule is asked for. */
cu_phys_props dvmm_cuda_props(const cuda_backend *b, const dvmm_phys_props *props);

/* Where one sentence goes; text may be NULL. */
typedef struct cu_reason {
    char *text;
    size_t size;
} cu_reason;

/* Writes one sentence, cut to fit. Returns `status`, for the caller's return. */
__attribute__((format(printf, 3, 4))) ductile_status
dvmm_cuda_refuse(ductile_status status, cu_reason why, const char *format, ...);

/* Loads the library once for the process. Returns OK, ERR_NO_LIBRARY or ERR_DRIVER_TOO_OLD. */
ductile_status dvmm_cuda_load(const cu_api **out, cu_reason why);

/* Creates, maps, opens, checks, unmaps and releases one granule; undoes what it did on failure. */
ductile_status dvmm_cuda_probe(cuda_backend *b, const dvmm_caps *caps, cu_reason why);

#endif
