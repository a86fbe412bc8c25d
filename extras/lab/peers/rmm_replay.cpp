/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through RMM's pool or arena, as a C++ program uses them, above an upstream that
 * calls cudaMalloc and counts what it holds.
 *
 *   pool    grows from nothing, by RMM's own rule: it doubles while it may
 *   arena   takes half of the free memory at once, as it does by default; under a cap, the cap
 *
 * RMM knows no record_stream: a block belongs to its stream, and a program that used it elsewhere
 * makes that stream wait before it frees the block there. The replay does so, and what it costs is
 * counted.
 *
 * Driver time and waits are those of the upstream and of these joins: what librmm itself calls
 * cannot be seen, it has a CUDA runtime of its own.
 */
#include "extras/lab/peers/cuda_calls.hpp"
#include "extras/lab/peers/peer.hpp"

#include <rmm/cuda_stream_view.hpp>
#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include <cuda/memory_resource>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace {

/* ---- Upstream -------------------------------------------------------------------------------- */

struct Held {
    uint64_t now = 0;
    uint64_t peak = 0;
};

/* RMM keeps copies of a resource: they share the count. */
class CountingUpstream {
  public:
    explicit CountingUpstream(Held &held) : held_(&held) {
    }

    void *allocate_sync(size_t bytes, size_t = 256) {
        void *block = nullptr;
        if (cudaMalloc(&block, bytes) != cudaSuccess) {
            (void)cudaGetLastError();
            throw rmm::out_of_memory("cudaMalloc");
        }
        held_->now += bytes;
        held_->peak = std::max(held_->peak, held_->now);
        return block;
    }
    void deallocate_sync(void *block, size_t bytes, size_t = 256) noexcept {
        held_->now -= bytes;
        (void)cudaFree(block);
    }
    void *allocate(cuda::stream_ref, size_t bytes, size_t = 256) {
        return allocate_sync(bytes);
    }
    void deallocate(cuda::stream_ref, void *block, size_t bytes, size_t = 256) noexcept {
        deallocate_sync(block, bytes);
    }
    bool operator==(const CountingUpstream &other) const noexcept {
        return held_ == other.held_;
    }
    bool operator!=(const CountingUpstream &other) const noexcept {
        return held_ != other.held_;
    }
    friend void get_property(const CountingUpstream &, cuda::mr::device_accessible) noexcept {
    }

  private:
    Held *held_;
};

/* ---- RMM as a peer --------------------------------------------------------------------------- */

/* The replay has its address for the block's: RMM wants the size and the stream again. */
struct RmmBlock {
    void *address;
    size_t size;
    cudaStream_t stream;
    std::vector<cudaStream_t> users; /* other streams */
};

template <typename Resource> class RmmPeer {
  public:
    using Refused = rmm::bad_alloc;
    static constexpr uint64_t kMostForced = 4; /* the arena waits for a stream at each large free */

    explicit RmmPeer(const char *name) : name_(name) {
        check(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "cudaEventCreate");
    }

    const char *name() const {
        return name_;
    }

    cudaStream_t stream(uint64_t, size_t index) {
        while (streams_.size() <= index) {
            cudaStream_t stream = nullptr;
            check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
            streams_.push_back(stream);
        }
        return streams_[index];
    }

    void *alloc(size_t size, cudaStream_t stream) {
        void *address = resource_->allocate(cuda::stream_ref(stream), size, 256);
        RmmBlock *block = take_spare();
        block->address = address;
        block->size = size;
        block->stream = stream;
        return block;
    }

    void free(void *given) {
        auto *block = static_cast<RmmBlock *>(given);
        for (cudaStream_t user : block->users) {
            join(block->stream, user);
        }
        block->users.clear();
        spare_.push_back(block);
        resource_->deallocate(cuda::stream_ref(block->stream), block->address, block->size, 256);
    }

    static void use(void *given, cudaStream_t stream) {
        auto *block = static_cast<RmmBlock *>(given);
        auto end = block->users.end();
        if (stream != block->stream && std::find(block->users.begin(), end, stream) == end) {
            block->users.push_back(stream);
        }
    }

    void start_afresh(uint64_t cap) {
        give_back();
        held_ = {};
        make(cap);
    }

    void give_back() {
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        resource_.reset();
    }

    void stats(contender_stats &out) const {
        CudaCalls calls = cuda_calls_so_far();
        out.reserved_bytes = held_.now;
        out.reserved_peak_bytes = held_.peak;
        out.driver_host_ns = calls.ns;
        out.stream_syncs = calls.host_waits;
    }

  private:
    RmmBlock *take_spare() {
        if (spare_.empty()) {
            blocks_.push_back(std::make_unique<RmmBlock>());
            return blocks_.back().get();
        }
        RmmBlock *block = spare_.back();
        spare_.pop_back();
        return block;
    }

    /* The block's stream waits for the work of the other one. */
    void join(cudaStream_t owner, cudaStream_t user) {
        check(cudaEventRecord(joined_, user), "cudaEventRecord");
        check(cudaStreamWaitEvent(owner, joined_, 0), "cudaStreamWaitEvent");
    }

    void make(uint64_t cap) {
        std::optional<size_t> most;
        if (cap != 0) {
            most = static_cast<size_t>(cap);
        }
        if constexpr (std::is_same_v<Resource, rmm::mr::pool_memory_resource>) {
            resource_.emplace(CountingUpstream(held_), 0, most);
        } else {
            resource_.emplace(CountingUpstream(held_), most);
        }
    }

    const char *name_;
    cudaEvent_t joined_ = nullptr; /* recorded and waited for at once: one serves all */
    std::vector<cudaStream_t> streams_;
    std::vector<std::unique_ptr<RmmBlock>> blocks_;
    std::vector<RmmBlock *> spare_;
    Held held_;
    std::optional<Resource> resource_;
};

template <typename Resource> int run(const char *name, const peer_options &options) {
    check(cudaFree(nullptr), "cudaFree"); /* makes the device's context current */
    RmmPeer<Resource> peer(name);
    return Serving<RmmPeer<Resource>>::serve(peer, options);
}

int run_resource(const peer_options &options) {
    std::string resource = options.given != nullptr ? options.given : "";
    if (resource == "pool") {
        return run<rmm::mr::pool_memory_resource>("rmm-pool", options);
    }
    if (resource == "arena") {
        return run<rmm::mr::arena_memory_resource>("rmm-arena", options);
    }
    throw std::runtime_error("--resource is pool or arena");
}

} // namespace

int main(int argc, char **argv) {
    return peer_main_of<run_resource>(argc, argv, "--resource");
}
