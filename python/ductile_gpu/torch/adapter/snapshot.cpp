/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: segments with their blocks, and the history. */
#include "torch_allocator.h"

#include "torch_settings.h"

#include <algorithm>

namespace ductile_torch {

namespace {

/* One walk of a device. A segment is what lies between two spans without memory. */
struct Collector {
    Device &device;
    const MempoolId_t &only;
    std::vector<SegmentInfo> segments;
    ductile_addr end = 0; /* of the latest segment, which the next block may continue */

    bool is_wanted(const ductile_block_info &block) const {
        return is_default_pool(only) || pool_of_block(block) == only;
    }

    void add(const ductile_block_info &block) {
        if (!has_memory(block.state) || !is_wanted(block)) {
            return;
        }
        if (segments.empty() || end != block.address ||
            segments.back().stream != static_cast<void *>(block.stream) ||
            segments.back().owner_private_pool_id != pool_of_block(block)) {
            open_segment(block);
        }
        extend(segments.back(), block);
        end = block.address + block.size;
    }

    void open_segment(const ductile_block_info &block) {
        SegmentInfo segment;
        segment.device = device.index;
        segment.address = static_cast<size_t>(block.address);
        segment.stream = reinterpret_cast<decltype(segment.stream)>(block.stream);
        segment.is_large = true;
        segment.is_expandable = true;
        segment.owner_private_pool_id = pool_of_block(block);
        segments.push_back(std::move(segment));
    }

    size_t requested(const ductile_block_info &block) const {
        auto asked = device.asked.find(to_pointer(block.address));
        return asked != device.asked.end() && block.state == DUCTILE_BLOCK_LIVE
                   ? asked->second
                   : static_cast<size_t>(block.requested_size);
    }

    void extend(SegmentInfo &segment, const ductile_block_info &block) {
        bool is_live = block.state == DUCTILE_BLOCK_LIVE;
        bool is_active = is_live || block.state == DUCTILE_BLOCK_PENDING;
        typename std::decay_t<decltype(segment.blocks)>::value_type info;
        info.size = static_cast<size_t>(block.size);
        info.allocated = is_live;
        info.active = is_active;
        segment.total_size += info.size;
        if (is_active) {
            info.requested_size = requested(block);
            segment.active_size += info.size;
            segment.requested_size += info.requested_size;
            const Context *context = device.watch.context_of(block.address);
            info.context_when_allocated = context != nullptr ? *context : nullptr;
        }
        segment.allocated_size += is_live ? info.size : 0;
        segment.blocks.push_back(std::move(info));
    }
};

std::vector<SegmentInfo> list_segments(Device &device, const MempoolId_t &only) {
    Collector collector{device, only, {}, 0};
    ductile_allocator *a = device.opened();
    if (a != nullptr) {
        walk_blocks(a, [&](const ductile_block_info &block) { collector.add(block); });
    }
    return std::move(collector.segments);
}

size_t sum_active(const std::vector<SegmentInfo> &segments) {
    size_t active = 0;
    for (const SegmentInfo &segment : segments) {
        active += segment.active_size;
    }
    return active;
}

/* Entries are stamped with the processor's counter; readers want microseconds since 1970. */
template <typename Entries> void convert_times(Entries &entries) {
    static c10::ApproximateClockToUnixTimeConverter converter;
    auto to_ns = converter.makeConverter();
    for (auto &entry : entries) {
        entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    }
}

bool is_earlier(const TraceEntry &a, const TraceEntry &b) {
    return a.time_.t_ < b.time_.t_;
}

void add_native(SnapshotInfo &to, SnapshotInfo from) {
    to.segments.insert(to.segments.end(), std::make_move_iterator(from.segments.begin()),
                       std::make_move_iterator(from.segments.end()));
    for (size_t i = 0; i < from.device_traces.size() && i < to.device_traces.size(); i++) {
        auto &traces = to.device_traces[i];
        traces.insert(traces.end(), std::make_move_iterator(from.device_traces[i].begin()),
                      std::make_move_iterator(from.device_traces[i].end()));
        std::stable_sort(traces.begin(), traces.end(), is_earlier);
    }
}

SnapshotInfo native_snapshot(const MempoolId_t &pool, bool include_traces) {
#if DUCTILE_TORCH_MINOR >= 11
    return native_allocator()->snapshot(pool, include_traces);
#elif DUCTILE_TORCH_MINOR >= 8
    (void)include_traces;
    return native_allocator()->snapshot(pool);
#else
    (void)pool;
    (void)include_traces;
    return native_allocator()->snapshot();
#endif
}

} // namespace

SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool include_traces) {
    SnapshotInfo out;
    for (Device &device : AllDevices()) {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        if ((special & kWatched) != 0 && device.allocator.load() != nullptr) {
            device.watch.note_changes(nullptr);
        }
        std::vector<SegmentInfo> segments = list_segments(device, pool);
        size_t active = sum_active(segments);
        out.segments.insert(out.segments.end(), std::make_move_iterator(segments.begin()),
                            std::make_move_iterator(segments.end()));
        std::vector<TraceEntry> trace;
        if (include_traces) {
            trace = device.watch.trace.list();
            convert_times(trace);
        }
        /* for the next one, as PyTorch does */
        device.watch.record(TraceEntry::SNAPSHOT, 0, active, nullptr, {0, 0}, nullptr);
        out.device_traces.push_back(std::move(trace));
    }
    std::sort(out.segments.begin(), out.segments.end(),
              [](const SegmentInfo &a, const SegmentInfo &b) { return a.address < b.address; });
    tell_native([&](auto &) { add_native(out, native_snapshot(pool, include_traces)); });
    {
        const std::lock_guard<std::mutex> lock(annotations.mutex);
        out.external_annotations = annotations.latest.list();
    }
    convert_times(out.external_annotations);
    out.config_metadata = describe_settings();
    return out;
}

SnapshotInfo Allocator::snapshot(MempoolId_t pool) {
    return snapshot(pool, true);
}

SnapshotInfo Allocator::snapshot() {
    return snapshot({0, 0}, true);
}

/* ---- History -------------------------------------------------------------------------------- */

bool Allocator::isHistoryEnabled() {
    return history.enabled;
}

namespace {

std::unordered_set<int> parse_skipped(const std::vector<std::string> &names) {
    std::unordered_set<int> skipped;
#if DUCTILE_TORCH_MINOR >= 11
    for (const std::string &name : names) {
        skipped.insert(static_cast<int>(c10::CachingDeviceAllocator::parseTraceEntryAction(name)));
    }
#else
    (void)names;
#endif
    return skipped;
}

bool is_listened_to() {
    AllDevices all;
    return std::any_of(all.begin(), all.end(),
                       [](const Device &device) { return !device.watch.trackers.empty(); });
}

void record_at_native(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                      RecordContext when, bool clear, const std::vector<std::string> &skipped) {
#if DUCTILE_TORCH_MINOR >= 11
    native_allocator()->recordHistory(enabled, recorder, max_entries, when, clear, skipped);
#elif DUCTILE_TORCH_MINOR >= 8
    (void)skipped;
    native_allocator()->recordHistory(enabled, recorder, max_entries, when, clear);
#else
    (void)clear;
    (void)skipped;
    native_allocator()->recordHistory(enabled, recorder, max_entries, when);
#endif
}

} // namespace

void Allocator::recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                              RecordContext when, bool clear,
                              const std::vector<std::string> &skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr,
                "recordHistory: stacks are wanted, but there is nothing that records them");
    std::unordered_set<int> actions = parse_skipped(skipped);
    std::vector<std::unique_lock<std::recursive_mutex>> locks;
    for (Device &device : AllDevices()) {
        locks.emplace_back(device.mutex);
    }
    bool was_enabled = history.enabled;
    history.enabled = enabled;
    history.recorder = when == RecordContext::NEVER ? nullptr : recorder;
    history.when = enabled ? when : RecordContext::NEVER;
    history.skipped = std::move(actions);
    for (Device &device : AllDevices()) {
        Watch &watch = device.watch;
        watch.trace.set_capacity(max_entries);
        if (!enabled || clear) {
            watch.trace.clear();
        }
        if (enabled && !was_enabled && watch.trackers.empty()) {
            watch.start();
        } else if (!enabled) {
            watch.stop();
        }
    }
    {
        const std::lock_guard<std::mutex> lock(annotations.mutex);
        annotations.latest.set_capacity(max_entries);
        if (!enabled || clear) {
            annotations.latest.clear();
        }
    }
    set_special(kWatched, enabled || is_listened_to());
    locks.clear();
    tell_native(
        [&](auto &) { record_at_native(enabled, recorder, max_entries, when, clear, skipped); });
}

void Allocator::recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                              RecordContext when, bool clear) {
    recordHistory(enabled, recorder, max_entries, when, clear, std::vector<std::string>{});
}

void Allocator::recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                              RecordContext when) {
    recordHistory(enabled, recorder, max_entries, when, false, std::vector<std::string>{});
}

/* For both: a snapshot has one list of them. */
void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &values) {
    if (!history.enabled) {
        return;
    }
    Annotation entry(current_device(), c10::getApproximateTime());
    for (const auto &value : values) {
        entry.recordUserMetadata(value.first, value.second);
    }
    const std::lock_guard<std::mutex> lock(annotations.mutex);
    annotations.latest.add(std::move(entry));
}

/* Native notes what it frees yet, and what it serves while Ductile is off. */
void Allocator::pushCompileContext(std::string &text) {
#if DUCTILE_TORCH_MINOR >= 8
    tell_native([&](auto &native) { native.pushCompileContext(text); });
#endif
    if (history.enabled) {
        make_notes_of_thread().compile_contexts.push_back(text);
    }
}

void Allocator::popCompileContext() {
#if DUCTILE_TORCH_MINOR >= 8
    tell_native([&](auto &native) { native.popCompileContext(); });
#endif
    ThreadNotes *notes = notes_of_thread();
    if (notes != nullptr && !notes->compile_contexts.empty()) {
        notes->compile_contexts.pop_back();
    }
}

void Allocator::setUserMetadata(const std::string &text) {
    make_notes_of_thread().user_metadata = text;
#if DUCTILE_TORCH_MINOR >= 10
    tell_native([&](auto &native) { native.setUserMetadata(text); });
#endif
}

std::string Allocator::getUserMetadata() {
    ThreadNotes *notes = notes_of_thread();
#if DUCTILE_TORCH_MINOR >= 10
    if (notes == nullptr && is_native_in_use()) {
        return native_allocator()->getUserMetadata(); /* said before Ductile came */
    }
#endif
    return notes != nullptr ? notes->user_metadata : std::string();
}

bool Allocator::supportsUserMetadata() {
    return true;
}

/* The text stands where what the thread says of itself stands otherwise. */
void Allocator::annotateMemory(const void *ptr, const std::string &text) {
#if DUCTILE_TORCH_MINOR >= 14
    ductile_block_info info;
    if (!history.enabled || ptr == nullptr) {
        return;
    }
    Device *device = find_block(ptr, info);
    if (device == nullptr && is_native_in_use()) {
        native_allocator()->annotateMemory(ptr, text);
    }
    if (device == nullptr) {
        return;
    }
    Context context = gather_context(RecordContext::ALLOC);
    const std::lock_guard<std::recursive_mutex> lock(device->mutex);
    std::string &metadata = make_notes_of_thread().user_metadata;
    std::string own = std::exchange(metadata, text);
    device->watch.record(TraceEntry::ANNOTATE, info.address, info.requested_size,
                         to_cuda(info.stream), pool_of_block(info), context);
    metadata = std::move(own);
#else
    (void)ptr;
    (void)text;
#endif
}

Context Allocator::getContextForPointer(const void *ptr) {
    Device *device = find_home(ptr);
    if (device == nullptr) {
#if DUCTILE_TORCH_MINOR >= 12
        return is_native_in_use() ? native_allocator()->getContextForPointer(ptr) : nullptr;
#else
        return nullptr;
#endif
    }
    const std::lock_guard<std::recursive_mutex> lock(device->mutex);
    const Context *context = device->watch.context_of(to_address(ptr));
    return context != nullptr ? *context : nullptr;
}

void Allocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
    for (Device &device : AllDevices()) {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        if ((special & kWatched) == 0) {
            device.watch.start();
        }
        device.watch.add_tracker(tracker);
    }
    set_special(kWatched, true);
    tell_native([&](auto &native) { native.attachAllocatorTraceTracker(std::move(tracker)); });
}

} // namespace ductile_torch
