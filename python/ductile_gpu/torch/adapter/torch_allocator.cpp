/* SPDX-License-Identifier: Apache-2.0 */
/* Life, pools, checkpoints, other devices. */
#include "torch_allocator.h"

#include "torch_settings.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace ductile_torch {

namespace {

/* Captures of this thread that PyTorch has said to have begun, since Ductile is its allocator. */
thread_local int captures_of_thread = 0;

} // namespace

thread_local bool is_being_installed = false;

/* ---- Life ----------------------------------------------------------------------------------- */

void Allocator::init(int device_count) {
    make_devices(device_count);
    if (is_native_in_use() || is_off()) {
        native_allocator()->init(device_count);
    }
    refresh_settings(false);
    if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) {
        enable(false);
    }
}

bool Allocator::initialized() {
    return n_devices > 0 && !is_being_installed;
}

std::string Allocator::name() {
    return is_off() ? "native" : "ductile";
}

bool Allocator::isEnabled() const {
    return caching_enabled;
}

void Allocator::emptyCache(MempoolId_t pool) {
    Context context = gather_context(RecordContext::ALL);
    for (Device &device : AllDevices()) {
        ductile_allocator *a = device.opened();
        if (a == nullptr || (!is_default_pool(pool) && device.pools.is_native(pool))) {
            continue;
        }
        const ductile_pool_id of = to_pool_id(pool);
        ductile_status status = ductile_trim(a, is_default_pool(pool) ? nullptr : &of, 0, nullptr);
        /* The destructor of a torch.cuda.MemPool empties the pool: what left it would end the
         * process, also where the GPU is lost or the process is a forked child. */
        if (status != DUCTILE_OK && is_default_pool(pool)) {
            raise_status(device, status, "emptying the cache");
        }
        if ((special & kWatched) != 0) {
            const std::lock_guard<std::recursive_mutex> lock(device.mutex);
            device.watch.note_changes(context);
        }
    }
    if (is_default_pool(pool)) {
        empty_native();
    } else if (is_native_in_use()) {
#if DUCTILE_TORCH_MINOR >= 8
        native_allocator()->emptyCache(pool);
#endif
    }
    share_limits();
}

void Allocator::emptyCache() {
    emptyCache(MempoolId_t{0, 0});
}

void Allocator::copy_data(void *dest, const void *src, std::size_t count) const {
    C10_CUDA_CHECK(cudaMemcpy(dest, src, count, cudaMemcpyKind::cudaMemcpyDeviceToDevice));
}

void *Allocator::getBaseAllocation(void *ptr, size_t *size) {
    ductile_block_info info;
    if (find_block(ptr, info) == nullptr) {
        TORCH_CHECK(is_native_in_use(), "invalid device pointer: ", ptr);
        return native_allocator()->getBaseAllocation(ptr, size);
    }
    if (size != nullptr) {
        *size = static_cast<size_t>(info.size);
    }
    return to_pointer(info.address);
}

/* ---- Private pools -------------------------------------------------------------------------- */

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, StreamFilter filter) {
    Device &d = device_at(device);
#if DUCTILE_TORCH_MINOR < 8
    auto *active = c10::cuda::MemPoolContext::getActiveMemPool();
    TORCH_CHECK(active == nullptr || active->id() != pool || active->allocator() == nullptr ||
                    d.pools.is_native(pool),
                "Ductile: a torch.cuda.MemPool with an allocator of its own needs PyTorch 2.8");
#endif
    d.pools.begin(pool, std::move(filter));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
    device_at(device).pools.end(pool);
}

/* Besides, it serves the message of a refusal: during a capture no thread can wait for memory that
 * streams still use. */
void Allocator::markCaptureBegin(DeviceIndex device) {
    device_at(device).captures++;
    captures_of_thread++;
    ductile_capture_begin();
#if DUCTILE_TORCH_MINOR >= 13
    if (is_native_in_use()) {
        native_allocator()->markCaptureBegin(device);
        device_at(device).captures_told++;
    }
#endif
}

void Allocator::markCaptureEnd(DeviceIndex device) {
    Device &d = device_at(device);
    /* one that native was told of, before Ductile came */
    bool is_inherited = d.captures == 0 || (captures_of_thread == 0 && count_inherited() != 0);
    if (!is_inherited) {
        ductile_capture_end();
        d.captures--;
        captures_of_thread = std::max(captures_of_thread - 1, 0);
    }
#if DUCTILE_TORCH_MINOR >= 13
    bool was_told = !is_inherited && d.captures_told > 0;
    d.captures_told -= was_told ? 1 : 0;
    if (is_native_in_use() && (is_inherited || was_told)) {
        native_allocator()->markCaptureEnd(device);
    }
#endif
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t pool) {
    device_at(device).pools.release(pool);
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
    return device_at(device).pools.use_count(pool);
}

/* A pool that brings an allocator of its own is native's. */
template <typename Action>
static void retain(Pools &pools, const MempoolId_t &pool, bool has_own, Action retain_at_native) {
    bool is_native = has_own || pools.is_for_native(pool);
    if (is_native) {
        retain_at_native();
    }
    pools.retain(pool, is_native);
}

void Allocator::ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t pool) {
    retain(device_at(device).pools, pool, false, [&] { retain_native_pool(device, pool); });
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                   std::shared_ptr<caching::CUDAAllocator> own) {
    retain(device_at(device).pools, pool, own != nullptr, [&] {
#if DUCTILE_TORCH_MINOR >= 11
        native_allocator()->createOrIncrefPool(device, pool, std::move(own));
#endif
    });
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                   caching::CUDAAllocator *own) {
    retain(device_at(device).pools, pool, own != nullptr, [&] {
#if DUCTILE_TORCH_MINOR >= 8 && DUCTILE_TORCH_MINOR < 11
        native_allocator()->createOrIncrefPool(device, pool, own);
#endif
    });
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool on) {
    Pools &pools = device_at(device).pools;
    pools.set_use_on_oom(pool, on);
#if DUCTILE_TORCH_MINOR >= 11
    if (pools.is_native(pool)) {
        native_allocator()->setUseOnOOM(device, pool, on);
    }
#elif DUCTILE_TORCH_MINOR >= 8
    if (pools.is_native(pool)) {
        native_allocator()->setUseOnOOM(device, pool);
    }
#endif
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool) {
    setUseOnOOM(device, pool, true);
}

/* Blocks of Ductile always split: its segments grow in granules, so an unsplit one would only waste
 * what is left of the last. */
void Allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
#if DUCTILE_TORCH_MINOR >= 10
    if (device_at(device).pools.is_native(pool)) {
        native_allocator()->setNoSplit(device, pool);
    }
#else
    (void)device;
    (void)pool;
#endif
}

/* ---- Checkpoints ---------------------------------------------------------------------------- */

namespace {

/* What was asked for of each, by its address. */
using LiveBlocks = std::map<ductile_addr, size_t>;

struct Checkpoint : caching::AllocatorState {
    MempoolId_t pool = {0, 0};
    LiveBlocks live;
    std::shared_ptr<caching::AllocatorState> native; /* when the pool is the native allocator's */
};

int collect_live(void *user, const ductile_block_info *block) {
    if (block->state == DUCTILE_BLOCK_LIVE) {
        static_cast<LiveBlocks *>(user)->emplace(block->address, block->requested_size);
    }
    return 0;
}

LiveBlocks list_live(Device &device, const MempoolId_t &pool) {
    LiveBlocks live;
    const ductile_pool_id of = to_pool_id(pool);
    ductile_status status = ductile_walk(device.open(), &of, collect_live, &live);
    TORCH_CHECK(status == DUCTILE_OK, "Could not find pool of id (", pool.first, ", ", pool.second,
                ")");
    return live;
}

/* Makes a block where there is free memory of the pool. */
void put_block(Device &device, const MempoolId_t &pool, const LiveBlocks::value_type &wanted,
               const Context &context, const char *call) {
    ductile_status status =
        ductile_pool_alloc_at(device.open(), to_pool_id(pool), wanted.first, wanted.second);
    if (status != DUCTILE_OK) {
        raise_status(device, status, call);
    }
    note_home(to_pointer(wanted.first), device);
    if ((special & kWatched) != 0) {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        device.watch.note_alloc(to_pointer(wanted.first), wanted.second, nullptr, context);
    }
}

bool is_in(const LiveBlocks &blocks, const LiveBlocks::value_type &wanted) {
    auto found = blocks.find(wanted.first);
    return found != blocks.end() && found->second == wanted.second;
}

} // namespace

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         const std::unordered_set<void *> &expected) {
    Device &d = device_at(device);
    if (d.pools.is_native(pool)) {
        return native_allocator()->checkPoolLiveAllocations(device, pool, expected);
    }
    LiveBlocks live = list_live(d, pool);
    return live.size() == expected.size() &&
           std::all_of(live.begin(), live.end(),
                       [&](const auto &b) { return expected.count(to_pointer(b.first)) != 0; });
}

std::shared_ptr<caching::AllocatorState> Allocator::getCheckpointState(DeviceIndex device,
                                                                       MempoolId_t pool) {
    Device &d = device_at(device);
    auto state = std::make_shared<Checkpoint>();
    state->pool = pool;
    if (d.pools.is_native(pool)) {
        state->native = native_allocator()->getCheckpointState(device, pool);
    } else {
        state->live = list_live(d, pool);
    }
    return state;
}

/*
 * Afterwards the pool's live blocks are those of the checkpoint. What was live and is wanted stays
 * as it is; it is reported as freed and as allocated nevertheless, because its owner changes.
 */
caching::CheckpointDelta
Allocator::setCheckpointPoolState(DeviceIndex device,
                                  std::shared_ptr<caching::AllocatorState> given) {
    auto state = std::dynamic_pointer_cast<Checkpoint>(given);
    if (state == nullptr || state->native != nullptr) {
        TORCH_CHECK(is_native_in_use(), "this checkpoint is not Ductile's");
        return native_allocator()->setCheckpointPoolState(
            device, state != nullptr ? state->native : std::move(given));
    }
    Device &d = device_at(device);
    const std::lock_guard<std::recursive_mutex> lock(d.mutex);
    LiveBlocks before = list_live(d, state->pool);
    caching::CheckpointDelta delta;
    for (const auto &b : before) {
        if (!is_in(state->live, b)) {
            delete_block(to_pointer(b.first));
        }
        delta.ptrs_freed.push_back(to_pointer(b.first));
    }
    for (const auto &b : state->live) {
        if (!is_in(before, b)) {
            put_block(d, state->pool, b, nullptr, "restoring a pool's state");
        }
        delta.dataptrs_allocd.emplace_back(to_pointer(b.first), to_pointer(b.first), &delete_block,
                                           to_device(device));
    }
    return delta;
}

c10::DataPtr allocate_at(Device &device, size_t size, void *address, cudaStream_t stream) {
    TORCH_CHECK_VALUE(size != 0, "allocateWithAddress: no block has 0 bytes");
    put_block(device, device.pools.pool_for(stream), {to_address(address), size},
              gather_context(RecordContext::STATE), "allocating at an address");
    c10::DataPtr block(address, address, &delete_block, to_device(device.index));
    ductile_block_info info;
    TORCH_CHECK_VALUE(find_block(address, info) != nullptr && info.stream == to_ductile(stream),
                      "allocateWithAddress: ", address, " is memory of another stream");
    return block;
}

c10::DataPtr Allocator::allocateWithAddress(size_t size, void *address) {
    DeviceIndex index = current_device();
    Device &device = device_at(index);
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
#if DUCTILE_TORCH_MINOR >= 13
    if ((special & kElsewhere) != 0 && device.pools.goes_to_native(stream)) {
        return native_allocator()->allocateWithAddress(size, address);
    }
#endif
    return allocate_at(device, size, address, stream);
}

/* ---- Other devices -------------------------------------------------------------------------- */

/* Without peer access, memory that was mapped can only be copied by the peer form of the call. */
cudaError_t Allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device,
                                   size_t count, cudaStream_t stream, bool p2p_enabled) {
    if (p2p_enabled || to_device == from_device) {
        return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

} // namespace ductile_torch
