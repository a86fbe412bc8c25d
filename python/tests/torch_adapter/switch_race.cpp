/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that allocate, free, use pools and capture, while another makes Ductile PyTorch's
 * allocator and gives its place back, over and over. Compiled with the thread sanitizer, together
 * with the adapter; run on a CUDA runtime without a GPU (fake_runtime.cpp), which is preloaded.
 */
#include "../../ductile_gpu/torch/adapter/torch_adapter.cpp"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#if DUCTILE_TORCH_MINOR >= 10
using PyTorchPool = at::cuda::MemPool;
#else
using PyTorchPool = c10::cuda::MemPool;
#endif
using c10::cuda::MempoolId_t;
namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

std::atomic<bool> is_over{false};
std::atomic<long> rounds{0};
constexpr size_t kKiB = 1024;

[[noreturn]] void fail(const char *what, const std::string &why) {
    std::fprintf(stderr, "%s: %s\n", what, why.c_str());
    std::_Exit(2);
}

void check(bool holds, const char *what) {
    if (!holds) {
        fail(what, "does not hold");
    }
}

std::function<bool(cudaStream_t)> this_thread() {
    auto self = std::this_thread::get_id();
    return [self](cudaStream_t) { return std::this_thread::get_id() == self; };
}

/* Tensors that live over many switches. */
void allocate(unsigned seed) {
    std::vector<c10::DataPtr> kept(32);
    for (unsigned i = seed; !is_over; i = i * 1664525 + 1013904223) {
        c10::DataPtr &slot = kept[(i >> 8) % kept.size()];
        slot = caching::get()->allocate(kKiB * (1 + (i >> 16) % 4096));
        check(slot.get() != nullptr, "an allocation has memory");
        if (i % 5 == 0) {
            caching::recordStream(slot, c10::cuda::getStreamFromPool());
        }
        rounds++;
    }
}

void allocate_raw() {
    while (!is_over) {
        void *ptr = caching::raw_alloc(kKiB);
        (void)caching::getBaseAllocation(ptr, nullptr);
        caching::raw_delete(ptr);
        rounds++;
    }
}

void use_pools() {
    while (!is_over) {
        MempoolId_t pool = PyTorchPool::graph_pool_handle();
        caching::beginAllocateToPool(0, pool, this_thread());
        c10::DataPtr within = caching::get()->allocate(kKiB);
        check(caching::getPoolUseCount(0, pool) == 1, "an open pool is used once");
        c10::DataPtr more = caching::get()->allocate(kKiB);
        caching::endAllocateToPool(0, pool);
        caching::releasePool(0, pool);
        rounds++;
    }
}

/* As CUDAGraph does. */
void capture() {
    c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    while (!is_over) {
        MempoolId_t pool = PyTorchPool::graph_pool_handle(false);
        caching::beginAllocateToPool(0, pool, [stream](cudaStream_t asked) {
            cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
            (void)cudaStreamIsCapturing(asked, &status);
            return asked == stream.stream() && status == cudaStreamCaptureStatusActive;
        });
        (void)cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal);
        c10::DataPtr first = caching::get()->allocate(kKiB);
        c10::DataPtr second = caching::get()->allocate(kKiB);
        check((ductile_torch::find_home(first.get()) == nullptr) ==
                  (ductile_torch::find_home(second.get()) == nullptr),
              "what one capture allocates has one owner");
        cudaGraph_t graph = nullptr;
        (void)cudaStreamEndCapture(stream.stream(), &graph);
        (void)cudaGraphDestroy(graph);
        caching::endAllocateToPool(0, pool);
        caching::releasePool(0, pool);
        rounds++;
    }
}

void look() {
    while (!is_over) {
        (void)caching::getDeviceStats(0);
        (void)caching::snapshot();
        caching::emptyCache();
        rounds++;
    }
}

void call(int (*function)(char *, size_t)) {
    char message[512];
    if (function(message, sizeof message) != 0) {
        fail("a switch", message);
    }
}

void switch_over(int turns) {
    for (int i = 0; i < turns; i++) {
        long before = rounds;
        call(i % 2 == 0 ? ductile_torch_install : ductile_torch_leave);
        while (rounds < before + 20) {
            std::this_thread::yield();
        }
    }
}

template <typename Work> std::function<void()> guarded(Work work) {
    return [work] {
        try {
            work();
        } catch (const c10::Error &e) {
            fail("a thread", e.what_without_backtrace());
        } catch (const std::exception &e) {
            fail("a thread", e.what());
        }
    };
}

} // namespace

int main(int argc, char **argv) {
    int turns = argc > 1 ? std::atoi(argv[1]) : 100;
    caching::init(1);
    std::vector<std::thread> threads;
    for (const std::function<void()> &work :
         {guarded([] { allocate(1); }), guarded([] { allocate(2); }), guarded(allocate_raw),
          guarded(use_pools), guarded(capture), guarded(look)}) {
        threads.emplace_back(work);
    }
    while (rounds < 100) {
        std::this_thread::yield();
    }
    switch_over(turns);
    is_over = true;
    for (std::thread &thread : threads) {
        thread.join();
    }
    check(ductile_torch_inherited() == 0, "no pool is open");
    check(caching::getDeviceStats(0).allocation[0].current == 0, "all is free");
    std::printf("%d switches, %ld calls\n", turns, rounds.load());
    std::fflush(stdout);
    std::_Exit(0); /* what PyTorch's own statics do at exit is not looked at */
}
