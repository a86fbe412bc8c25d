/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime without a GPU, to be preloaded, under the name of the driver's library: PyTorch's
 * own allocator, streams, events, pools and captures then work. Copies are made, kernels do
 * nothing, and work is done the moment it is issued.
 */
#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#define API extern "C" __attribute__((visibility("default")))
#define DO(name, parameters, ...)                                                                  \
    API cudaError_t name parameters {                                                              \
        __VA_ARGS__;                                                                               \
        return cudaSuccess;                                                                        \
    }

namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr int kDevices = 1;

struct Stream {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
};

struct Runtime {
    std::mutex mutex;
    std::map<void *, size_t> blocks;
    size_t total = size_t{139} << 30; /* the virtual GPU's */
    size_t used = 0;
    unsigned long long captures = 0;
    std::atomic<int> event_calls{0};
};

Runtime &runtime() {
    static auto *made = new Runtime(); /* used when statics have ended, too */
    return *made;
}

thread_local cudaError_t latest = cudaSuccess;

cudaError_t fail(cudaError_t error) {
    latest = error;
    return error;
}

/* The default streams are never captured. */
Stream *stream_of(cudaStream_t stream) {
    return reinterpret_cast<uintptr_t>(stream) > 2 ? reinterpret_cast<Stream *>(stream) : nullptr;
}

template <typename Handle> cudaError_t make_handle(Handle *out) {
    *out = reinterpret_cast<Handle>(new char);
    return cudaSuccess;
}

} // namespace

/* ---- What tests ask ------------------------------------------------------------------------- */

/* Bytes from cudaMalloc that were not freed. */
API size_t fake_used(void) {
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    return runtime().used;
}

/* Events recorded and queried so far. */
API int fake_event_calls(void) {
    return runtime().event_calls;
}

/* PyTorch looks for these in the driver. */
API int cuDevicePrimaryCtxGetState(void) {
    return 0;
}

API int cuCtxGetCurrent(void **context) {
    *context = &runtime();
    return 0;
}

/* ---- Devices -------------------------------------------------------------------------------- */

DO(cudaGetDeviceCount, (int *count), *count = kDevices)
DO(cudaGetDevice, (int *device), *device = 0)

API cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

DO(cudaInitDevice, (int, unsigned int, unsigned int), )

#undef cudaGetDeviceProperties
static cudaError_t fill_properties(cudaDeviceProp *out, int device) {
    if (device != 0) {
        return fail(cudaErrorInvalidDevice);
    }
    std::memset(out, 0, sizeof *out);
    std::strcpy(out->name, "no GPU");
    out->totalGlobalMem = runtime().total;
    out->major = 9;
    out->minor = 0;
    out->multiProcessorCount = 132;
    out->warpSize = 32;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsPerMultiProcessor = 2048;
    out->regsPerBlock = 65536;
    out->sharedMemPerBlock = 49152;
    out->sharedMemPerBlockOptin = 232448;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    return fill_properties(out, device);
}

API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *out, int device) {
    return fill_properties(out, device);
}

API cudaError_t cudaDeviceGetPCIBusId(char *out, int room, int device) {
    std::strncpy(out, "0000:18:00.0", static_cast<size_t>(room));
    return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

DO(cudaDriverGetVersion, (int *version), *version = CUDART_VERSION)
DO(cudaDeviceCanAccessPeer, (int *can, int, int), *can = 0)
DO(cudaDeviceEnablePeerAccess, (int, unsigned int), )
DO(cudaDeviceDisablePeerAccess, (int), )
DO(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)
DO(cudaDeviceSynchronize, (void), )
DO(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode *), )

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = latest;
    latest = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) {
    return latest;
}

/* ---- Memory --------------------------------------------------------------------------------- */

API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    *free = runtime().total - runtime().used;
    *total = runtime().total;
    return cudaSuccess;
}

API cudaError_t cudaMalloc(void **out, size_t size) {
    Runtime &r = runtime();
    const std::lock_guard<std::mutex> lock(r.mutex);
    size_t rounded = (size + kGranule - 1) / kGranule * kGranule;
    void *ptr = MAP_FAILED;
    if (rounded <= r.total - r.used) {
        ptr = mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (ptr == MAP_FAILED) {
        return fail(cudaErrorMemoryAllocation);
    }
    r.used += rounded;
    r.blocks[ptr] = rounded;
    *out = ptr;
    return cudaSuccess;
}

API cudaError_t cudaFree(void *ptr) {
    Runtime &r = runtime();
    const std::lock_guard<std::mutex> lock(r.mutex);
    auto found = r.blocks.find(ptr);
    if (found == r.blocks.end()) {
        return ptr == nullptr ? cudaSuccess : fail(cudaErrorInvalidValue);
    }
    (void)munmap(ptr, found->second);
    r.used -= found->second;
    r.blocks.erase(found);
    return cudaSuccess;
}

/* Where the bytes of an address are kept: those of Ductile's virtual GPU are no addresses of a
 * process, so a range of zeros stands for them. */
static char *bytes_of(const void *ptr) {
    constexpr uintptr_t kVirtual = uintptr_t{1} << 48;
    constexpr size_t kRoom = size_t{1} << 40;
    static char *const room =
        static_cast<char *>(mmap(nullptr, kRoom, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    const auto at = reinterpret_cast<uintptr_t>(ptr);
    return at < kVirtual ? reinterpret_cast<char *>(at) : room + (at - kVirtual) % kRoom;
}

DO(cudaMemcpy, (void *to, const void *from, size_t size, cudaMemcpyKind),
   std::memmove(bytes_of(to), bytes_of(from), size))

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                                cudaStream_t) {
    return cudaMemcpy(to, from, size, kind);
}

/* Zeros cost no memory: whole pages of them are given back. */
API cudaError_t cudaMemsetAsync(void *ptr, int value, size_t size, cudaStream_t) {
    constexpr uintptr_t kPage = 4096;
    char *const to = bytes_of(ptr);
    const size_t before = -reinterpret_cast<uintptr_t>(to) % kPage;
    if (value != 0 || size < before + kPage) {
        std::memset(to, value, size);
        return cudaSuccess;
    }
    const size_t whole = (size - before) / kPage * kPage;
    std::memset(to, 0, before);
    (void)madvise(to + before, whole, MADV_DONTNEED);
    std::memset(to + before + whole, 0, size - before - whole);
    return cudaSuccess;
}

DO(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *ptr),
   std::memset(handle, 0, sizeof *handle);
   std::memcpy(handle, &ptr, sizeof ptr))
DO(cudaIpcOpenMemHandle, (void **out, cudaIpcMemHandle_t handle, unsigned int),
   std::memcpy(out, &handle, sizeof *out))
DO(cudaIpcCloseMemHandle, (void *), )
DO(cudaLaunchKernel, (const void *, dim3, dim3, void **, size_t, cudaStream_t), )

/* ---- Streams and events --------------------------------------------------------------------- */

DO(cudaStreamCreateWithPriority, (cudaStream_t * out, unsigned int, int),
   *out = reinterpret_cast<cudaStream_t>(new Stream()))
DO(cudaStreamQuery, (cudaStream_t), )
DO(cudaStreamSynchronize, (cudaStream_t), )
DO(cudaStreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned int), )

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int) {
    return make_handle(out);
}

DO(cudaEventDestroy, (cudaEvent_t event), delete reinterpret_cast<char *>(event))
DO(cudaEventRecord, (cudaEvent_t, cudaStream_t), runtime().event_calls++)
DO(cudaEventQuery, (cudaEvent_t), runtime().event_calls++)
DO(cudaEventSynchronize, (cudaEvent_t), )

/* ---- Captures and graphs -------------------------------------------------------------------- */

API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    Stream *s = stream_of(stream);
    *status = s != nullptr ? s->status : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

#undef cudaStreamGetCaptureInfo
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **nodes,
                                         const cudaGraphEdgeData **edges, size_t *count) {
    if (edges != nullptr) {
        *edges = nullptr;
    }
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **nodes, size_t *count) {
#endif
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    Stream *s = stream_of(stream);
    *status = s != nullptr ? s->status : cudaStreamCaptureStatusNone;
    if (id != nullptr) {
        *id = s != nullptr ? s->capture : 0;
    }
    if (graph != nullptr) {
        *graph = nullptr;
    }
    if (nodes != nullptr) {
        *nodes = nullptr;
    }
    if (count != nullptr) {
        *count = 0;
    }
    return cudaSuccess;
}

static void set_capture(cudaStream_t stream, bool on) {
    const std::lock_guard<std::mutex> lock(runtime().mutex);
    Stream *s = stream_of(stream);
    s->status = on ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    s->capture = on ? ++runtime().captures : 0;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stream_of(stream) == nullptr) {
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    set_capture(stream, true);
    return cudaSuccess;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    set_capture(stream, false);
    return make_handle(graph);
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t,
                                              unsigned long long) {
    return make_handle(out);
}

#undef cudaGraphInstantiate
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t, unsigned long long) {
    return make_handle(out);
}

DO(cudaGraphGetNodes, (cudaGraph_t, cudaGraphNode_t *, size_t *count), *count = 1)
DO(cudaGraphDestroy, (cudaGraph_t graph), delete reinterpret_cast<char *>(graph))
DO(cudaGraphExecDestroy, (cudaGraphExec_t graph), delete reinterpret_cast<char *>(graph))
DO(cudaGraphLaunch, (cudaGraphExec_t, cudaStream_t), )
