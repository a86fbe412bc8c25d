/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver's binary interface that Ductile uses, in its own words, so that no
 * toolkit is needed to build. abi_check.c compares every line with cuda.h where there is
 * one.
 *
 * Each function is bound at one fixed version, the one its parameters below belong to, and as the
 * variant for which stream NULL is the legacy default stream. cuStreamGetCtx is bound at two: the
 * later one has its suffix in its name, by which the library exports it.
 */
#ifndef DUCTILE_VMM_CUDA_ABI_H
#define DUCTILE_VMM_CUDA_ABI_H

#include "vmm/driver/driver.h"

typedef int cu_result;
typedef int cu_device;
typedef struct CUctx_st *cu_context;
typedef struct CUgreenCtx_st *cu_green_context;

/* Enumerations cross the interface as int; these names only say which one is meant. */
typedef int cu_device_attribute;
typedef int cu_granularity_option;
typedef int cu_capture_status;
typedef int cu_capture_mode;
typedef int cu_handle_type;

typedef struct cu_location {
    int type;
    int id;
} cu_location;

typedef struct cu_phys_props {
    int type;
    int handle_types;
    cu_location location;
    void *win32_metadata;
    struct {
        unsigned char compression;
        unsigned char rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} cu_phys_props;

typedef struct cu_access_desc {
    cu_location location;
    int flags;
} cu_access_desc;

typedef struct cu_copy_attributes {
    int source_order;
    cu_location source_hint;
    cu_location target_hint;
    unsigned int flags;
} cu_copy_attributes;

/* X(our name, cuda.h's name, value) */
#define CU_CONSTANTS(X)                                                                            \
    X(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                 \
    X(CU_PHYS_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                            \
    X(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE, 1)                                          \
    X(CU_STREAM_FLAG_NON_BLOCKING, CU_STREAM_NON_BLOCKING, 1)                                      \
    X(CU_EVENT_FLAG_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING, 2)                                    \
    X(CU_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE, 1)                                   \
    X(CU_HAS_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                    \
    X(CU_HAS_SHARED_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)      \
    X(CU_HAS_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)               \
    X(CU_FIND_LEGACY_STREAM, CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1)                                 \
    X(CU_FIND_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS, 0)

enum {
#define CU_CONSTANT_ENUM(name, theirs, value) name = value,
    CU_CONSTANTS(CU_CONSTANT_ENUM)
};

/* For functions that came with CUDA 12.3. */
#define CU_CONSTANTS_12030(X)                                                                      \
    X(CU_HAS_SHARED_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 128)                 \
    X(CU_SHARED_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC, DVMM_SHARE_FABRIC)

/* Of memory of the host, which came with CUDA 12.2. */
#define CU_CONSTANTS_12020(X)                                                                      \
    X(CU_LOCATION_HOST, CU_MEM_LOCATION_TYPE_HOST, 2)                                              \
    X(CU_LOCATION_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)                                    \
    X(CU_NUMA_NODE, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 134)                                         \
    X(CU_HAS_HOST_NUMA_VMM, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 141)

/* For functions that came with CUDA 12.8. */
#define CU_CONSTANTS_12080(X) X(CU_SOURCE_IN_STREAM_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)

enum {
    CU_CONSTANTS_12020(CU_CONSTANT_ENUM) CU_CONSTANTS_12030(CU_CONSTANT_ENUM)
        CU_CONSTANTS_12080(CU_CONSTANT_ENUM)
#undef CU_CONSTANT_ENUM
};

/* X(function, exported symbol, version, parameters). Every result is a cu_result. */
#define CU_REQUIRED_FUNCTIONS(X)                                                                   \
    X(cuInit, "cuInit", 2000, (unsigned int flags))                                                \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *version))                              \
    X(cuDeviceGet, "cuDeviceGet", 2000, (cu_device * out, int ordinal))                            \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *count))                                    \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, (char *name, int size, cu_device device))          \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", 3020, (size_t * bytes, cu_device device))           \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000,                                          \
      (int *value, cu_device_attribute which, cu_device device))                                   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000,                                  \
      (cu_context * out, cu_device device))                                                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", 11000, (cu_device device))        \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, (cu_context * out))                                \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", 4000, (cu_context context))                         \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", 4000, (cu_context * out))                             \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                          \
    X(cuMemGetInfo, "cuMemGetInfo_v2", 3020, (size_t * free_bytes, size_t * total_bytes))          \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                       \
      (size_t * out, const cu_phys_props *props, cu_granularity_option option))                    \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020,                                           \
      (ductile_addr * out, size_t size, size_t alignment, ductile_addr hint,                       \
       unsigned long long flags))                                                                  \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, (ductile_addr addr, size_t size))               \
    X(cuMemCreate, "cuMemCreate", 10020,                                                           \
      (dvmm_phys * out, size_t size, const cu_phys_props *props, unsigned long long flags))        \
    X(cuMemRelease, "cuMemRelease", 10020, (dvmm_phys phys))                                       \
    X(cuMemMap, "cuMemMap", 10020,                                                                 \
      (ductile_addr addr, size_t size, size_t offset, dvmm_phys phys, unsigned long long flags))   \
    X(cuMemUnmap, "cuMemUnmap", 10020, (ductile_addr addr, size_t size))                           \
    X(cuMemSetAccess, "cuMemSetAccess", 10020,                                                     \
      (ductile_addr addr, size_t size, const cu_access_desc *descs, size_t n_descs))               \
    X(cuMemGetAccess, "cuMemGetAccess", 10020,                                                     \
      (unsigned long long *flags, const cu_location *location, ductile_addr addr))                 \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000,                                        \
      (int *out, cu_device device, cu_device of))                                                  \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                         \
      (void *out, dvmm_phys phys, cu_handle_type type, unsigned long long flags))                  \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,                     \
      (dvmm_phys * out, void *shared, cu_handle_type type))                                        \
    X(cuStreamCreate, "cuStreamCreate", 2000, (ductile_stream * out, unsigned int flags))          \
    X(cuStreamDestroy, "cuStreamDestroy_v2", 4000, (ductile_stream stream))                        \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, (ductile_stream stream))                   \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020,                                                \
      (ductile_stream stream, dvmm_event event, unsigned int flags))                               \
    X(cuStreamGetCtx, "cuStreamGetCtx", 9020, (ductile_stream stream, cu_context * out))           \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000,                                           \
      (ductile_stream stream, cu_capture_status * out))                                            \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010,               \
      (cu_capture_mode * mode))                                                                    \
    X(cuEventCreate, "cuEventCreate", 2000, (dvmm_event * out, unsigned int flags))                \
    X(cuEventDestroy, "cuEventDestroy_v2", 4000, (dvmm_event event))                               \
    X(cuEventRecord, "cuEventRecord", 2000, (dvmm_event event, ductile_stream stream))             \
    X(cuEventQuery, "cuEventQuery", 2000, (dvmm_event event))                                      \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, (dvmm_event event))                          \
    X(cuMemHostRegister, "cuMemHostRegister_v2", 6050,                                             \
      (void *memory, size_t size, unsigned int flags))                                             \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, (void *memory))                            \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020,                                                    \
      (ductile_addr addr, unsigned char value, size_t size, ductile_stream stream))                \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", 3020,                                             \
      (ductile_addr to, const void *from, size_t size, ductile_stream stream))                     \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", 3020,                                             \
      (void *to, ductile_addr from, size_t size, ductile_stream stream))

/* Without these a feature is missing, not the device. The number is the version of the oldest
 * cuda.h that declares all of them as here. */
#define CU_OPTIONAL_FUNCTIONS(X) CU_OPTIONAL_FUNCTIONS_12050(X) CU_OPTIONAL_FUNCTIONS_12080(X)
#define CU_OPTIONAL_FUNCTIONS_12050(X)                                                             \
    X(cuCtxRecordEvent, "cuCtxRecordEvent", 12050, (cu_context context, dvmm_event event))         \
    X(cuStreamGetCtx_v2, "cuStreamGetCtx_v2", 12050,                                               \
      (ductile_stream stream, cu_context * out, cu_green_context * green))
#define CU_OPTIONAL_FUNCTIONS_12080(X)                                                             \
    X(cuMemcpyBatchAsync, "cuMemcpyBatchAsync", 12080,                                             \
      (ductile_addr * to, ductile_addr * from, size_t * sizes, size_t n,                           \
       cu_copy_attributes * attributes, size_t * begins, size_t n_attributes, size_t * failed,     \
       ductile_stream stream))

/* Constant once loaded. An optional function that the driver lacks is NULL. */
typedef struct cu_api {
#define CU_FUNCTION_FIELD(name, exported, version, parameters) cu_result(*name) parameters;
    CU_REQUIRED_FUNCTIONS(CU_FUNCTION_FIELD)
    CU_OPTIONAL_FUNCTIONS(CU_FUNCTION_FIELD)
#undef CU_FUNCTION_FIELD
} cu_api;

/* The two ways to ask for a function, by the version that introduced them. */
typedef cu_result (*cu_find_11030)(const char *name, void **out, int version, uint64_t flags);
typedef cu_result (*cu_find_12000)(const char *name, void **out, int version, uint64_t flags,
                                   int *answer);

#endif
