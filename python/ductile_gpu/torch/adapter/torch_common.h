/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every file of the adapter sees: PyTorch's interface, Ductile's, and the differences between
 * PyTorch's versions. DUCTILE_TORCH_MINOR is the minor version of PyTorch 2 compiled against.
 * OVERRIDE_SINCE_N stands at what PyTorch declares since 2.N: from then on the compiler holds it to
 * be so declared. _build.py defines both.
 */
#ifndef DUCTILE_TORCH_COMMON_H
#define DUCTILE_TORCH_COMMON_H

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <ductile.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ductile_torch {

namespace caching = c10::cuda::CUDACachingAllocator;

using c10::DeviceIndex;
using c10::cuda::MempoolId_t;
using caching::DeviceStats;
using caching::RecordContext;
using caching::SegmentInfo;
using caching::SnapshotInfo;
using caching::TraceEntry;
using Annotation = decltype(SnapshotInfo::external_annotations)::value_type;
using Context = std::shared_ptr<c10::GatheredContext>;
using Stat = std::decay_t<decltype(std::declval<DeviceStats>().oversize_segments)>;

/* What is neither copied nor moved. */
struct Fixed {
    Fixed() = default;
    Fixed(const Fixed &) = delete;
    Fixed &operator=(const Fixed &) = delete;
};

/* Assigns a member that not every version of a struct has. */
#define DUCTILE_DEFINE_SETTER(member)                                                              \
    template <typename Struct, typename Value>                                                     \
    auto set_##member(Struct &s, Value &&value, int)                                               \
        ->decltype(s.member = std::forward<Value>(value), void()) {                                \
        s.member = std::forward<Value>(value);                                                     \
    }                                                                                              \
    template <typename Struct, typename Value> void set_##member(Struct &, Value &&, long) {       \
    }
DUCTILE_DEFINE_SETTER(compile_context_)
DUCTILE_DEFINE_SETTER(user_metadata_)
DUCTILE_DEFINE_SETTER(mempool_)
DUCTILE_DEFINE_SETTER(graph_capture_record_stream_reuse)
#undef DUCTILE_DEFINE_SETTER

inline bool is_default_pool(const MempoolId_t &id) {
    return id.first == 0 && id.second == 0;
}

inline ductile_stream to_ductile(cudaStream_t stream) {
    return reinterpret_cast<ductile_stream>(stream);
}

inline ductile_addr to_address(const void *ptr) {
    return static_cast<ductile_addr>(reinterpret_cast<uintptr_t>(ptr));
}

inline void *to_pointer(ductile_addr address) {
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address));
}

/* A struct of the library's with nothing in it but its size. */
template <typename Struct> Struct sized() {
    Struct made = {};
    made.struct_size = sizeof made;
    return made;
}

inline c10::Device to_device(DeviceIndex index) {
    return c10::Device(c10::DeviceType::CUDA, index);
}

inline cudaStream_t to_cuda(ductile_stream stream) {
    return reinterpret_cast<cudaStream_t>(stream);
}

/* Is device memory behind such a block? */
inline bool has_memory(ductile_block_state state) {
    return state == DUCTILE_BLOCK_LIVE || state == DUCTILE_BLOCK_FREE ||
           state == DUCTILE_BLOCK_PENDING || state == DUCTILE_BLOCK_BUSY;
}

/* Visits the blocks; none in a forked child, whose memory they are not. */
template <typename Visit> void walk_blocks(ductile_allocator *allocator, Visit visit) {
    auto call = [](void *user, const ductile_block_info *block) {
        (*static_cast<Visit *>(user))(*block);
        return 0;
    };
    ductile_status status = ductile_walk(allocator, nullptr, call, &visit);
    TORCH_CHECK(status == DUCTILE_OK || status == DUCTILE_ERR_FORKED,
                "Ductile: ", ductile_status_string(status));
}

/* "20.00 MiB", as PyTorch writes sizes. */
std::string format_bytes(uint64_t bytes);

} // namespace ductile_torch

#endif
