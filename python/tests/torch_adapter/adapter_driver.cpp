/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives PyTorch's current allocator through its C++ interface, for tests that run without a GPU:
 * the Python functions for history and pools would initialise CUDA first. Plain functions, called
 * through ctypes; each returns a message, empty when all is well.
 */
#if DUCTILE_TORCH_MINOR >= 10
#include <c10/core/AllocatorConfig.h>
#endif
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#if DUCTILE_TORCH_MINOR >= 10
#include <ATen/cuda/MemPool.h>
#endif

#include <torch/csrc/cuda/memory_snapshot.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

thread_local std::string answer; /* of the latest call */

struct Stack : c10::GatheredContext {};

std::shared_ptr<c10::GatheredContext> no_stack() {
    return nullptr;
}

std::shared_ptr<c10::GatheredContext> python_stack() {
    return torch::CapturedTraceback::gather(true, false, false);
}

template <typename Action> const char *guarded(Action action) {
    try {
        answer.clear();
        action();
    } catch (const c10::Error &e) {
        answer = std::string("c10::Error: ") + e.what_without_backtrace();
    } catch (const std::exception &e) {
        answer = e.what();
    }
    return answer.c_str();
}

c10::cuda::MempoolId_t new_graph_pool() {
#if DUCTILE_TORCH_MINOR >= 10
    return at::cuda::MemPool::graph_pool_handle(false);
#else
    return c10::cuda::MemPool::graph_pool_handle(false);
#endif
}

cudaStream_t stream_of(unsigned long long stream) {
    return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream));
}

} // namespace

#define API extern "C" __attribute__((visibility("default")))

#define POOL_CALL(name, ...)                                                                       \
    API const char *name(unsigned long long first, unsigned long long second) {                    \
        return guarded([&] { __VA_ARGS__; });                                                      \
    }

API const char *probe_alloc(size_t size, unsigned long long stream, void **out) {
    return guarded([&] { *out = caching::raw_alloc_with_stream(size, stream_of(stream)); });
}

API const char *probe_free(void *ptr) {
    return guarded([&] { caching::raw_delete(ptr); });
}

/* As C++ code changes settings at run time: since 2.10 there is a function for it. */
API const char *probe_settings(const char *text) {
    return guarded([&] {
#if DUCTILE_TORCH_MINOR >= 10
        c10::CachingAllocator::setAllocatorSettings(text);
#else
        TORCH_CHECK(false, "this PyTorch has no such function for ", text);
#endif
    });
}

API const char *probe_record(bool on, size_t entries) {
    return guarded([&] {
        caching::recordHistory(on, no_stack, entries,
                               on ? caching::RecordContext::ALL : caching::RecordContext::NEVER,
                               true, {});
    });
}

/* With the Python frames of the callers; `when` is a RecordContext. */
API const char *probe_record_stacks(int when) {
    return guarded([&] {
        caching::recordHistory(true, python_stack, 100000,
                               static_cast<caching::RecordContext>(when), true, {});
    });
}

API const char *probe_skip(const char *action) {
    return guarded([&] {
        caching::recordHistory(true, no_stack, 100000, caching::RecordContext::ALL, true, {action});
    });
}

/* The bytes of the pickle that _dump_snapshot of PyTorch's C++ interface writes. */
API const char *probe_snapshot(const char **bytes, size_t *size) {
    static std::string pickle;
    return guarded([&] {
        pickle = torch::cuda::_memory_snapshot_pickled();
        *bytes = pickle.data();
        *size = pickle.size();
    });
}

/* As torch.cuda.MemPool() does. */
API const char *probe_pool_create(unsigned long long first, unsigned long long second) {
    return guarded([&] {
#if DUCTILE_TORCH_MINOR >= 8
        caching::createOrIncrefPool(0, {first, second});
#else
        caching::ensureExistsAndIncrefPool(0, {first, second});
#endif
    });
}

/* As the end of a torch.cuda.MemPool does. */
API const char *probe_pool_empty(unsigned long long first, unsigned long long second) {
    return guarded([&] {
#if DUCTILE_TORCH_MINOR >= 8
        caching::emptyCache({first, second});
#else
        TORCH_CHECK(false, "this PyTorch empties no single pool: ", first, " ", second);
#endif
    });
}

/* As torch.cuda.MemPool(allocator) does; whose allocator it is makes no difference here. */
API const char *probe_pool_create_own(unsigned long long first, unsigned long long second) {
    return guarded([&] {
#if DUCTILE_TORCH_MINOR >= 11
        std::shared_ptr<caching::CUDAAllocator> own(caching::get(),
                                                    [](caching::CUDAAllocator *) {});
        caching::createOrIncrefPool(0, {first, second}, own);
#elif DUCTILE_TORCH_MINOR >= 8
        caching::createOrIncrefPool(0, {first, second}, caching::get());
#else
        TORCH_CHECK(false, "this PyTorch has no such pools: ", first, " ", second);
#endif
    });
}

API const char *probe_pool_begin(unsigned long long first, unsigned long long second) {
    auto self = std::this_thread::get_id();
    return guarded([&] {
        caching::beginAllocateToPool(0, {first, second}, [self](cudaStream_t) {
            return std::this_thread::get_id() == self;
        });
    });
}

/* The filter throws as often as *times says, then it is the calling thread's. */
API const char *probe_pool_begin_throwing(unsigned long long first, unsigned long long second,
                                          int *times) {
    auto self = std::this_thread::get_id();
    return guarded([&] {
        caching::beginAllocateToPool(0, {first, second}, [self, times](cudaStream_t) {
            TORCH_CHECK((*times)-- <= 0, "the filter has failed");
            return std::this_thread::get_id() == self;
        });
    });
}

POOL_CALL(probe_pool_end, caching::endAllocateToPool(0, {first, second}))
POOL_CALL(probe_pool_release, caching::releasePool(0, {first, second}))

API int probe_pool_uses(unsigned long long first, unsigned long long second) {
    return caching::getPoolUseCount(0, {first, second});
}

namespace {
std::shared_ptr<caching::AllocatorState> state;
}

POOL_CALL(probe_checkpoint, state = caching::getCheckpointState(0, {first, second}))

/* Restores the checkpoint; the blocks become the caller's. */
API const char *probe_restore(size_t *freed, size_t *allocated) {
    return guarded([&] {
        caching::CheckpointDelta delta = caching::setCheckpointPoolState(0, state);
        *freed = delta.ptrs_freed.size();
        *allocated = delta.dataptrs_allocd.size();
        for (at::DataPtr &ptr : delta.dataptrs_allocd) {
            (void)ptr.release_context();
        }
    });
}

API const char *probe_cache_info(size_t *largest) {
    return guarded([&] { caching::cacheInfo(0, largest); });
}

API const char *probe_base(void *ptr, void **base, size_t *size) {
    return guarded([&] { *base = caching::getBaseAllocation(ptr, size); });
}

/* The bytes that PyTorch passes to another process for the block. */
API const char *probe_share(void *ptr, const char **bytes, size_t *size) {
    static std::string handle;
    return guarded([&] {
        handle = caching::get()->shareIpcHandle(ptr).handle;
        *bytes = handle.data();
        *size = handle.size();
    });
}

#if DUCTILE_TORCH_MINOR >= 12
API const char *probe_has_context(const void *ptr, int *found) {
    return guarded([&] { *found = caching::getContextForPointer(ptr) != nullptr; });
}

/* Calls, the size last refused, what was held then. */
API const char *probe_hear_rejections(unsigned long long *heard) {
    return guarded([&] {
        caching::attachOomRejectionObserver(
            [heard](int64_t, size_t size, size_t held, size_t) {
                heard[0]++;
                heard[1] = size;
                heard[2] = held;
            });
    });
}
#endif

#if DUCTILE_TORCH_MINOR >= 13
API const char *probe_capture(bool begins) {
    return guarded([&] { begins ? caching::markCaptureBegin(0) : caching::markCaptureEnd(0); });
}
#endif

#if DUCTILE_TORCH_MINOR >= 14
API const char *probe_annotate(const void *ptr, const char *text) {
    return guarded([&] { caching::get()->annotateMemory(ptr, text); });
}

API int probe_has_metadata(void) {
    return caching::get()->supportsUserMetadata();
}
#endif

/* For callers who have read which allocator is PyTorch's, and call it a little later. */
API const char *probe_current(void **out) {
    return guarded([&] { *out = caching::get(); });
}

namespace {
constexpr c10::cuda::MempoolId_t kCaptured{1000, 0};
}

/* As CUDAGraph::capture_begin does, at an allocator that is not PyTorch's any more. The pool's number
 * is one that PyTorch has given out. */
API const char *probe_begin_capture_at(void *allocator, void *stream) {
    return guarded([&] {
        while (new_graph_pool().first < kCaptured.first) {
        }
        static_cast<caching::CUDAAllocator *>(allocator)->beginAllocateToPool(
            0, kCaptured, [stream](cudaStream_t asked) { return asked == stream; });
        C10_CUDA_CHECK(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream),
                                              cudaStreamCaptureModeThreadLocal));
    });
}

API const char *probe_end_capture(void *stream) {
    return guarded([&] {
        cudaGraph_t graph = nullptr;
        C10_CUDA_CHECK(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph));
        caching::endAllocateToPool(0, kCaptured);
        caching::releasePool(0, kCaptured);
    });
}

/* An allocator for PyTorch's pluggable interface. */
API void *plain_alloc(size_t size, int, cudaStream_t) {
    void *out = nullptr;
    return cudaMalloc(&out, size) == cudaSuccess ? out : nullptr;
}

API void plain_free(void *ptr, size_t, int, cudaStream_t) {
    (void)cudaFree(ptr);
}

/* As the process that was sent the bytes does. */
API const char *probe_receive(const char *bytes, size_t size) {
    return guarded([&] { (void)caching::get()->getIpcDevPtr(std::string(bytes, size)); });
}

/* How many events of each kind a tracker heard. */
API const char *probe_listen(int *counts) {
    return guarded([&] {
        caching::attachAllocatorTraceTracker(
            [counts](const caching::TraceEntry &entry) { counts[entry.action_]++; });
    });
}

/* Bytes that a tracker heard to be mapped and not to leave; bytes that were held when they were
 * said to leave; events of mapped memory that was not held. */
API const char *probe_listen_to_memory(unsigned long long *heard) {
    return guarded([&] {
        caching::attachAllocatorTraceTracker([heard](const caching::TraceEntry &entry) {
            auto held = static_cast<unsigned long long>(
                caching::getDeviceStats(0).reserved_bytes[0].current);
            if (entry.action_ == caching::TraceEntry::SEGMENT_MAP) {
                heard[0] += entry.size_;
                heard[2] += held < heard[0];
            } else if (entry.action_ == caching::TraceEntry::SEGMENT_UNMAP) {
                heard[1] += held >= heard[0] ? entry.size_ : 0;
                heard[0] -= entry.size_;
            }
        });
    });
}

#include "routing.cpp"
