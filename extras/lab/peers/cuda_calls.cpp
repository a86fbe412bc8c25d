/* SPDX-License-Identifier: Apache-2.0 */
#include "extras/lab/peers/cuda_calls.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

extern "C" {
#include "bench/base/stopwatch.h"
}

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

thread_local CudaCalls so_far;

/* One call: one of the two readings of the clock counts as its own. */
class Timed {
  public:
    explicit Timed(bool waits) : start_(host_now_ns()), waits_(waits) {
    }
    Timed(const Timed &) = delete;
    Timed &operator=(const Timed &) = delete;
    ~Timed() {
        so_far.ns += host_now_ns() - start_;
        so_far.host_waits += waits_ ? 1 : 0;
        so_far.n_calls++;
    }

  private:
    uint64_t start_;
    bool waits_;
};

/* The runtime's own function. Without it nothing can work, and no caller could be told. */
template <typename Function> Function *find_real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == nullptr) {
        std::fprintf(stderr, "the CUDA runtime has no %s\n", name);
        std::abort();
    }
    return reinterpret_cast<Function *>(found);
}

/* ---- Driver calls that PyTorch looks up ------------------------------------------------------ */

/* One function of the driver, behind a clock. */
template <typename... Arguments> struct DriverCall {
    using Function = CUresult(Arguments...);

    template <int Tag> struct Slot {
        static inline Function *real = nullptr;
        static CUresult call(Arguments... arguments) {
            Timed timed(false);
            return real(arguments...);
        }
    };
};

template <int Tag, typename... Arguments>
void *put_behind_clock(CUresult (*)(Arguments...), void *found) {
    using Slot = typename DriverCall<Arguments...>::template Slot<Tag>;
    Slot::real = reinterpret_cast<typename DriverCall<Arguments...>::Function *>(found);
    return reinterpret_cast<void *>(&Slot::call);
}

void *timed_driver_call(const char *name, void *found) {
#define DRIVER_CALL(function)                                                                      \
    if (std::strcmp(name, #function) == 0) {                                                       \
        return put_behind_clock<__LINE__>(static_cast<decltype(&(function))>(nullptr), found);     \
    }
    // clang-format off
    DRIVER_CALL(cuMemCreate)
    DRIVER_CALL(cuMemRelease)
    DRIVER_CALL(cuMemMap)
    DRIVER_CALL(cuMemUnmap)
    DRIVER_CALL(cuMemSetAccess)
    DRIVER_CALL(cuMemAddressReserve)
    DRIVER_CALL(cuMemAddressFree)
    // clang-format on
#undef DRIVER_CALL
    return found;
}

} // namespace

CudaCalls cuda_calls_so_far() {
    CudaCalls now = so_far;
    uint64_t readings = now.n_calls * stopwatch_cost_ns();
    now.ns -= readings < now.ns ? readings : now.ns;
    return now;
}

/* ---- The runtime's functions ----------------------------------------------------------------- */

#define RUNTIME_CALL(name, parameters, arguments, waits)                                           \
    extern "C" cudaError_t CUDARTAPI name parameters {                                             \
        static auto *real = find_real<cudaError_t parameters>(#name);                              \
        Timed timed(waits);                                                                        \
        return real arguments;                                                                     \
    }

// clang-format off
RUNTIME_CALL(cudaMalloc, (void **out, size_t size), (out, size), false)
RUNTIME_CALL(cudaFree, (void *block), (block), false)
RUNTIME_CALL(cudaMallocAsync, (void **out, size_t size, cudaStream_t s), (out, size, s), false)
RUNTIME_CALL(cudaFreeAsync, (void *block, cudaStream_t s), (block, s), false)
RUNTIME_CALL(cudaMemGetInfo, (size_t *available, size_t *total), (available, total), false)
RUNTIME_CALL(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), (pool, keep), false)
RUNTIME_CALL(cudaEventCreateWithFlags, (cudaEvent_t *e, unsigned flags), (e, flags), false)
RUNTIME_CALL(cudaEventDestroy, (cudaEvent_t e), (e), false)
RUNTIME_CALL(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (e, s), false)
RUNTIME_CALL(cudaEventQuery, (cudaEvent_t e), (e), false)
RUNTIME_CALL(cudaStreamQuery, (cudaStream_t s), (s), false)
RUNTIME_CALL(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned f), (s, e, f), false)
RUNTIME_CALL(cudaEventSynchronize, (cudaEvent_t e), (e), true)
RUNTIME_CALL(cudaStreamSynchronize, (cudaStream_t s), (s), true)
RUNTIME_CALL(cudaDeviceSynchronize, (), (), true)
// clang-format on

static void replace(const char *name, void **found, cudaError_t status) {
    if (status == cudaSuccess && found != nullptr && *found != nullptr) {
        *found = timed_driver_call(name, *found);
    }
}

#if CUDART_VERSION >= 12050
extern "C" cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(
    const char *name, void **found, unsigned version, unsigned long long flags,
    cudaDriverEntryPointQueryResult *answer) {
    static auto *real = find_real<decltype(cudaGetDriverEntryPointByVersion)>(__func__);
    cudaError_t status = real(name, found, version, flags, answer);
    replace(name, found, status);
    return status;
}
#else
extern "C" cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *name, void **found,
                                                         unsigned long long flags,
                                                         cudaDriverEntryPointQueryResult *answer) {
    static auto *real = find_real<decltype(cudaGetDriverEntryPoint)>(__func__);
    cudaError_t status = real(name, found, flags, answer);
    replace(name, found, status);
    return status;
}
#endif
