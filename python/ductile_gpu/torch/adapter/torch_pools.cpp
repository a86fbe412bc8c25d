/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_pools.h"

#include "torch_device.h"

#include <algorithm>

namespace ductile_torch {

/* ---- The native allocator ------------------------------------------------------------------- */

namespace {

caching::CUDAAllocator *native = nullptr;
std::atomic<bool> native_in_use{false};
std::mutex native_mutex;

void check_pool(Device &device, ductile_status status, const char *call) {
    if (status != DUCTILE_OK) {
        raise_status(device, status, call);
    }
}

} // namespace

void remember_native(caching::CUDAAllocator *allocator) {
    native = allocator;
}

bool is_native_in_use() {
    return native_in_use.load(std::memory_order_acquire);
}

caching::CUDAAllocator *native_allocator() {
    if (!is_native_in_use()) {
        const std::lock_guard<std::mutex> lock(native_mutex);
        native->init(n_devices);
        native_in_use.store(true, std::memory_order_release);
    }
    return native;
}

/* ---- References ----------------------------------------------------------------------------- */

void Pools::retain(Device &device, const MempoolId_t &id, bool is_native) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    bool is_new = found == pools_.end();
    if (is_new && !is_native) {
        check_pool(device, ductile_pool_retain(device.open(), to_pool_id(id)), "creating a pool");
        /* a pool made for torch.cuda.MemPool; one that a capture uses becomes a capture's */
        check_pool(device, ductile_pool_set_kind(device.open(), to_pool_id(id), DUCTILE_POOL_PLAIN),
                   "creating a pool");
    } else if (!is_new && !found->second.is_native) {
        check_pool(device, ductile_pool_retain(device.open(), to_pool_id(id)), "using a pool");
    }
    Pool &pool = pools_[id];
    pool.references++;
    if (is_new) {
        pool.is_native = is_native;
    }
}

void Pools::release(Device &device, const MempoolId_t &id) {
    bool goes_native = false;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        auto found = pools_.find(id);
        TORCH_CHECK(found != pools_.end(), "release of a pool that is not in use");
        goes_native = found->second.is_native;
        if (--found->second.references == 0) {
            pools_.erase(found);
        }
    }
    if (goes_native) {
        native_allocator()->releasePool(device.index, id);
    } else {
        check_pool(device, ductile_pool_release(device.open(), to_pool_id(id)), "releasing a pool");
    }
}

int Pools::use_count(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    return found == pools_.end() ? 0 : found->second.references;
}

void Pools::set_use_on_oom(const MempoolId_t &id, bool on) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    if (found != pools_.end()) {
        found->second.use_on_oom = on;
    }
}

/* Blocks of Ductile always split: its segments grow in granules, so an unsplit one would only waste
 * what is left of the last. Pools of the native allocator are told by the caller. */
void Pools::set_no_split(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    if (found != pools_.end()) {
        found->second.no_split = true;
    }
}

bool Pools::is_native(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    return found != pools_.end() && found->second.is_native;
}

std::vector<MempoolId_t> Pools::last_resorts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<MempoolId_t> out;
    for (const auto &entry : pools_) {
        if (entry.second.use_on_oom) {
            out.push_back(entry.first);
        }
    }
    return out;
}

/* ---- Open pools ----------------------------------------------------------------------------- */

int Pools::ask_filter(void *user, ductile_stream stream) {
    auto *opening = static_cast<Opening *>(user);
    return opening->filter(reinterpret_cast<cudaStream_t>(stream)) ? 1 : 0;
}

void Pools::begin(Device &device, const MempoolId_t &id, StreamFilter filter) {
    auto opening = std::make_shared<Opening>();
    opening->id = id;
    opening->is_native = is_native(id);
    opening->filter = std::move(filter);
    opening->thread = std::this_thread::get_id();
    if (opening->is_native) {
        native_allocator()->beginAllocateToPool(device.index, id, opening->filter);
    } else {
        check_pool(device,
                   ductile_pool_begin(device.open(), to_pool_id(id), ask_filter, opening.get()),
                   "opening a pool");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.push_back(opening);
    pools_[id].references++;
    if (opening->is_native) {
        special.fetch_or(kRouted); /* stays: closing races with other threads' requests */
    }
}

std::shared_ptr<Pools::Opening> Pools::take_opening(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto is_same = [&](const std::shared_ptr<Opening> &o) { return o->id == id; };
    auto is_own = [&](const std::shared_ptr<Opening> &o) {
        return o->id == id && o->thread == std::this_thread::get_id();
    };
    auto found = std::find_if(open_.rbegin(), open_.rend(), is_own);
    if (found == open_.rend()) {
        found = std::find_if(open_.rbegin(), open_.rend(), is_same);
    }
    TORCH_CHECK(found != open_.rend(), "endAllocateToPool: the pool is not open");
    std::shared_ptr<Opening> opening = *found;
    open_.erase(std::next(found).base());
    return opening;
}

/* The opening lives until the library has said that nobody is inside its filter. */
void Pools::end(Device &device, const MempoolId_t &id) {
    std::shared_ptr<Opening> opening = take_opening(id);
    if (opening->is_native) {
        native_allocator()->endAllocateToPool(device.index, id);
    } else {
        check_pool(device, ductile_pool_end(device.open(), to_pool_id(id)), "closing a pool");
    }
}

bool Pools::goes_to_native(cudaStream_t stream) {
    std::vector<std::shared_ptr<Opening>> open;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        open = open_;
    }
    for (auto it = open.rbegin(); it != open.rend(); ++it) {
        if ((*it)->filter(stream)) {
            return (*it)->is_native;
        }
    }
    return false;
}

} // namespace ductile_torch
