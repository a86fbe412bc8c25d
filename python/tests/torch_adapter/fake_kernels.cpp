/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a whole training asks of CUDA beside what fake_runtime.cpp has, in the same library: BLAS,
 * questions about kernels, pinned memory. Nothing is computed, and every answer is that
 * it went well: a program then allocates and frees as it does on a GPU, and its losses mean
 * nothing.
 */
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define DO(name, parameters, ...)                                                                  \
    API cudaError_t name parameters {                                                              \
        __VA_ARGS__;                                                                               \
        return cudaSuccess;                                                                        \
    }

/* ---- Kernels and pinned memory -------------------------------------------------------------- */

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) {
    std::memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->binaryVersion = out->ptxVersion = 90;
    return cudaSuccess;
}

DO(cudaFuncSetAttribute, (const void *, cudaFuncAttribute, int), )
DO(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, const void *, int, size_t),
   *blocks = 1)
DO(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
   (int *blocks, const void *, int, size_t, unsigned int), *blocks = 1)

API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr wanted, int) {
    switch (wanted) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    default: *value = 0;
    }
    return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void **out, size_t size, unsigned int) {
    *out = std::calloc(1, size);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

DO(cudaFreeHost, (void *ptr), std::free(ptr))
DO(cudaPointerGetAttributes, (cudaPointerAttributes * out, const void *),
   std::memset(out, 0, sizeof *out);
   out->type = cudaMemoryTypeUnregistered)

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int) {
    return cudaEventRecord(event, stream);
}

DO(cudaEventElapsedTime, (float *ms, cudaEvent_t, cudaEvent_t), *ms = 1)

/* ---- BLAS ----------------------------------------------------------------------------------- */

API int cublasCreate_v2(void **handle) {
    *handle = new char;
    return 0;
}

API int cublasGetMathMode(void *, int *mode) {
    *mode = 0;
    return 0;
}

API int cublasGetPointerMode_v2(void *, int *mode) {
    *mode = 0;
    return 0;
}

#define SUCCEEDS(function)                                                                         \
    API int function(...) {                                                                        \
        return 0;                                                                                  \
    }

SUCCEEDS(cublasDestroy_v2)
SUCCEEDS(cublasSetStream_v2)
SUCCEEDS(cublasSetWorkspace_v2)
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2)
SUCCEEDS(cublasSgemm_v2)
SUCCEEDS(cublasSgemv_v2)
SUCCEEDS(cublasSdot_v2)
SUCCEEDS(cublasGemmEx)
SUCCEEDS(cublasSgemmStridedBatched)
SUCCEEDS(cublasGemmStridedBatchedEx)
