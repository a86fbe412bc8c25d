/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_driver.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The driver's parameters, of which most do nothing here. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORTED __attribute__((visibility("default")))

static fake_counts fake_driver;

EXPORTED fake_counts *fake_driver_counts(void) {
    return &fake_driver;
}

enum {
    N_DEVICES = 2,
    N_NATIVE = 4096,
    N_STREAMS = 256,
    INVALID_DEVICE = 101,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    WRONG_THREAD = 908,
    ACCESS_RW = 3,
    HAS_VMM = 102,
    HAS_MEMORY_POOLS = 115
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define FIRST_RESERVED 0x700000000000
static ductile_addr next_reserved = FIRST_RESERVED, next_native = 0x10000000000;
static ductile_addr native[N_NATIVE];
static atomic_int n_capturing;
static _Thread_local cu_context stack[8];
static _Thread_local int capture_mode; /* of the thread */
static _Thread_local int depth = 1;    /* device 0's primary context is current */

/* A destroyed stream's handle soon names a new one, as the driver's do. */
typedef struct fake_stream {
    cu_context context;
    bool is_used;
    atomic_bool is_capturing;
} fake_stream;

static fake_stream streams[N_STREAMS];

/* ---- Start, devices, contexts --------------------------------------------------------------- */

static cu_context primary_of(cu_device device) {
    return (cu_context)(uintptr_t)(0x1000 + 0x100 * device);
}

/* Their captures go with them. */
static void drop_streams_of(cu_context context) {
    for (int i = 0; i < N_STREAMS; i++) {
        if (streams[i].context == context) {
            n_capturing -= atomic_exchange(&streams[i].is_capturing, false);
        }
    }
}

static cu_device device_of(cu_context context) {
    return context == primary_of(1) ? 1 : 0;
}

static cu_context current(void) {
    return depth == 1 && stack[0] == NULL ? primary_of(0) : stack[depth - 1];
}

#define DO(name, parameters, ...)                                                                  \
    EXPORTED cu_result name parameters;                                                            \
    cu_result name parameters {                                                                    \
        __VA_ARGS__;                                                                               \
        return CU_SUCCESS;                                                                         \
    }

DO(cuInit, (unsigned int flags), )
DO(cuDriverGetVersion, (int *version), *version = 13000)
DO(cuDeviceGetCount, (int *count), *count = N_DEVICES)
DO(cuDeviceGet, (cu_device * out, int ordinal), *out = ordinal)
DO(cuDeviceGetName, (char *name, int size, cu_device device), strncpy(name, "Fake", (size_t)size))
DO(cuDeviceTotalMem_v2, (size_t * bytes, cu_device device), *bytes = (size_t)64 << 30)
DO(cuDeviceGetAttribute, (int *value, int which, cu_device device),
   *value = which == HAS_VMM || which == HAS_MEMORY_POOLS)
DO(cuDevicePrimaryCtxGetState, (cu_device device, unsigned int *flags, int *is_active), *flags = 0;
   *is_active = 1)
DO(cuDevicePrimaryCtxRetain, (cu_context * out, cu_device device), *out = primary_of(device))
DO(cuDevicePrimaryCtxRelease_v2, (cu_device device), )
DO(cuDevicePrimaryCtxReset_v2, (cu_device device), fake_driver.resets++;
   drop_streams_of(primary_of(device)))
DO(cuCtxGetCurrent, (cu_context * out), *out = current())
DO(cuCtxPushCurrent_v2, (cu_context context), stack[0] = stack[0] ? stack[0] : primary_of(0);
   stack[depth++] = context)
DO(cuCtxPopCurrent_v2, (cu_context * out), *out = stack[--depth])
DO(cuCtxGetDevice, (cu_device * out), *out = device_of(current()))
DO(cuDeviceCanAccessPeer, (int *out, cu_device device, cu_device of), *out = device != of)
DO(cuCtxEnablePeerAccess, (cu_context peer, unsigned int flags), fake_driver.peers++)
DO(cuCtxDisablePeerAccess, (cu_context peer), fake_driver.peers--)

EXPORTED cu_result cuCtxSynchronize(void);
cu_result cuCtxSynchronize(void) {
    fake_driver.waits++;
    fake_driver.other_waits += current() != primary_of(0);
    fake_driver.broken_captures += n_capturing > 0;
    while (fake_driver.is_held_up) {
        (void)sched_yield();
    }
    fake_driver.broken_captures += n_capturing > 0;
    return fake_driver.fails_wait ? STREAM_CAPTURE_UNSUPPORTED : CU_SUCCESS;
}

/* ---- Memory on demand ----------------------------------------------------------------------- */

static ductile_addr take(ductile_addr *next, size_t size) {
    pthread_mutex_lock(&lock);
    if (next == &next_reserved && atomic_exchange(&fake_driver.reuses_addresses, false)) {
        next_reserved = FIRST_RESERVED;
    }
    ductile_addr at = *next;
    *next += (size + ((size_t)2 << 20) - 1) >> 21 << 21;
    pthread_mutex_unlock(&lock);
    return at;
}

DO(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total), *free_bytes = (size_t)32 << 30;
   *total = (size_t)64 << 30)
DO(cuMemGetAllocationGranularity, (size_t * out, const void *props, int option),
   *out = (size_t)2 << 20)
DO(cuMemAddressReserve,
   (ductile_addr * out, size_t size, size_t alignment, ductile_addr hint, unsigned long long flags),
   *out = take(&next_reserved, size))
DO(cuMemAddressFree, (ductile_addr addr, size_t size), )
DO(cuMemRelease, (unsigned long long phys), fake_driver.is_full = false)
DO(cuMemMap,
   (ductile_addr addr, size_t size, size_t offset, unsigned long long phys,
    unsigned long long flags),
   fake_driver.maps++)
DO(cuMemUnmap, (ductile_addr addr, size_t size), )
DO(cuMemSetAccess, (ductile_addr addr, size_t size, const void *descs, size_t n), )
DO(cuMemGetAccess, (unsigned long long *flags, const void *location, ductile_addr addr),
   *flags = ACCESS_RW)

EXPORTED cu_result cuMemCreate(unsigned long long *out, size_t size, const void *props,
                               unsigned long long flags);
cu_result cuMemCreate(unsigned long long *out, size_t size, const void *props,
                      unsigned long long flags) {
    if (fake_driver.is_out_of_memory || fake_driver.is_full) {
        return CU_OUT_OF_MEMORY;
    }
    *out = (unsigned long long)(0x100 + fake_driver.creates++);
    return CU_SUCCESS;
}

EXPORTED cu_result cuMemExportToShareableHandle(void *out, unsigned long long phys, int type,
                                                unsigned long long flags);
cu_result cuMemExportToShareableHandle(void *out, unsigned long long phys, int type,
                                       unsigned long long flags) {
    return CU_NOT_SUPPORTED;
}

EXPORTED cu_result cuMemImportFromShareableHandle(unsigned long long *out, void *shared, int type);
cu_result cuMemImportFromShareableHandle(unsigned long long *out, void *shared, int type) {
    return CU_NOT_SUPPORTED;
}

/* ---- Memory of its own ---------------------------------------------------------------------- */

static cu_result hand_out(ductile_addr *out, size_t size, atomic_int *count) {
    if (fake_driver.is_full) {
        return CU_OUT_OF_MEMORY;
    }
    ductile_addr at = take(&next_native, size);
    (*count)++;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_NATIVE; i++) {
        if (native[i] == 0) {
            native[i] = at;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    *out = at;
    return size == 0 ? CU_INVALID_VALUE : CU_SUCCESS;
}

static cu_result take_back(ductile_addr addr, atomic_int *count) {
    cu_result code = addr == 0 ? CU_SUCCESS : CU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; addr != 0 && i < N_NATIVE; i++) {
        if (native[i] == addr) {
            native[i] = 0;
            code = CU_SUCCESS;
            (*count)++;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define RETURN(name, parameters, value)                                                            \
    EXPORTED cu_result name parameters;                                                            \
    cu_result name parameters {                                                                    \
        return value;                                                                              \
    }

RETURN(cuMemAlloc_v2, (ductile_addr * out, size_t size), hand_out(out, size, &fake_driver.mallocs))
RETURN(cuMemFree_v2, (ductile_addr addr), take_back(addr, &fake_driver.frees))
RETURN(cuMemAllocPitch_v2,
       (ductile_addr * out, size_t *pitch, size_t width, size_t height, unsigned int element),
       (*pitch = width, hand_out(out, width *height, &fake_driver.pitched)))
RETURN(cuMemAllocManaged, (ductile_addr * out, size_t size, unsigned int flags),
       hand_out(out, size, &fake_driver.managed))
RETURN(cuMemAllocAsync, (ductile_addr * out, size_t size, ductile_stream stream),
       hand_out(out, size, &fake_driver.async_mallocs))
RETURN(cuMemAllocAsync_ptsz, (ductile_addr * out, size_t size, ductile_stream stream),
       hand_out(out, size, &fake_driver.async_mallocs))
RETURN(cuMemAllocFromPoolAsync,
       (ductile_addr * out, size_t size, cu_mem_pool pool, ductile_stream stream),
       hand_out(out, size, &fake_driver.async_mallocs))
RETURN(cuMemAllocFromPoolAsync_ptsz,
       (ductile_addr * out, size_t size, cu_mem_pool pool, ductile_stream stream),
       hand_out(out, size, &fake_driver.async_mallocs))
RETURN(cuMemFreeAsync, (ductile_addr addr, ductile_stream stream),
       take_back(addr, &fake_driver.async_frees))
RETURN(cuMemFreeAsync_ptsz, (ductile_addr addr, ductile_stream stream),
       take_back(addr, &fake_driver.async_frees))
DO(cuIpcGetMemHandle, (void *handle, ductile_addr addr), fake_driver.ipc++; memset(handle, 1, 64))
DO(cuMemGetAddressRange_v2, (ductile_addr * base, size_t *size, ductile_addr addr), *base = 7;
   *size = 7)
DO(cuPointerGetAttribute, (void *data, int attribute, ductile_addr addr),
   memset(data, 7, sizeof(int)))
DO(cuPointerGetAttributes, (unsigned int n, int *attributes, void **data, ductile_addr addr),
   for (unsigned int i = 0; i < n; i++) memset(data[i], 7, sizeof(int)))
DO(cuDeviceGetDefaultMemPool, (cu_mem_pool * out, cu_device device),
   if (device >= N_DEVICES) return INVALID_DEVICE;
   *out = FAKE_DEFAULT_POOL(device))
DO(cuDeviceGetMemPool, (cu_mem_pool * out, cu_device device),
   *out = fake_driver.has_own_pool ? FAKE_OWN_POOL : FAKE_DEFAULT_POOL(device))
DO(cuMemPoolSetAttribute, (cu_mem_pool pool, int which, void *value), )
DO(cuMemPoolGetAttribute, (cu_mem_pool pool, int which, void *value), )
DO(cuMemPoolTrimTo, (cu_mem_pool pool, size_t keep_bytes), fake_driver.trims++)
DO(cuMemPoolSetAccess, (cu_mem_pool pool, const cu_access *map, size_t n), )

/* ---- Streams, captures, events -------------------------------------------------------------- */

static fake_stream *named(ductile_stream stream) {
    return (uintptr_t)stream > 2 ? (fake_stream *)(void *)stream : NULL;
}

static cu_result make_stream(ductile_stream *out) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (streams[i].is_used) {
        i++;
    }
    streams[i] = (fake_stream){.context = current(), .is_used = true};
    pthread_mutex_unlock(&lock);
    *out = (ductile_stream)(void *)&streams[i];
    return CU_SUCCESS;
}

static cu_result set_capturing(ductile_stream stream, bool to) {
    fake_stream *s = named(stream);
    if (s == NULL || s->is_capturing == to) {
        return CU_INVALID_VALUE;
    }
    s->is_capturing = to;
    n_capturing += to ? 1 : -1;
    return CU_SUCCESS;
}

static cu_result drop_stream(ductile_stream stream) {
    (void)set_capturing(stream, false);
    pthread_mutex_lock(&lock);
    named(stream)->is_used = false;
    pthread_mutex_unlock(&lock);
    return CU_SUCCESS;
}

RETURN(cuStreamCreate, (ductile_stream * out, unsigned int flags), make_stream(out))
RETURN(cuStreamDestroy_v2, (ductile_stream stream), drop_stream(stream))
DO(cuStreamSynchronize, (ductile_stream stream), fake_driver.stream_waits++;
   fake_driver.broken_captures += n_capturing > 0 && capture_mode != CU_CAPTURE_RELAXED)
DO(cuStreamQuery, (ductile_stream stream), )
DO(cuStreamWaitEvent, (ductile_stream stream, void *event, unsigned int flags), )
DO(cuStreamWaitValue64_v2,
   (ductile_stream stream, ductile_addr addr, uint64_t value, unsigned int flags), )
DO(cuStreamGetCtx, (ductile_stream stream, cu_context *out),
   *out = named(stream) ? named(stream)->context : current())
DO(cuStreamIsCapturing, (ductile_stream stream, int *out),
   *out = named(stream) && named(stream)->is_capturing)
RETURN(cuStreamBeginCapture_v2, (ductile_stream stream, int mode), set_capturing(stream, true))
RETURN(cuStreamEndCapture, (ductile_stream stream, void **out),
       fake_driver.is_wrong_thread ? WRONG_THREAD : set_capturing(stream, false))
DO(cuThreadExchangeStreamCaptureMode, (int *mode), int before = capture_mode; capture_mode = *mode;
   *mode = before)
DO(cuGraphDestroy, (void *graph), )
DO(cuEventCreate, (void **out, unsigned int flags), *out = (void *)0x2000)
DO(cuEventDestroy_v2, (void *event), )
DO(cuEventRecord, (void *event, ductile_stream stream), )
DO(cuEventQuery, (void *event), )
DO(cuEventSynchronize, (void *event), )
DO(cuCtxRecordEvent, (cu_context context, void *event), fake_driver.markers++;
   fake_driver.broken_captures += n_capturing > 0)

/* ---- Host memory and contents --------------------------------------------------------------- */

DO(cuMemHostAlloc, (void **out, size_t size, unsigned int flags), *out = malloc(size))
DO(cuMemFreeHost, (void *memory), free(memory))
DO(cuMemHostRegister_v2, (void *memory, size_t size, unsigned int flags), )
DO(cuMemHostUnregister, (void *memory), )
DO(cuMemsetD8Async, (ductile_addr addr, unsigned char value, size_t size, ductile_stream stream), )
DO(cuMemcpyDtoDAsync_v2, (ductile_addr to, ductile_addr from, size_t size, ductile_stream stream), )
DO(cuMemcpyHtoDAsync_v2, (ductile_addr to, const void *from, size_t size, ductile_stream stream), )
DO(cuMemcpyDtoHAsync_v2, (void *to, ductile_addr from, size_t size, ductile_stream stream), )

/* ---- The search ----------------------------------------------------------------------------- */

typedef struct findable {
    const char *name;
    int oldest, variant;
    void (*function)(void);
} findable;

EXPORTED cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                       int *answer);

#define ROW(name, symbol, oldest, variant)                                                         \
    { name, oldest, variant, (void (*)(void))symbol }

/* Both entries of cuMemAlloc: programs that ask for a later version than this library knows get the
 * driver's. */
static const findable functions[] = {
    ROW("cuMemAlloc", cuMemAlloc_v2, 3020, 0),
    ROW("cuMemFree", cuMemFree_v2, 3020, 0),
    ROW("cuMemAllocPitch", cuMemAllocPitch_v2, 3020, 0),
    ROW("cuMemAllocManaged", cuMemAllocManaged, 6000, 0),
    ROW("cuMemAllocAsync", cuMemAllocAsync, 11020, 0),
    ROW("cuMemAllocAsync", cuMemAllocAsync_ptsz, 11020, 2),
    ROW("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync, 11020, 0),
    ROW("cuMemFreeAsync", cuMemFreeAsync, 11020, 0),
    ROW("cuMemFreeAsync", cuMemFreeAsync_ptsz, 11020, 2),
    ROW("cuMemGetInfo", cuMemGetInfo_v2, 3020, 0),
    ROW("cuMemCreate", cuMemCreate, 10020, 0),
    ROW("cuMemGetAddressRange", cuMemGetAddressRange_v2, 3020, 0),
    ROW("cuPointerGetAttribute", cuPointerGetAttribute, 4000, 0),
    ROW("cuPointerGetAttributes", cuPointerGetAttributes, 7000, 0),
    ROW("cuIpcGetMemHandle", cuIpcGetMemHandle, 4010, 0),
    ROW("cuMemPoolSetAccess", cuMemPoolSetAccess, 11020, 0),
    ROW("cuMemPoolTrimTo", cuMemPoolTrimTo, 11020, 0),
    ROW("cuCtxEnablePeerAccess", cuCtxEnablePeerAccess, 4000, 0),
    ROW("cuCtxDisablePeerAccess", cuCtxDisablePeerAccess, 4000, 0),
    ROW("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2, 11000, 0),
    ROW("cuStreamCreate", cuStreamCreate, 2000, 0),
    ROW("cuStreamDestroy", cuStreamDestroy_v2, 4000, 0),
    ROW("cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010, 0),
    ROW("cuStreamEndCapture", cuStreamEndCapture, 10000, 0),
    ROW("cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000, 0),
    ROW("cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000, 0),
    ROW("cuGetProcAddress", cuGetProcAddress_v2, 12000, 0),
};

cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                              int *answer) {
    int variant = (flags & 2) != 0 ? 2 : 0;
    *out = NULL;
    *answer = 1;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        const findable *f = &functions[i];
        if (strcmp(f->name, name) == 0 && f->oldest <= version && f->variant <= variant) {
            memcpy(out, &f->function, sizeof(*out));
            *answer = 0;
        }
    }
    return CU_SUCCESS;
}
