/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bench's table needs of the CUDA driver beside vmm/cuda/abi.h, in the same words. A
 * driver may lack any of it. bench_abi_check.c compares every line with cuda.h where there is one.
 */
#ifndef DUCTILE_BENCH_DRIVER_CUDA_FUNCTIONS_H
#define DUCTILE_BENCH_DRIVER_CUDA_FUNCTIONS_H

#include "vmm/cuda/abi.h"

typedef struct CUgraph_st *cu_graph;
typedef struct CUmemPoolHandle_st *cu_mem_pool;
typedef int cu_pool_attribute;

/* X(our name, cuda.h's name, value) */
#define CU_BENCH_CONSTANTS(X)                                                                      \
    X(CU_HOST_FLAG_PORTABLE, CU_MEMHOSTALLOC_PORTABLE, 1)                                          \
    X(CU_HOST_FLAG_DEVICE_MAP, CU_MEMHOSTALLOC_DEVICEMAP, 2)                                       \
    X(CU_WAIT_UNTIL_AT_LEAST, CU_STREAM_WAIT_VALUE_GEQ, 0)                                         \
    X(CU_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4)                             \
    X(CU_POOL_RESERVED_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5)                           \
    X(CU_POOL_RESERVED_HIGH, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 6)                                 \
    X(CU_POOL_USED_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 8)                                         \
    X(CU_HAS_MEMORY_POOLS, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115)                        \
    X(CU_HAS_WAIT_VALUE_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)

enum {
#define CU_BENCH_CONSTANT_ENUM(name, theirs, value) name = value,
    CU_BENCH_CONSTANTS(CU_BENCH_CONSTANT_ENUM)
#undef CU_BENCH_CONSTANT_ENUM
};

/* X(function, exported symbol, version, parameters). Every result is a cu_result. */
#define CU_BENCH_FUNCTIONS(X)                                                                      \
    X(cuMemAlloc, "cuMemAlloc_v2", 3020, (ductile_addr * out, size_t size))                        \
    X(cuMemFree, "cuMemFree_v2", 3020, (ductile_addr addr))                                        \
    X(cuStreamQuery, "cuStreamQuery", 2000, (ductile_stream stream))                               \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", 10010,                                      \
      (ductile_stream stream, cu_capture_mode mode))                                               \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, (ductile_stream stream, cu_graph * out))    \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, (cu_graph graph))                                   \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void **out, size_t size, unsigned int flags))       \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, (void *memory))                                        \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", 3020,                                             \
      (ductile_addr to, ductile_addr from, size_t size, ductile_stream stream))                    \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020,                                                   \
      (ductile_addr * out, size_t size, ductile_stream stream))                                    \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, (ductile_addr addr, ductile_stream stream))         \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020,                               \
      (cu_mem_pool * out, cu_device device))                                                       \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020,                                       \
      (cu_mem_pool pool, cu_pool_attribute which, void *value))                                    \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020,                                       \
      (cu_mem_pool pool, cu_pool_attribute which, void *value))                                    \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (cu_mem_pool pool, size_t keep_bytes))            \
    X(cuStreamWaitValue64, "cuStreamWaitValue64_v2", 11070,                                        \
      (ductile_stream stream, ductile_addr addr, uint64_t value, unsigned int flags))

/* Constant once loaded. A function that the driver lacks is NULL. */
typedef struct cu_bench_api {
#define CU_BENCH_FUNCTION_FIELD(name, exported, version, parameters) cu_result(*name) parameters;
    CU_BENCH_FUNCTIONS(CU_BENCH_FUNCTION_FIELD)
#undef CU_BENCH_FUNCTION_FIELD
} cu_bench_api;

#endif
