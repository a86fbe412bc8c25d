/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_pools.h"

#include "torch_device.h"

#include <algorithm>

namespace ductile_torch {

namespace {

void check_pool(Device &device, ductile_status status, const char *call) {
    if (status != DUCTILE_OK) {
        raise_status(device, status, call);
    }
}

} // namespace

/* ---- References ----------------------------------------------------------------------------- */

void Pools::retain(const MempoolId_t &id, bool is_native) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    bool is_new = found == pools_.end();
    if (is_new && !is_native) {
        check_pool(device_, ductile_pool_retain(device_.open(), to_pool_id(id)), "creating a pool");
        /* a pool made for torch.cuda.MemPool; one that a capture uses becomes a capture's */
        check_pool(device_,
                   ductile_pool_set_kind(device_.open(), to_pool_id(id), DUCTILE_POOL_PLAIN),
                   "creating a pool");
    } else if (!is_new && !found->second.is_native) {
        check_pool(device_, ductile_pool_retain(device_.open(), to_pool_id(id)), "using a pool");
    }
    Pool &pool = pools_[id];
    pool.references++;
    if (is_new) {
        pool.is_native = is_native;
    }
}

void Pools::release(const MempoolId_t &id) {
    bool goes_native = is_native(id);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        bool is_known = pools_.count(id) != 0; /* one of native's need not be */
        TORCH_CHECK(is_known || goes_native, "release of a pool that is not in use");
        if (is_known) {
            drop_reference(id);
        }
    }
    if (goes_native) {
        native_allocator()->releasePool(device_.index, id);
    } else {
        /* Destructors of PyTorch call this: what left them would end the process, also where the
         * GPU is lost or the process is a forked child.
         * The pool stays then, and the log says why. */
        (void)ductile_pool_release(device_.open(), to_pool_id(id));
    }
}

int Pools::use_count(const MempoolId_t &id) {
    if (is_native_in_use() && is_native(id)) {
        return native_allocator()->getPoolUseCount(device_.index, id);
    }
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

std::optional<bool> Pools::is_known_native(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = pools_.find(id);
    return found != pools_.end() ? std::optional<bool>(found->second.is_native) : std::nullopt;
}

bool Pools::is_native(const MempoolId_t &id) {
    std::optional<bool> known = is_known_native(id);
    return known ? *known : native_holds_pool(device_.index, id);
}

bool Pools::is_for_native(const MempoolId_t &id) {
    std::optional<bool> known = is_known_native(id);
    return known ? *known : is_off() || native_holds_pool(device_.index, id);
}

bool Pools::is_open(const MempoolId_t &id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(open_.begin(), open_.end(), [&](const auto &o) { return o->id == id; });
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

namespace {

/* A flag of `special` that is up while it has users. */
class Users {
  public:
    explicit Users(unsigned flag) : flag_(flag) {
    }
    void count(int change) {
        const std::lock_guard<std::mutex> lock(mutex_);
        n_ += change;
        set_special(flag_, n_ != 0);
    }

  private:
    std::mutex mutex_;
    unsigned flag_;
    int64_t n_ = 0;
};
Users &throwers = *new Users(kThrown); /* used when statics have ended, too */
Users &detours = *new Users(kRouted);

/* What a filter threw while the library asked it. Where the call is not the adapter's, nothing
 * takes it but the thread's next request, or its end. */
struct Thrown {
    std::exception_ptr error;

    std::exception_ptr take() {
        if (error != nullptr) {
            throwers.count(-1);
        }
        return std::exchange(error, nullptr);
    }
    ~Thrown() {
        (void)take();
    }
};
thread_local Thrown thrown_by_filter;

} // namespace

std::exception_ptr take_thrown() {
    return thrown_by_filter.take();
}

/* An exception cannot pass through the library: it is kept until the library has returned. */
int Pools::ask_filter(void *user, ductile_stream stream) {
    auto *opening = static_cast<Opening *>(user);
    try {
        return opening->filter(to_cuda(stream)) ? 1 : 0;
    } catch (...) {
        (void)thrown_by_filter.take();
        thrown_by_filter.error = std::current_exception();
        throwers.count(1);
        return 0;
    }
}

namespace {

/* The default stream where there is no GPU to ask. */
cudaStream_t current_stream(DeviceIndex device) {
    try {
        return c10::cuda::getCurrentCUDAStream(device).stream();
    } catch (const std::exception &) {
        return nullptr;
    }
}

bool accepts(const StreamFilter &filter, cudaStream_t stream, bool otherwise) {
    try {
        return filter(stream);
    } catch (const std::exception &) {
        return otherwise;
    }
}

/* The filter of a capture asks the driver, and says no to the stream of the capture until that has
 * begun; the filter of a thread, or of a stream, says yes to the caller's own stream. PyTorch's
 * markCaptureBegin says it exactly, but only when the capture has begun. */
bool is_for_capture(const StreamFilter &filter, cudaStream_t stream) {
    return !accepts(filter, stream, false);
}

} // namespace

void Pools::begin(const MempoolId_t &id, StreamFilter filter) {
    auto opening = std::make_shared<Opening>();
    opening->id = id;
    opening->is_native = is_for_native(id);
    opening->filter = std::move(filter);
    opening->thread = std::this_thread::get_id();
    opening->stream = current_stream(device_.index);
    drop_stale_announcements();
    adopt_announcement(*opening);
    bool is_new_capture =
        opening->announcement == nullptr && is_for_capture(opening->filter, opening->stream);
    if (opening->is_native) {
        detours.count(1);
        opening->detour = std::shared_ptr<void>(nullptr, [](void *) { detours.count(-1); });
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        open_.push_back(opening);
        Pool &pool = pools_.try_emplace(id, Pool{0, opening->is_native}).first->second;
        pool.references++;
    }
    try {
        open(*opening);
        /* The capture begins after this; opening the pool records a marker, while that may be. */
        if (is_new_capture) {
            opening->announcement = std::make_unique<Announcement>(device_.index);
        }
    } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        open_.erase(std::find(open_.begin(), open_.end(), opening));
        drop_reference(id);
        throw;
    }
}

/* A capture that failed ends no pool. A thread that opens a pool has no other capture that is about
 * to begin. */
void Pools::drop_stale_announcements() {
    std::vector<std::shared_ptr<Opening>> own;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &o : open_) {
            if (o->thread == std::this_thread::get_id() && o->announcement != nullptr) {
                own.push_back(o);
            }
        }
    }
    for (const auto &o : own) {
        if (!accepts(o->filter, o->stream, true)) {
            o->announcement.reset();
        }
    }
}

/* While a child graph is captured, PyTorch closes and opens the pool of the outer capture. */
void Pools::adopt_announcement(Opening &opening) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = parked_.find(opening.id);
    if (found != parked_.end()) {
        opening.announcement = std::move(found->second);
        parked_.erase(found);
    }
}

void Pools::park_announcement(Opening &opening) {
    if (opening.announcement != nullptr && accepts(opening.filter, opening.stream, false)) {
        const std::lock_guard<std::mutex> lock(mutex_);
        parked_[opening.id] = std::move(opening.announcement);
    }
}

void Pools::open(Opening &opening) {
    if (opening.is_native) {
        begin_native_pool(device_.index, opening.id, opening.filter);
        return;
    }
    check_pool(device_,
               ductile_pool_begin(device_.open(), to_pool_id(opening.id), ask_filter, &opening),
               "opening a pool");
}

/* mutex_ held. */
void Pools::drop_reference(const MempoolId_t &id) {
    auto found = pools_.find(id);
    if (--found->second.references == 0) {
        pools_.erase(found);
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
    if (found == open_.rend()) {
        return nullptr;
    }
    std::shared_ptr<Opening> opening = *found;
    open_.erase(std::next(found).base());
    return opening;
}

/* The opening lives until the library has said that no thread is inside its filter. */
void Pools::end(const MempoolId_t &id) {
    std::shared_ptr<Opening> opening = take_opening(id);
    if (opening != nullptr) {
        park_announcement(*opening);
    }
    if (opening == nullptr || opening->is_native) {
        end_native_pool(device_.index, id);
    } else {
        check_pool(device_, ductile_pool_end(device_.open(), to_pool_id(id)), "closing a pool");
        look_at_held();
    }
}

std::shared_ptr<Pools::Opening> Pools::opening_for(cudaStream_t stream) {
    std::vector<std::shared_ptr<Opening>> open;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        open = open_;
    }
    for (auto it = open.rbegin(); it != open.rend(); ++it) {
        if ((*it)->filter(stream)) {
            return *it;
        }
    }
    return nullptr;
}

bool Pools::goes_to_native(cudaStream_t stream) {
    std::shared_ptr<Opening> opening = opening_for(stream);
    return opening != nullptr ? opening->is_native : newcomers_go_to_native(stream);
}

MempoolId_t Pools::pool_for(cudaStream_t stream) {
    std::shared_ptr<Opening> opening = opening_for(stream);
    return opening != nullptr ? opening->id : MempoolId_t{0, 0};
}

/* ---- What pools hold ------------------------------------------------------------------------ */

namespace {

/* 0 for a pool that is gone. */
uint64_t held_bytes(ductile_allocator *a, const MempoolId_t &id) {
    auto stats = sized<ductile_stats>();
    const ductile_pool_id of = to_pool_id(id);
    bool is_there = ductile_get_stats(a, &of, &stats) == DUCTILE_OK;
    return is_there ? stats.reserved_bytes : 0;
}

void set_current(Stat &stat, int64_t now) {
    int64_t grown = now - stat.current;
    (grown > 0 ? stat.allocated : stat.freed) += std::abs(grown);
    stat.current = now;
    stat.peak = std::max(stat.peak, now);
}

} // namespace

void Pools::look_at_held() {
    ductile_allocator *a = device_.opened();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &entry : pools_) {
        if (!entry.second.is_native) {
            held_.try_emplace(entry.first);
        }
    }
    for (auto &entry : held_) {
        /* one that was let go of and is empty stays empty */
        if (a != nullptr && (entry.second.current != 0 || pools_.count(entry.first) != 0)) {
            set_current(entry.second, static_cast<int64_t>(held_bytes(a, entry.first)));
        }
    }
}

std::map<MempoolId_t, Stat> Pools::held() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return held_;
}

void Pools::reset_peaks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto &entry : held_) {
        entry.second.peak = entry.second.current;
    }
}

void Pools::reset_accumulated() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = held_.begin(); it != held_.end();) {
        it->second.allocated = 0;
        it->second.freed = 0;
        bool is_gone = it->second.current == 0 && pools_.count(it->first) == 0;
        it = is_gone ? held_.erase(it) : std::next(it);
    }
}

} // namespace ductile_torch
