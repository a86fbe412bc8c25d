/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch's own allocator that notes which of its functions are called, and passes
 * each on to the real one. Part of adapter_driver.cpp.
 */

namespace {

using Device = c10::DeviceIndex;
using Pool = c10::cuda::MempoolId_t;

std::mutex heard_mutex;
std::string heard; /* names, each with a space behind it */

class Listener final : public caching::CUDAAllocator {
  public:
    explicit Listener(caching::CUDAAllocator *real) : real_(real) {
    }

#define NOTED(name) (note(#name), real_)->name
#define PASS(returned, name, parameters, ...)                                                      \
    returned name parameters override {                                                            \
        return NOTED(name)(__VA_ARGS__);                                                           \
    }
    PASS(c10::DataPtr, allocate, (size_t size), size)
    c10::DeleterFnPtr raw_deleter() const override {
        return real_->raw_deleter();
    }
    PASS(void, copy_data, (void *dest, const void *src, std::size_t count) const, dest, src, count)
    PASS(void, init, (int count), count)
    PASS(bool, initialized, (), )
    PASS(std::string, name, (), )
    PASS(void, enable, (bool value), value)
    PASS(bool, isEnabled, () const, )
    PASS(void *, raw_alloc, (size_t size), size)
    PASS(void *, raw_alloc_with_stream, (size_t size, cudaStream_t stream), size, stream)
    PASS(void, raw_delete, (void *ptr), ptr)
    PASS(void, recordStream, (const c10::DataPtr &ptr, c10::cuda::CUDAStream stream), ptr, stream)
    PASS(void, cacheInfo, (Device device, size_t *largest), device, largest)
    PASS(void *, getBaseAllocation, (void *ptr, size_t *size), ptr, size)
    PASS(double, getMemoryFraction, (Device device), device)
    PASS(void, setMemoryFraction, (double fraction, Device device), fraction, device)
    PASS(caching::DeviceStats, getDeviceStats, (Device device), device)
    PASS(void, resetAccumulatedStats, (Device device), device)
    PASS(void, resetPeakStats, (Device device), device)
    PASS(bool, isHistoryEnabled, (), )
    PASS(void, recordAnnotation, (const std::vector<std::pair<std::string, std::string>> &md), md)
    PASS(void, attachOutOfMemoryObserver, (caching::OutOfMemoryObserver observer),
         std::move(observer))
    PASS(void, attachAllocatorTraceTracker, (caching::AllocatorTraceTracker tracker),
         std::move(tracker))
    PASS(void, beginAllocateToPool,
         (Device device, Pool pool, std::function<bool(cudaStream_t)> filter), device, pool,
         std::move(filter))
    PASS(void, endAllocateToPool, (Device device, Pool pool), device, pool)
    PASS(void, releasePool, (Device device, Pool pool), device, pool)
    PASS(int, getPoolUseCount, (Device device, Pool pool), device, pool)
    PASS(bool, checkPoolLiveAllocations,
         (Device device, Pool pool, const std::unordered_set<void *> &live), device, pool, live)
    PASS(std::shared_ptr<caching::AllocatorState>, getCheckpointState, (Device device, Pool pool),
         device, pool)
    PASS(caching::CheckpointDelta, setCheckpointPoolState,
         (Device device, std::shared_ptr<caching::AllocatorState> state), device, std::move(state))
    PASS(caching::ShareableHandle, shareIpcHandle, (void *ptr), ptr)
    PASS(std::shared_ptr<void>, getIpcDevPtr, (std::string handle), std::move(handle))
    PASS(void, enablePeerAccess, (Device device, Device peer), device, peer)
    PASS(cudaError_t, memcpyAsync,
         (void *to, int to_device, const void *from, int from_device, size_t count,
          cudaStream_t stream, bool p2p),
         to, to_device, from, from_device, count, stream, p2p)
#if DUCTILE_TORCH_MINOR >= 8
    PASS(void, emptyCache, (Pool pool), pool)
    PASS(void, pushCompileContext, (std::string & text), text)
    PASS(void, popCompileContext, (), )
#else
    PASS(void, emptyCache, (), )
    PASS(void, ensureExistsAndIncrefPool, (Device device, Pool pool), device, pool)
#endif
#if DUCTILE_TORCH_MINOR >= 11
    PASS(caching::SnapshotInfo, snapshot, (Pool pool, bool traces), pool, traces)
    PASS(void, recordHistory,
         (bool on, caching::CreateContextFn recorder, size_t entries, caching::RecordContext when,
          bool clear, const std::vector<std::string> &skipped),
         on, recorder, entries, when, clear, skipped)
    PASS(void, createOrIncrefPool,
         (Device device, Pool pool, std::shared_ptr<caching::CUDAAllocator> own), device, pool,
         std::move(own))
    PASS(void, setUseOnOOM, (Device device, Pool pool, bool on), device, pool, on)
#elif DUCTILE_TORCH_MINOR >= 8
    PASS(caching::SnapshotInfo, snapshot, (Pool pool), pool)
    PASS(void, recordHistory,
         (bool on, caching::CreateContextFn recorder, size_t entries, caching::RecordContext when,
          bool clear),
         on, recorder, entries, when, clear)
    PASS(void, createOrIncrefPool, (Device device, Pool pool, caching::CUDAAllocator *own), device,
         pool, own)
    PASS(void, setUseOnOOM, (Device device, Pool pool), device, pool)
#else
    PASS(caching::SnapshotInfo, snapshot, (), )
    PASS(void, recordHistory,
         (bool on, caching::CreateContextFn recorder, size_t entries, caching::RecordContext when),
         on, recorder, entries, when)
#endif
#if DUCTILE_TORCH_MINOR >= 10
    PASS(std::vector<caching::StreamSegmentSize>, getExpandableSegmentSizes, (Device device),
         device)
    std::pair<size_t, size_t> getMemoryInfo(Device device) override {
        return NOTED(getMemoryInfo)(device);
    }
    PASS(void, setUserMetadata, (const std::string &text), text)
    PASS(std::string, getUserMetadata, (), )
    PASS(void, setNoSplit, (Device device, Pool pool), device, pool)
#endif
#if DUCTILE_TORCH_MINOR >= 12
    PASS(std::shared_ptr<c10::GatheredContext>, getContextForPointer, (const void *ptr), ptr)
    PASS(void, attachOomRejectionObserver, (caching::OomRejectionObserver observer),
         std::move(observer))
#endif
#if DUCTILE_TORCH_MINOR >= 13
    PASS(void, markCaptureBegin, (Device device), device)
    PASS(void, markCaptureEnd, (Device device), device)
    PASS(c10::DataPtr, allocateWithAddress, (size_t size, void *address), size, address)
#endif
#if DUCTILE_TORCH_MINOR >= 14
    PASS(bool, supportsUserMetadata, (), )
    PASS(void, annotateMemory, (const void *ptr, const std::string &text), ptr, text)
#endif
#undef PASS
#undef NOTED

  private:
    static void note(const char *name) {
        const std::lock_guard<std::mutex> lock(heard_mutex);
        heard += std::string(name) + " ";
    }
    caching::CUDAAllocator *real_;
};

/* What a call is made on: a block, and a pool with a block in it. */
struct Thing {
    void *block = nullptr;
    Pool pool{0, 0};
    std::shared_ptr<caching::AllocatorState> state;
};
Thing things[2]; /* native's, Ductile's */

using Call = std::function<void(caching::CUDAAllocator &, Thing &)>;

std::function<bool(cudaStream_t)> own_thread() {
    auto self = std::this_thread::get_id();
    return [self](cudaStream_t) { return std::this_thread::get_id() == self; };
}

void make_pool(Pool pool) {
#if DUCTILE_TORCH_MINOR >= 8
    caching::createOrIncrefPool(0, pool);
#else
    caching::ensureExistsAndIncrefPool(0, pool);
#endif
}

void record(caching::CUDAAllocator &a) {
#if DUCTILE_TORCH_MINOR >= 11
    a.recordHistory(true, no_stack, 10, caching::RecordContext::ALL, false, {});
#elif DUCTILE_TORCH_MINOR >= 8
    a.recordHistory(true, no_stack, 10, caching::RecordContext::ALL, false);
#else
    a.recordHistory(true, no_stack, 10, caching::RecordContext::ALL);
#endif
}

/* One call of each virtual function that is about memory, pools or the allocator as a whole. */
const std::map<std::string, Call> &calls() {
    using A = caching::CUDAAllocator;
    static const std::map<std::string, Call> all = {
        {"allocate", [](A &a, Thing &) { (void)a.allocate(512); }},
        {"raw_alloc", [](A &a, Thing &) { a.raw_delete(a.raw_alloc(512)); }},
        {"raw_alloc_with_stream",
         [](A &a, Thing &) { a.raw_delete(a.raw_alloc_with_stream(512, nullptr)); }},
        {"raw_deleter", [](A &a, Thing &t) { a.raw_deleter()(t.block), t.block = nullptr; }},
        {"raw_delete", [](A &a, Thing &t) { a.raw_delete(t.block), t.block = nullptr; }},
        {"copy_data", [](A &a, Thing &t) { a.copy_data(t.block, t.block, 1); }},
        {"init", [](A &a, Thing &) { a.init(1); }},
        {"initialized", [](A &a, Thing &) { TORCH_CHECK(a.initialized()); }},
        {"name", [](A &a, Thing &) { TORCH_CHECK(a.name() == "ductile"); }},
        {"enable", [](A &a, Thing &) { a.enable(true); }},
        {"isEnabled", [](A &a, Thing &) { TORCH_CHECK(a.isEnabled()); }},
        {"recordStream",
         [](A &a, Thing &t) {
             c10::DataPtr ptr(t.block, t.block, a.raw_deleter(), c10::Device("cuda:0"));
             a.recordStream(ptr, c10::cuda::getStreamFromPool());
             (void)ptr.release_context();
         }},
        {"cacheInfo", [](A &a, Thing &) { size_t largest = 1; a.cacheInfo(0, &largest); }},
        {"getBaseAllocation", [](A &a, Thing &t) { (void)a.getBaseAllocation(t.block, nullptr); }},
        {"getMemoryFraction", [](A &a, Thing &) { (void)a.getMemoryFraction(0); }},
        {"setMemoryFraction", [](A &a, Thing &) { a.setMemoryFraction(1.0, 0); }},
        {"getDeviceStats", [](A &a, Thing &) { (void)a.getDeviceStats(0); }},
        {"resetAccumulatedStats", [](A &a, Thing &) { a.resetAccumulatedStats(0); }},
        {"resetPeakStats", [](A &a, Thing &) { a.resetPeakStats(0); }},
        {"isHistoryEnabled", [](A &a, Thing &) { (void)a.isHistoryEnabled(); }},
        {"recordHistory", [](A &a, Thing &) { record(a); }},
        {"recordAnnotation", [](A &a, Thing &) { a.recordAnnotation({{"name", "x"}}); }},
        {"attachOutOfMemoryObserver",
         [](A &a, Thing &) {
             a.attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) {});
         }},
        {"attachAllocatorTraceTracker",
         [](A &a, Thing &) {
             a.attachAllocatorTraceTracker([](const caching::TraceEntry &) {});
         }},
        {"snapshot", [](A &a, Thing &) { (void)a.snapshot(); }},
        {"emptyCache", [](A &a, Thing &) { a.emptyCache(); }},
        {"beginAllocateToPool",
         [](A &a, Thing &t) { a.beginAllocateToPool(0, t.pool, own_thread()); }},
        {"endAllocateToPool", [](A &a, Thing &t) { a.endAllocateToPool(0, t.pool); }},
        {"releasePool", [](A &a, Thing &t) { a.releasePool(0, t.pool); }},
        {"getPoolUseCount",
         [](A &a, Thing &t) { TORCH_CHECK(a.getPoolUseCount(0, t.pool) == 1); }},
#if DUCTILE_TORCH_MINOR >= 8
        {"createOrIncrefPool",
         [](A &a, Thing &t) { a.createOrIncrefPool(0, t.pool), a.releasePool(0, t.pool); }},
        {"pushCompileContext", [](A &a, Thing &) { std::string text("x"); a.pushCompileContext(text); }},
        {"popCompileContext", [](A &a, Thing &) { a.popCompileContext(); }},
#else
        {"ensureExistsAndIncrefPool",
         [](A &a, Thing &t) { a.ensureExistsAndIncrefPool(0, t.pool), a.releasePool(0, t.pool); }},
#endif
#if DUCTILE_TORCH_MINOR >= 11
        {"setUseOnOOM", [](A &a, Thing &t) { a.setUseOnOOM(0, t.pool, true), a.setUseOnOOM(0, t.pool, false); }},
#elif DUCTILE_TORCH_MINOR >= 8
        {"setUseOnOOM", [](A &a, Thing &t) { a.setUseOnOOM(0, t.pool); }},
#endif
        {"checkPoolLiveAllocations",
         [](A &a, Thing &t) { (void)a.checkPoolLiveAllocations(0, t.pool, {}); }},
        {"getCheckpointState",
         [](A &a, Thing &t) { t.state = a.getCheckpointState(0, t.pool); }},
        {"setCheckpointPoolState",
         [](A &a, Thing &t) {
             caching::CheckpointDelta delta = a.setCheckpointPoolState(0, t.state);
             for (auto &ptr : delta.dataptrs_allocd) {
                 (void)ptr.release_context();
             }
         }},
        {"shareIpcHandle", [](A &a, Thing &t) { (void)a.shareIpcHandle(t.block); }},
        {"getIpcDevPtr", [](A &a, Thing &t) { (void)a.getIpcDevPtr(a.shareIpcHandle(t.block).handle); }},
        {"enablePeerAccess",
         [](A &a, Thing &) {
             try {
                 a.enablePeerAccess(0, 0);
             } catch (const c10::Error &) { /* no GPU is its own peer to Ductile, asked last */
             }
         }},
        {"memcpyAsync",
         [](A &a, Thing &t) { (void)a.memcpyAsync(t.block, 0, t.block, 0, 1, nullptr, false); }},
#if DUCTILE_TORCH_MINOR >= 10
        {"getExpandableSegmentSizes", [](A &a, Thing &) { (void)a.getExpandableSegmentSizes(0); }},
        {"getMemoryInfo", [](A &a, Thing &) { (void)a.getMemoryInfo(0); }},
        {"setUserMetadata", [](A &a, Thing &) { a.setUserMetadata("x"); }},
        {"getUserMetadata", [](A &a, Thing &) { TORCH_CHECK(a.getUserMetadata() == "x"); }},
        {"setNoSplit", [](A &a, Thing &t) { a.setNoSplit(0, t.pool); }},
#endif
#if DUCTILE_TORCH_MINOR >= 12
        {"getContextForPointer", [](A &a, Thing &t) { (void)a.getContextForPointer(t.block); }},
        {"attachOomRejectionObserver",
         [](A &a, Thing &) {
             a.attachOomRejectionObserver([](int64_t, size_t, size_t, size_t) {});
         }},
#endif
#if DUCTILE_TORCH_MINOR >= 13
        {"markCaptureBegin", [](A &a, Thing &) { a.markCaptureBegin(0); }},
        {"markCaptureEnd", [](A &a, Thing &) { a.markCaptureEnd(0); }},
        {"allocateWithAddress",
         [](A &a, Thing &t) {
             a.raw_delete(t.block);
             (void)a.allocateWithAddress(512, t.block).release_context();
         }},
#endif
#if DUCTILE_TORCH_MINOR >= 14
        {"supportsUserMetadata", [](A &a, Thing &) { TORCH_CHECK(a.supportsUserMetadata()); }},
        {"annotateMemory", [](A &a, Thing &t) { a.annotateMemory(t.block, "x"); }},
#endif
    };
    return all;
}

} // namespace

/* Puts the stand-in in native's place, before Ductile comes. */
API const char *probe_stand_in(void) {
    return guarded([] { caching::allocator.store(new Listener(caching::get())); });
}

/* A block, and a pool, of the allocator that serves now. */
API const char *probe_make_things(int which) {
    return guarded([which] {
        Thing &t = things[which];
        t.block = caching::raw_alloc_with_stream(512, nullptr);
        t.pool = new_graph_pool();
        make_pool(t.pool);
    });
}

/* Makes the call; returns what the stand-in has heard meanwhile. */
API const char *probe_route(const char *name, int which, const char **names) {
    static std::string copy;
    return guarded([&] {
        auto found = calls().find(name);
        TORCH_CHECK(found != calls().end(), "there is no call of ", name);
        heard.clear();
        std::shared_ptr<void> answer_at_the_end(nullptr, [&](void *) {
            copy = heard;
            *names = copy.c_str();
        });
        found->second(*caching::get(), things[which]);
    });
}
