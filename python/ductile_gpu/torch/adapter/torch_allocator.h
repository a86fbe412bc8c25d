/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The class that PyTorch calls. Every virtual function of every version from 2.6 on is here; the
 * ones that only some versions have are marked with the version they came with, those that were
 * replaced since have no mark.
 */
#ifndef DUCTILE_TORCH_ALLOCATOR_H
#define DUCTILE_TORCH_ALLOCATOR_H

#include "torch_device.h"

namespace ductile_torch {

class Allocator final : public caching::CUDAAllocator {
  public:
    /* c10::Allocator */
    c10::DataPtr allocate(size_t size) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void *dest, const void *src, std::size_t count) const override;

    /* life */
    void init(int device_count) override;
    bool initialized() override;
    std::string name() override;
    void enable(bool value) override;
    bool isEnabled() const override;

    /* memory */
    void *raw_alloc(size_t nbytes) override;
    void *raw_alloc_with_stream(size_t nbytes, cudaStream_t stream) override;
    void raw_delete(void *ptr) override;
    void recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream) override;
    void emptyCache();
    void emptyCache(MempoolId_t pool) OVERRIDE_SINCE_8;
    void cacheInfo(DeviceIndex device, size_t *largest) override;
    void *getBaseAllocation(void *ptr, size_t *size) override;
    double getMemoryFraction(DeviceIndex device) override;
    void setMemoryFraction(double fraction, DeviceIndex device) override;
#if DUCTILE_TORCH_MINOR >= 10
    std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
    std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override;
#endif

    /* statistics */
    DeviceStats getDeviceStats(DeviceIndex device) override;
    void resetAccumulatedStats(DeviceIndex device) override;
    void resetPeakStats(DeviceIndex device) override;

    /* history */
    SnapshotInfo snapshot();
    SnapshotInfo snapshot(MempoolId_t pool);
    SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) OVERRIDE_SINCE_11;
    bool isHistoryEnabled() override;
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                       RecordContext when);
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                       RecordContext when, bool clear);
    void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                       RecordContext when, bool clear,
                       const std::vector<std::string> &skipped) OVERRIDE_SINCE_11;
    Context getContextForPointer(const void *ptr) OVERRIDE_SINCE_12;
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &values) override;
    void pushCompileContext(std::string &text) OVERRIDE_SINCE_8;
    void popCompileContext() OVERRIDE_SINCE_8;
    void setUserMetadata(const std::string &text) OVERRIDE_SINCE_10;
    std::string getUserMetadata() OVERRIDE_SINCE_10;
    bool supportsUserMetadata() OVERRIDE_SINCE_14;
    void annotateMemory(const void *ptr, const std::string &text) OVERRIDE_SINCE_14;
    void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override;
#if DUCTILE_TORCH_MINOR >= 12
    void attachOomRejectionObserver(caching::OomRejectionObserver observer) override;
#endif
    void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override;

    /* private pools */
    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, StreamFilter filter) override;
    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
    void markCaptureBegin(DeviceIndex device) OVERRIDE_SINCE_13;
    void markCaptureEnd(DeviceIndex device) OVERRIDE_SINCE_13;
    void releasePool(DeviceIndex device, MempoolId_t pool) override;
    int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
    void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t pool);
    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, caching::CUDAAllocator *own);
    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                            std::shared_ptr<caching::CUDAAllocator> own) OVERRIDE_SINCE_11;
    void setUseOnOOM(DeviceIndex device, MempoolId_t pool);
    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool on) OVERRIDE_SINCE_11;
    void setNoSplit(DeviceIndex device, MempoolId_t pool) OVERRIDE_SINCE_10;
    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                  const std::unordered_set<void *> &expected) override;
    std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device,
                                                                MempoolId_t pool) override;
    caching::CheckpointDelta
    setCheckpointPoolState(DeviceIndex device,
                           std::shared_ptr<caching::AllocatorState> state) override;
    c10::DataPtr allocateWithAddress(size_t size, void *address) OVERRIDE_SINCE_13;

    /* other processes and devices */
    caching::ShareableHandle shareIpcHandle(void *ptr) override;
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t count, cudaStream_t stream, bool p2p_enabled) override;
};

/* A block at this address, in free memory of the stream. */
c10::DataPtr allocate_at(Device &device, size_t size, void *address, cudaStream_t stream);

/* What tensors' deleters call. */
void delete_block(void *ptr);

extern std::atomic<bool> caching_enabled;

/* PyTorch exchanges no allocator that is in use: this thread takes Ductile for one that is not. */
extern thread_local bool is_being_installed;

/* Before a block is freed that other processes may have been told of. */
void forget_export(ductile_allocator *allocator, void *ptr);

/* Refused requests. */
bool is_rejection(Device &device);
bool run_free_memory_callbacks();
[[noreturn]] void raise_out_of_memory(Device &device, size_t size, cudaStream_t stream,
                                      Context context);
[[noreturn]] void raise_asleep(Device &device, size_t size);

} // namespace ductile_torch

#endif
