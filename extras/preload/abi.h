/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver's binary interface that is interposed, and what that needs beside it.
 * Each function stands under the name by which libcuda.so.1 exports it, which says its version.
 */
#ifndef DUCTILE_PRELOAD_ABI_H
#define DUCTILE_PRELOAD_ABI_H

#include <ductile.h>

typedef int cu_result;
typedef int cu_device;
typedef struct CUctx_st *cu_context;
typedef struct CUmemPoolHandle_st *cu_mem_pool;

enum {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_NO_PEER_ACCESS = 217,
    CU_NOT_SUPPORTED = 801,

    CU_CAPTURE_RELAXED = 2,

    CU_LOCATION_OF_DEVICE = 1,

    CU_POINTER_CONTEXT = 1,
    CU_POINTER_RANGE_START = 11,
    CU_POINTER_RANGE_SIZE = 12,

    CU_NON_BLOCKING = 1,
    CU_SEARCH_LEGACY = 1,     /* stream NULL is the legacy default stream   */
    CU_SEARCH_PER_THREAD = 2, /* it is the default stream of each thread */
};

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
#define CU_LEGACY_STREAM ((ductile_stream)1)
#define CU_PER_THREAD_STREAM ((ductile_stream)2)

typedef struct cu_access {
    int location_type;
    int location;
    int flags; /* 0: none */
} cu_access;

/* The beginning of CUmemAllocationProp. */
typedef struct cu_phys_head {
    int type;
    int handle_types;
    int location_type;
    int location;
} cu_phys_head;

/*
 * What is interposed, and by which rule. X(exported, name, version, variant, parameters): `name`,
 * `version` and `variant` are what cuGetProcAddress is asked for.
 */
#define PRELOADED_FUNCTIONS(X)                                                                     \
    /* served in a primary context, usable on every stream at once */                              \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, CU_SEARCH_LEGACY, (ductile_addr * out, size_t size))      \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, CU_SEARCH_LEGACY,                               \
      (ductile_addr * out, size_t * pitch, size_t width, size_t height, unsigned int element))     \
    /* waits for all work of the GPU, as the driver's does; what is not ours is the driver's */    \
    X(cuMemFree_v2, "cuMemFree", 3020, CU_SEARCH_LEGACY, (ductile_addr addr))                      \
    /* served unless the stream is being captured or another pool is current; never waits */       \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, CU_SEARCH_LEGACY,                                 \
      (ductile_addr * out, size_t size, ductile_stream stream))                                    \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, CU_SEARCH_PER_THREAD,                        \
      (ductile_addr * out, size_t size, ductile_stream stream))                                    \
    /* the same, of a device's default pool; of any other pool the driver's */                     \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, CU_SEARCH_LEGACY,                 \
      (ductile_addr * out, size_t size, cu_mem_pool pool, ductile_stream stream))                  \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, CU_SEARCH_PER_THREAD,        \
      (ductile_addr * out, size_t size, cu_mem_pool pool, ductile_stream stream))                  \
    /* ordered behind the stream; while it is being captured, the driver's */                      \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, CU_SEARCH_LEGACY,                                   \
      (ductile_addr addr, ductile_stream stream))                                                  \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, CU_SEARCH_PER_THREAD,                          \
      (ductile_addr addr, ductile_stream stream))                                                  \
    /* the driver's, and counted: what a library takes by itself */                                \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, CU_SEARCH_LEGACY,                              \
      (ductile_addr * out, size_t size, unsigned int flags))                                       \
    X(cuMemCreate, "cuMemCreate", 10020, CU_SEARCH_LEGACY,                                         \
      (unsigned long long *out, size_t size, const void *props, unsigned long long flags))         \
    /* the driver's answer, and what Ductile holds free counts as free */                          \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, CU_SEARCH_LEGACY,                                     \
      (size_t * free_bytes, size_t * total_bytes))                                                 \
    /* the block of ours that holds the address */                                                 \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, CU_SEARCH_LEGACY,                     \
      (ductile_addr * base, size_t * size, ductile_addr addr))                                     \
    /* range and context as of cuMemAlloc; everything else is the driver's answer */               \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, CU_SEARCH_LEGACY,                      \
      (void *data, int attribute, ductile_addr addr))                                              \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, CU_SEARCH_LEGACY,                    \
      (unsigned int n, int *attributes, void **data, ductile_addr addr))                           \
    /* refused for memory of ours, with a sentence in the counts */                                \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, CU_SEARCH_LEGACY,                              \
      (void *handle, ductile_addr addr))                                                           \
    /* done by the driver, and of a default pool by Ductile too */                                 \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, CU_SEARCH_LEGACY,                                 \
      (cu_mem_pool pool, size_t keep_bytes))                                                       \
    X(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, CU_SEARCH_LEGACY,                           \
      (cu_mem_pool pool, const cu_access *map, size_t n))                                          \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, CU_SEARCH_LEGACY,                      \
      (cu_context peer, unsigned int flags))                                                       \
    X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, CU_SEARCH_LEGACY, (cu_context peer)) \
    /* Ductile forgets the stream first */                                                         \
    X(cuStreamDestroy, "cuStreamDestroy", 2000, CU_SEARCH_LEGACY, (ductile_stream stream))         \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, CU_SEARCH_LEGACY, (ductile_stream stream))      \
    /* announced to Ductile */                                                                     \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, CU_SEARCH_LEGACY,                       \
      (ductile_stream stream))                                                                     \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, CU_SEARCH_PER_THREAD,              \
      (ductile_stream stream))                                                                     \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, CU_SEARCH_LEGACY,                    \
      (ductile_stream stream, int mode))                                                           \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, CU_SEARCH_PER_THREAD,           \
      (ductile_stream stream, int mode))                                                           \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, CU_SEARCH_LEGACY,         \
      (ductile_stream stream, void *graph, const void *nodes, const void *edges, size_t n,         \
       int mode))                                                                                  \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030,                      \
      CU_SEARCH_PER_THREAD,                                                                        \
      (ductile_stream stream, void *graph, const void *nodes, const void *edges, size_t n,         \
       int mode))                                                                                  \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, CU_SEARCH_LEGACY,                           \
      (ductile_stream stream, void **graph))                                                       \
    X(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, CU_SEARCH_PER_THREAD,                  \
      (ductile_stream stream, void **graph))                                                       \
    /* Ductile's memory of the device goes first, as all other memory of the context does */       \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, CU_SEARCH_LEGACY,                  \
      (cu_device device))                                                                          \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, CU_SEARCH_LEGACY,              \
      (cu_device device))                                                                          \
    /* what they find is replaced by this table */                                                 \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, CU_SEARCH_LEGACY,                               \
      (const char *name, void **out, int version, uint64_t flags))                                 \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, CU_SEARCH_LEGACY,                            \
      (const char *name, void **out, int version, uint64_t flags, int *answer))

/* What is only called. */
#define CALLED_FUNCTIONS(X)                                                                        \
    X(cuInit, "cuInit", 2000, CU_SEARCH_LEGACY, (unsigned int flags))                              \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, CU_SEARCH_LEGACY, (cu_context * out))              \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, CU_SEARCH_LEGACY, (cu_context context))       \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, CU_SEARCH_LEGACY, (cu_context * out))           \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, CU_SEARCH_LEGACY, (cu_device * out))                 \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, CU_SEARCH_LEGACY, (void))                        \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, CU_SEARCH_LEGACY,            \
      (cu_device device, unsigned int *flags, int *is_active))                                     \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, CU_SEARCH_LEGACY,                \
      (cu_context * out, cu_device device))                                                        \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, CU_SEARCH_LEGACY,          \
      (cu_device device))                                                                          \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, CU_SEARCH_LEGACY,             \
      (cu_mem_pool * out, cu_device device))                                                       \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, CU_SEARCH_LEGACY,                           \
      (cu_mem_pool * out, cu_device device))                                                       \
    X(cuStreamCreate, "cuStreamCreate", 2000, CU_SEARCH_LEGACY,                                    \
      (ductile_stream * out, unsigned int flags))                                                  \
    X(cuStreamGetCtx, "cuStreamGetCtx", 9020, CU_SEARCH_LEGACY,                                    \
      (ductile_stream stream, cu_context * out))                                                   \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, CU_SEARCH_LEGACY,                         \
      (ductile_stream stream, int *out))                                                           \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, CU_SEARCH_LEGACY, (ductile_stream stream)) \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010,               \
      CU_SEARCH_LEGACY, (int *mode))

#define PRELOAD_API __attribute__((visibility("default")))

#define DECLARE_PRELOADED(exported, name, version, variant, parameters)                            \
    PRELOAD_API cu_result exported parameters;
PRELOADED_FUNCTIONS(DECLARE_PRELOADED)
#undef DECLARE_PRELOADED

#endif
