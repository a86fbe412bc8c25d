/* SPDX-License-Identifier: Apache-2.0 */
#include "native_side.h"

#include "torch_device.h"

#if DUCTILE_TORCH_MINOR >= 10
#include <ATen/cuda/MemPool.h>
#endif

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

namespace ductile_torch {

#if DUCTILE_TORCH_MINOR >= 10
using PoolOfPyTorch = at::cuda::MemPool;
#else
using PoolOfPyTorch = c10::cuda::MemPool;
#endif

/* ---- The other allocator -------------------------------------------------------------------- */

namespace {

caching::CUDAAllocator *native = nullptr;
std::atomic<bool> native_in_use{false};
std::mutex native_mutex;

/* What native answers, or `otherwise` where it throws. */
template <typename Action> auto ask(decltype(std::declval<Action>()()) otherwise, Action action) {
    try {
        return action();
    } catch (const std::exception &) {
        return otherwise;
    }
}

template <typename Action> void try_to(Action action) {
    try {
        action();
    } catch (const std::exception &e) {
        TORCH_WARN("Ductile, of PyTorch's own allocator: ", e.what());
    }
}

} // namespace

void remember_native(caching::CUDAAllocator *allocator) {
    native = allocator;
    native_in_use.store(allocator->initialized(), std::memory_order_release);
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

int count_native_devices(caching::CUDAAllocator *allocator) {
    int count = 0;
    while (count < C10_COMPILE_TIME_MAX_GPUS && ask(false, [&] {
               (void)allocator->getDeviceStats(static_cast<DeviceIndex>(count));
               return true;
           })) {
        count++;
    }
    return count;
}

/* ---- Pools that native opened before --------------------------------------------------------- */

namespace {

using PoolOfDevice = std::pair<DeviceIndex, MempoolId_t>;
using Clock = std::chrono::steady_clock;

struct Side {
    std::mutex mutex;
    std::atomic<bool> off{true};
    bool is_ours = false;             /* has Ductile taken native's place? */
    std::set<PoolOfDevice> inherited; /* open, and not seen being opened */
    Clock::time_point look_until;     /* see kSettlingTime */
    std::mutex opening;               /* held where a pool is opened, and where one is tried */
};
auto &side = *new Side(); /* used when statics have ended, too */

/* A call that began before Ductile came, in another thread, may open a pool a little later. So long
 * one is looked for wherever a stream is captured for no pool that is known, and at the end once
 * more. */
constexpr std::chrono::milliseconds kSettlingTime{1000};

/* Native opens no pool twice; it may have counted a reference all the same.
 * Pre: it holds the pool. */
bool is_open(DeviceIndex device, const MempoolId_t &pool) {
    const std::lock_guard<std::mutex> lock(side.opening);
    int uses = native->getPoolUseCount(device, pool);
    bool was_closed = ask(false, [&] {
        native->beginAllocateToPool(device, pool, [](cudaStream_t) { return false; });
        return true;
    });
    if (was_closed) {
        native->endAllocateToPool(device, pool);
    }
    if (native->getPoolUseCount(device, pool) > uses) {
        native->releasePool(device, pool);
    }
    return !was_closed;
}

/* The pools that may be open: PyTorch numbers those of graphs, and those of programs. */
std::set<MempoolId_t> list_candidates() {
    std::set<MempoolId_t> out;
    uint64_t of_graphs = PoolOfPyTorch::graph_pool_handle(false).first;
    for (uint64_t i = 1; i < of_graphs; i++) {
        out.insert({i, 0});
    }
    uint64_t of_programs = PoolOfPyTorch::graph_pool_handle(true).second;
    for (uint64_t i = 1; i < of_programs; i++) {
        out.insert({0, i});
    }
#if DUCTILE_TORCH_MINOR >= 11 /* before, a snapshot copies the history */
    for (const SegmentInfo &segment : native->snapshot({0, 0}, false).segments) {
        out.insert(segment.owner_private_pool_id);
    }
    out.erase({0, 0});
#endif
    return out;
}

/* side.mutex held. */
void find_inherited() {
    std::set<MempoolId_t> candidates = list_candidates();
    for (Device &device : AllDevices()) {
        for (const MempoolId_t &pool : candidates) {
            if (native_holds_pool(device.index, pool) && !device.pools.is_open(pool) &&
                is_open(device.index, pool)) {
                side.inherited.insert({device.index, pool});
            }
        }
    }
}

/* side.mutex held. While such a pool is open, a capture may be under way that was not announced. */
void inherit() {
    bool had_some = !side.inherited.empty();
    find_inherited();
    if (!had_some && !side.inherited.empty()) {
        ductile_capture_begin();
        special.fetch_or(kNative);
    }
}

/* side.mutex held. */
void serve_by_whom_it_is_now() {
    set_special(kNative, side.off || !side.inherited.empty());
}

/* side.mutex held. True where a look found one. */
bool look_once_more(cudaStream_t stream) {
    bool is_over = Clock::now() > side.look_until;
    if (is_over) {
        special.fetch_and(~kSettling);
    }
    if (is_over || is_captured(stream)) {
        inherit();
    }
    return !side.inherited.empty();
}

} // namespace

bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return status == cudaStreamCaptureStatusActive;
}

size_t count_inherited() {
    const std::lock_guard<std::mutex> lock(side.mutex);
    return side.inherited.size();
}

void end_native_pool(DeviceIndex device, const MempoolId_t &pool) {
    TORCH_CHECK(is_native_in_use(), "endAllocateToPool: the pool is not open");
    native->endAllocateToPool(device, pool);
    bool was_last = false;
    {
        const std::lock_guard<std::mutex> lock(side.mutex);
        was_last = side.inherited.erase({device, pool}) != 0 && side.inherited.empty();
        if (was_last) {
            ductile_capture_end();
            serve_by_whom_it_is_now();
        }
    }
    if (was_last && !is_off()) {
        empty_native();
    }
}

static void make_room_for_native(Device &device) {
    ductile_allocator *a = device.opened();
    if (a != nullptr) {
        std::ignore = ductile_trim(a, nullptr, 0, nullptr);
    }
    share_limit(device);
}

/* ---- Who serves ----------------------------------------------------------------------------- */

void stay_with_native() {
    const std::lock_guard<std::mutex> lock(side.mutex);
    side.off = true;
    serve_by_whom_it_is_now();
}

bool is_off() {
    return (special.load(std::memory_order_relaxed) & kNative) != 0 && side.off;
}

void serve_by_ductile() {
    {
        const std::lock_guard<std::mutex> lock(side.mutex);
        bool is_first = !std::exchange(side.is_ours, true);
        if (is_first && is_native_in_use()) {
            side.look_until = Clock::now() + kSettlingTime;
            special.fetch_or(kSettling);
            inherit();
        }
        side.off = false;
        serve_by_whom_it_is_now();
    }
    empty_native();
    share_limits();
}

void serve_by_native() {
    {
        const std::lock_guard<std::mutex> lock(side.mutex);
        side.off = true;
        side.is_ours = true;
        serve_by_whom_it_is_now();
    }
    for (Device &device : AllDevices()) {
        if (device.opened() != nullptr) {
            make_room_for_native(device); /* what stays serves a request later */
        }
    }
}

bool newcomers_go_to_native(cudaStream_t stream) {
    unsigned flags = special.load(std::memory_order_acquire);
    if ((flags & kNative) != 0 || (flags & kSettling) == 0) {
        return (flags & kNative) != 0;
    }
    const std::lock_guard<std::mutex> lock(side.mutex);
    return look_once_more(stream);
}

/* ---- Pools and captures --------------------------------------------------------------------- */

bool native_holds_pool(DeviceIndex device, const MempoolId_t &pool) {
    return is_native_in_use() &&
           ask(false, [&] { return native->getPoolUseCount(device, pool) > 0; });
}

void retain_native_pool(DeviceIndex device, const MempoolId_t &pool) {
#if DUCTILE_TORCH_MINOR >= 8
    native_allocator()->createOrIncrefPool(device, pool, nullptr);
#else
    native_allocator()->ensureExistsAndIncrefPool(device, pool);
#endif
}

void begin_native_pool(DeviceIndex device, const MempoolId_t &pool,
                       std::function<bool(cudaStream_t)> filter) {
    const std::lock_guard<std::mutex> lock(side.opening);
    native_allocator()->beginAllocateToPool(device, pool, std::move(filter));
}

namespace {

/* Pools that nothing belongs to, for captures of Ductile: made when needed, and kept. */
constexpr uint64_t kFirstNotice = uint64_t{1} << 62;
std::mutex notices_mutex;
auto &notices = *new std::set<PoolOfDevice>(); /* those that are open */
std::atomic<int> n_notices{0};

} // namespace

NativeNotice::NativeNotice(DeviceIndex device) : device_(device) {
    n_notices++;
    if (!is_native_in_use()) {
        return;
    }
    const std::lock_guard<std::mutex> lock(notices_mutex);
    MempoolId_t pool = {0, kFirstNotice};
    while (notices.count({device, pool}) != 0) {
        pool.second++;
    }
    try_to([&] {
        if (!native_holds_pool(device, pool)) {
            retain_native_pool(device, pool); /* one without a reference cannot be opened again */
        }
        begin_native_pool(device, pool, [](cudaStream_t) { return false; });
        notices.insert({device, pool});
        pool_ = pool;
    });
}

NativeNotice::~NativeNotice() {
    n_notices--;
    if (is_default_pool(pool_)) {
        return;
    }
    const std::lock_guard<std::mutex> lock(notices_mutex);
    try_to([&] {
        native->endAllocateToPool(device_, pool_);
        native->releasePool(device_, pool_);
    });
    notices.erase({device_, pool_});
}

/* ---- One limit ------------------------------------------------------------------------------ */

namespace {

constexpr size_t kAll = static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE);

uint64_t device_bytes(const Device &device) {
    auto limits = sized<ductile_limits>();
    ductile_allocator *a = device.opened();
    return a != nullptr && ductile_get_limits(a, &limits) == DUCTILE_OK ? limits.device_bytes : 0;
}

/* Bytes that native holds in no live block. */
uint64_t native_free(DeviceIndex device) {
    return ask(uint64_t{0}, [&] {
        DeviceStats stats = native->getDeviceStats(device);
        int64_t used = stats.allocated_bytes[kAll].current;
        return static_cast<uint64_t>(
            std::max<int64_t>(stats.reserved_bytes[kAll].current - used, 0));
    });
}

/* Native makes the device the current one. */
void limit_native(const Device &device, double fraction) {
    const c10::cuda::CUDAGuard guard(device.index);
    native->setMemoryFraction(fraction, device.index);
}

/* What the library may hold more than before. */
uint64_t widen(Device &device) {
    double before = device.native_share;
    share_limit(device);
    double more = before - device.native_share;
    return more > 0 ? static_cast<uint64_t>(more * static_cast<double>(device_bytes(device))) : 0;
}

uint64_t give_native_memory(void *user, ductile_allocator *, uint64_t, ductile_stream) {
    return reclaim_from_native(*static_cast<Device *>(user));
}

thread_local bool asked_first = false;

} // namespace

uint64_t native_reserved(DeviceIndex device) {
    return !is_native_in_use() ? 0 : ask(uint64_t{0}, [&] {
        return static_cast<uint64_t>(native->getDeviceStats(device).reserved_bytes[kAll].current);
    });
}

void share_limit(Device &device) {
    bool is_capped = is_native_in_use() && device.fraction < 1.0;
    auto total = is_capped ? static_cast<double>(device_bytes(device)) : 0;
    if (total == 0) {
        device.native_share = 0;
        return;
    }
    try_to([&] {
        device.native_share = static_cast<double>(native_reserved(device.index)) / total;
        device.apply_fraction();
        double own = static_cast<double>(read_stats(device).reserved_bytes) / total;
        limit_native(device, std::max(device.fraction - own, 0.0));
    });
}

void share_limits() {
    for (Device &device : AllDevices()) {
        share_limit(device);
    }
}

void follow_fraction(Device &device) {
    if (is_native_in_use()) {
        try_to([&] { limit_native(device, device.fraction); });
        share_limit(device);
    }
}

/* A capture of whichever side forbids to free memory, or breaks by it. */
void empty_native() {
    if (!is_native_in_use() || n_notices != 0 || count_inherited() != 0) {
        return;
    }
    (void)ask(false, [] {
#if DUCTILE_TORCH_MINOR >= 8
        native->emptyCache({0, 0});
#else
        native->emptyCache();
#endif
        return true;
    });
}

uint64_t reclaim_from_native(Device &device) {
    if (!is_native_in_use()) {
        return 0;
    }
    uint64_t before = native_reserved(device.index);
    if (native_free(device.index) != 0) {
        empty_native();
    }
    uint64_t after = native_reserved(device.index);
    uint64_t widened = widen(device);
    return std::max(before > after ? before - after : 0, widened);
}

void ask_native_for_memory(Device &device, ductile_allocator *allocator) {
    uint64_t id = 0;
    if (ductile_add_oom_callback(allocator, give_native_memory, &device, 0, &id) != DUCTILE_OK) {
        TORCH_WARN("Ductile will not ask PyTorch's own allocator for its free memory");
    }
}

bool is_first_try() {
    return asked_first;
}

namespace {

/* nullptr: native has no memory. */
void *try_native(size_t size, cudaStream_t stream) {
    struct FirstTry {
        FirstTry() {
            asked_first = true;
        }
        ~FirstTry() {
            asked_first = false;
        }
    };
    try {
        const FirstTry first;
        return native_allocator()->raw_alloc_with_stream(size, stream);
    } catch (const c10::OutOfMemoryError &) {
        return nullptr;
    }
}

} // namespace

/* While Ductile is off only native grows, which its latest share allows. */
void *take_native(Device &device, size_t size, cudaStream_t stream) {
    bool is_shared = !is_off();
    if (is_shared) {
        share_limit(device);
    }
    void *ptr = try_native(size, stream);
    if (ptr == nullptr) {
        make_room_for_native(device);
        ptr = native_allocator()->raw_alloc_with_stream(size, stream);
    }
    if (is_shared) {
        share_limit(device);
    }
    return ptr;
}

} // namespace ductile_torch
