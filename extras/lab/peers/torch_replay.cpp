/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through the caching allocator of the installed PyTorch, the peer that Ductile is
 * measured beside. PYTORCH_CUDA_ALLOC_CONF chooses native, expandable segments or the driver's
 * pool, as in any PyTorch program; one process measures one of them.
 *
 * Blocks are got and given back with raw_alloc_with_stream and raw_delete: what a tensor costs at
 * the C++ level, without the tensor. A use by another stream is record_stream, where the trace has
 * it; before the free that stream waits for a word in host memory, if the trace says where the use
 * ends.
 *
 * With --adapter the same goes through Ductile, by the adapter that a PyTorch program would use.
 *
 * `extras/lab/run compare` starts it; peer.h says what it answers.
 */
#include "extras/lab/peers/cuda_calls.hpp"
#include "extras/lab/peers/peer.hpp"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <ductile.h>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/* ---- Ductile as PyTorch's allocator --------------------------------------------------------- */

/* The adapter's functions; none of them when PyTorch's own allocator is measured. */
struct Adapter {
    ductile_allocator *(*allocator_of)(int) = nullptr;
    decltype(&ductile_get_stats) get_stats = nullptr;
    decltype(&ductile_time_driver_calls) time_calls = nullptr;

    bool is_used() const {
        return allocator_of != nullptr;
    }

    void install(const char *path) {
        void *library = dlopen(path, RTLD_NOW);
        if (library == nullptr) {
            throw std::runtime_error(dlerror());
        }
        int (*enter)(char *, size_t) = nullptr;
        char message[512] = "";
        load(library, "ductile_torch_install", enter);
        if (enter(message, sizeof message) != 0) {
            throw std::runtime_error(message);
        }
        load(library, "ductile_torch_allocator", allocator_of);
        load(library, "ductile_get_stats", get_stats);
        load(library, "ductile_time_driver_calls", time_calls);
    }

    /* After the first request. */
    void time_driver_calls() const {
        if (is_used()) {
            time_calls(allocator_of(0));
        }
    }

    /* Zeros before the first request. */
    ductile_stats stats() const {
        ductile_stats stats = {};
        stats.struct_size = sizeof stats;
        ductile_allocator *a = allocator_of(0);
        if (a != nullptr && get_stats(a, nullptr, &stats) != DUCTILE_OK) {
            throw std::runtime_error("Ductile's statistics cannot be read");
        }
        return stats;
    }

    /* Ductile calls the driver itself, and counts it. */
    void count(contender_stats &out) const {
        ductile_stats now = stats();
        out.driver_host_ns = now.driver_host_ns;
        out.stream_syncs = now.stream_syncs;
        out.pressure_waits = now.pressure_waits;
        out.pressure_returns = now.pressure_returns;
    }
};

/* ---- PyTorch as a peer ----------------------------------------------------------------------- */

class TorchPeer {
  public:
    using Refused = c10::OutOfMemoryError;
    static constexpr uint64_t kMostForced = 0;

    TorchPeer(uint64_t total_bytes, const Adapter &adapter)
        : adapter_(adapter), allocator_(caching::get()), device_(c10::DeviceType::CUDA, 0),
          total_bytes_(total_bytes) {
    }

    const char *name() const {
        if (adapter_.is_used()) {
            return "torch-ductile";
        }
        std::string conf;
        for (const char *variable : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
            const char *value = std::getenv(variable);
            conf += value != nullptr ? value : "";
        }
        if (conf.find("backend:cudaMallocAsync") != std::string::npos) {
            return "torch-async";
        }
        return conf.find("expandable_segments:True") != std::string::npos ? "torch-expandable"
                                                                          : "torch-native";
    }

    /* Of the pool they live as long as the process. */
    static cudaStream_t stream(uint64_t number, size_t) {
        return (number == 0 ? c10::cuda::getDefaultCUDAStream(0)
                            : c10::cuda::getStreamFromPool(false, 0))
            .stream();
    }

    void *alloc(size_t size, cudaStream_t stream) {
        return allocator_->raw_alloc_with_stream(size, stream);
    }

    void free(void *block) {
        allocator_->raw_delete(block);
    }

    /* record_stream takes a DataPtr and heeds only those that the allocator itself would delete. */
    void use(void *block, cudaStream_t stream) {
        at::DataPtr handle(block, block, allocator_->raw_deleter(), device_);
        allocator_->recordStream(handle, c10::cuda::getStreamFromExternal(stream, 0));
        (void)handle.release_context();
    }

    void start_afresh(uint64_t cap) {
        caching::emptyCache();
        caching::resetPeakStats(0);
        if (cap != cap_) {
            double share_of_all = static_cast<double>(cap) / static_cast<double>(total_bytes_);
            caching::setMemoryFraction(cap != 0 ? share_of_all : 1.0, 0);
            cap_ = cap;
        }
    }

    static void give_back() {
        c10::cuda::device_synchronize();
        caching::emptyCache();
    }

    void stats(contender_stats &out) const {
        const auto now = caching::getDeviceStats(0);
        out.reserved_bytes = static_cast<uint64_t>(now.reserved_bytes[0].current);
        out.reserved_peak_bytes = static_cast<uint64_t>(now.reserved_bytes[0].peak);
        if (adapter_.is_used()) {
            adapter_.count(out);
            return;
        }
        CudaCalls calls = cuda_calls_so_far();
        out.driver_host_ns = calls.ns;
        out.stream_syncs = calls.host_waits;
        out.pressure_returns = static_cast<uint64_t>(now.num_alloc_retries);
    }

  private:
    const Adapter &adapter_;
    caching::CUDAAllocator *allocator_;
    c10::Device device_;
    uint64_t total_bytes_;
    uint64_t cap_ = 0; /* nothing was said of it so far */
};

/* ---- The program -------------------------------------------------------------------------- */

/* The first allocation makes the device's context current, which the driver's calls need. */
void wake_device() {
    caching::init(c10::cuda::device_count_ensure_non_zero());
    c10::cuda::set_device(0);
    caching::raw_delete(
        caching::raw_alloc_with_stream(512, c10::cuda::getDefaultCUDAStream(0).stream()));
}

// The events of recorded streams ask whether the device has a context, and libtorch_cuda registers
// the answer when it is loaded. The allocator itself does not need that library.
void load_hooks() {
    if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
        std::fprintf(stderr, "torch_replay: %s\n", dlerror());
    }
}

int run(const peer_options &options) {
    load_hooks();
    Adapter adapter;
    if (options.given != nullptr) {
        adapter.install(options.given);
    }
    wake_device();
    adapter.time_driver_calls();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    TorchPeer peer(total_bytes, adapter);
    int status = Serving<TorchPeer>::serve(peer, options);
    // libtorch_cuda's own clean-up does not survive in a program that PyTorch did not start
    std::fflush(stdout);
    std::_Exit(status);
}

} // namespace

int main(int argc, char **argv) {
    return peer_main_of<run>(argc, argv, "--adapter");
}
