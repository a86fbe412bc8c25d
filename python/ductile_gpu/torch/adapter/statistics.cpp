/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics. Ductile has one pool for all sizes, so everything counts as "large_pool" beside
 * "all", as the snapshot's segments do: PyTorch's own consistency rule ties the two.
 */
#include "torch_allocator.h"

#include <algorithm>

namespace ductile_torch {

namespace {

template <typename Array> void set_both(Array &array, const Stat &stat) {
    array[static_cast<size_t>(c10::CachingDeviceAllocator::StatType::AGGREGATE)] = stat;
    array[static_cast<size_t>(c10::CachingDeviceAllocator::StatType::LARGE_POOL)] = stat;
}

Stat make_stat(uint64_t current, uint64_t peak, uint64_t allocated) {
    Stat stat;
    stat.current = static_cast<int64_t>(current);
    stat.peak = static_cast<int64_t>(std::max(peak, current));
    stat.allocated = static_cast<int64_t>(allocated);
    stat.freed = stat.allocated - stat.current;
    return stat;
}

struct Extra {
    uint64_t requested_pending = 0;
    uint64_t over_requested = 0; /* by roundup_power2_divisions */
};

Extra read_extra(Device &device, const ductile_stats &stats) {
    Extra extra;
    if (stats.pending_blocks != 0) {
        walk_blocks(device.open(), [&](const ductile_block_info &block) {
            bool is_pending = block.state == DUCTILE_BLOCK_PENDING;
            extra.requested_pending += is_pending ? block.requested_size : 0;
        });
    }
    for (const auto &block : device.asked) {
        auto info = sized<ductile_block_info>();
        if (ductile_query_block(device.open(), to_address(block.first), &info) == DUCTILE_OK) {
            extra.over_requested += info.requested_size - block.second;
        }
    }
    return extra;
}

/* Since the process began. */
DeviceStats measure(Device &device) {
    ductile_stats s = read_stats(device);
    Extra extra = read_extra(device, s);
    uint64_t requested = s.requested_bytes + extra.requested_pending - extra.over_requested;
    DeviceStats out;
    set_both(out.allocation, make_stat(s.live_blocks, s.live_peak_blocks, s.allocs));
    set_both(out.active, make_stat(s.live_blocks + s.pending_blocks, s.live_peak_blocks, s.allocs));
    set_both(out.allocated_bytes,
             make_stat(s.allocated_bytes, s.allocated_peak_bytes, s.allocated_total_bytes));
    set_both(out.active_bytes, make_stat(s.allocated_bytes + s.pending_bytes, s.active_peak_bytes,
                                         s.allocated_total_bytes));
    set_both(out.requested_bytes, make_stat(requested, s.requested_peak_bytes,
                                            s.requested_total_bytes - device.rounded_up));
    set_both(out.reserved_bytes, make_stat(held_of(s), s.reserved_peak_bytes + s.spilled_peak_bytes,
                                           s.created_total_bytes + s.spilled_total_bytes));
    /* memory went back, to be created again: as native's flush and retry */
    out.num_alloc_retries = device.failures.retries + static_cast<int64_t>(s.pressure_returns);
    out.num_ooms = device.failures.ooms;
    out.num_sync_all_streams = static_cast<int64_t>(s.stream_syncs);
    out.num_device_alloc = static_cast<int64_t>(s.creates);
    out.num_device_free = static_cast<int64_t>(s.releases);
    out.max_split_size = -1; /* blocks always split */
#if DUCTILE_TORCH_MINOR >= 12
    out.num_oom_rejections = device.failures.rejections;
#endif
    return out;
}

void add(Stat &to, const Stat &from) {
    to.current += from.current;
    to.peak += from.peak;
    to.allocated += from.allocated;
    to.freed += from.freed;
}

/* What there was at a baseline counts neither as allocated nor as freed. */
void leave_out(Stat &of, const Stat &baseline) {
    of.allocated -= baseline.allocated;
    of.freed -= baseline.freed;
}

template <typename Array, typename Change>
void change_all(Array &to, const Array &by, Change change) {
    for (size_t i = 0; i < to.size(); i++) {
        change(to[i], by[i]);
    }
}

/* Each statistic but those of pools, by its counterpart; numbers are added, or subtracted. */
template <typename Change>
void change_by(DeviceStats &to, const DeviceStats &by, int sign, Change change) {
    change_all(to.allocation, by.allocation, change);
    change_all(to.segment, by.segment, change);
    change_all(to.active, by.active, change);
    change_all(to.inactive_split, by.inactive_split, change);
    change_all(to.allocated_bytes, by.allocated_bytes, change);
    change_all(to.reserved_bytes, by.reserved_bytes, change);
    change_all(to.active_bytes, by.active_bytes, change);
    change_all(to.inactive_split_bytes, by.inactive_split_bytes, change);
    change_all(to.requested_bytes, by.requested_bytes, change);
    change(to.oversize_allocations, by.oversize_allocations);
    change(to.oversize_segments, by.oversize_segments);
    to.num_alloc_retries += sign * by.num_alloc_retries;
    to.num_ooms += sign * by.num_ooms;
    to.num_sync_all_streams += sign * by.num_sync_all_streams;
    to.num_device_alloc += sign * by.num_device_alloc;
    to.num_device_free += sign * by.num_device_free;
#if DUCTILE_TORCH_MINOR >= 12
    to.num_oom_rejections += sign * by.num_oom_rejections;
#endif
}

DeviceStats describe(Device &device) {
    DeviceStats out = measure(device);
    change_by(out, device.baseline, -1, leave_out);
#if DUCTILE_TORCH_MINOR >= 13
    device.pools.look_at_held();
    for (const auto &pool : device.pools.held()) {
        set_both(out.reserved_bytes_by_private_pools[pool.first], pool.second);
    }
#endif
    return out;
}

/* Peaks of the two are added: they need not have been at the same moment. */
void add_native(DeviceStats &to, const DeviceStats &from) {
    change_by(to, from, 1, add);
#if DUCTILE_TORCH_MINOR >= 13
    for (const auto &pool : from.reserved_bytes_by_private_pools) {
        change_all(to.reserved_bytes_by_private_pools[pool.first], pool.second, add);
    }
#endif
}

} // namespace

DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
    Device &device = device_at(index);
    DeviceStats stats;
    {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        stats = describe(device);
    }
    tell_native([&](auto &native) { add_native(stats, native.getDeviceStats(index)); });
    return stats;
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
    Device &device = device_at(index);
    const std::lock_guard<std::recursive_mutex> lock(device.mutex);
    device.baseline = measure(device);
    device.pools.reset_accumulated();
    tell_native([&](auto &native) { native.resetAccumulatedStats(index); });
}

void Allocator::resetPeakStats(DeviceIndex index) {
    Device &device = device_at(index);
    ductile_allocator *a = device.opened();
    if (a != nullptr) {
        ductile_reset_peaks(a);
        device.pools.reset_peaks();
    }
    tell_native([&](auto &native) { native.resetPeakStats(index); });
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

/* The largest request that can be hoped for: a free block, or a tail grown by what the device has
 * left. cuDNN chooses its workspace by it. */
void Allocator::cacheInfo(DeviceIndex index, size_t *largest) {
    if (is_off()) {
        return native_allocator()->cacheInfo(index, largest);
    }
    Device &device = device_at(index);
    uint64_t found = 0;
    walk_blocks(device.open(), [&](const ductile_block_info &block) {
        bool serves = block.state == DUCTILE_BLOCK_FREE && block.spilled_bytes == 0;
        found = serves ? std::max(found, block.size) : found;
    });
    if (*largest == 0) {
        size_t free = 0;
        size_t total = 0;
        const c10::cuda::CUDAGuard guard(index);
        C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
        *largest = free;
    }
    *largest = std::max(*largest, static_cast<size_t>(found));
}

#if DUCTILE_TORCH_MINOR >= 10
std::pair<size_t, size_t> Allocator::getMemoryInfo(DeviceIndex device) {
    return caching::CUDAAllocator::getMemoryInfo(device);
}

std::vector<caching::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
    std::vector<caching::StreamSegmentSize> sizes;
    for (const Run &run : list_runs(device_at(index))) {
        auto stream = to_cuda(run.stream);
        auto same = [&](const caching::StreamSegmentSize &s) { return s.stream == stream; };
        auto found = std::find_if(sizes.begin(), sizes.end(), same);
        if (found == sizes.end()) {
            sizes.emplace_back(stream, false, run.size);
        } else {
            found->total_size += run.size;
        }
    }
    if (is_native_in_use()) {
        auto more = native_allocator()->getExpandableSegmentSizes(index);
        sizes.insert(sizes.end(), more.begin(), more.end());
    }
    return sizes;
}
#endif

double Allocator::getMemoryFraction(DeviceIndex device) {
    return device_at(device).fraction;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
    TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                ". Please set within [0, 1].");
    Device &device = device_at(index);
    device.fraction = fraction;
    device.apply_fraction();
    follow_fraction(device);
}

} // namespace ductile_torch
