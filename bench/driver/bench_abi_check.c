/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what the bench declares of the driver's interface with cuda.h, as vmm/cuda/abi_check.c
 * does for the library. */
#include "bench/driver/cuda_functions.h"
#include "vmm/cuda/abi_check.h"

/* A file may not be empty of declarations. */
_Static_assert(sizeof(cu_graph) == sizeof(void *), "a handle is a pointer");

#ifdef FOUND_CUDA_HEADERS

SAME_SIZE(cu_pool_attribute, CUmemPool_attribute);
CU_BENCH_CONSTANTS(SAME_CONSTANT)

#include "vmm/cuda/abi_theirs.h"
#define cu_graph CUgraph
#define cu_mem_pool CUmemoryPool
#define cu_pool_attribute CUmemPool_attribute

/* Older headers lack some, or have other types. */
#if CUDA_VERSION >= 12000
CU_BENCH_FUNCTIONS(SAME_FUNCTION)
#endif

#endif
