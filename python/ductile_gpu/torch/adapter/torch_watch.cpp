/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_watch.h"

#include "torch_device.h"

#include <algorithm>

namespace ductile_torch {

HistorySettings &history = *new HistorySettings(); /* used when statics have ended, too */

namespace {

/* Kept until the process ends: frees look while a thread's own objects end. */
thread_local ThreadNotes *own_notes = nullptr;

} // namespace

ThreadNotes *notes_of_thread() {
    return own_notes;
}

ThreadNotes &make_notes_of_thread() {
    if (own_notes == nullptr) {
        own_notes = new ThreadNotes();
    }
    return *own_notes;
}

/* ---- Trace ---------------------------------------------------------------------------------- */

void Trace::set_capacity(size_t entries) {
    std::vector<TraceEntry> kept = list();
    capacity_ = std::max<size_t>(entries, 1);
    if (kept.size() > capacity_) {
        kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(capacity_));
    }
    entries_ = std::move(kept);
    next_ = 0;
}

void Trace::add(TraceEntry entry) {
    if (entries_.size() < capacity_) {
        entries_.push_back(std::move(entry));
        return;
    }
    entries_[next_] = std::move(entry);
    next_ = (next_ + 1) % capacity_;
}

void Trace::clear() {
    entries_.clear();
    next_ = 0;
}

std::vector<TraceEntry> Trace::list() const {
    std::vector<TraceEntry> out;
    out.reserve(entries_.size());
    auto oldest = entries_.begin() + static_cast<std::ptrdiff_t>(next_);
    out.insert(out.end(), oldest, entries_.end());
    out.insert(out.end(), entries_.begin(), oldest);
    return out;
}

/* ---- Runs ----------------------------------------------------------------------------------- */

namespace {

bool has_memory(ductile_block_state state) {
    return state == DUCTILE_BLOCK_LIVE || state == DUCTILE_BLOCK_FREE ||
           state == DUCTILE_BLOCK_PENDING || state == DUCTILE_BLOCK_BUSY;
}

int add_to_runs(void *user, const ductile_block_info *block) {
    auto &runs = *static_cast<std::vector<Run> *>(user);
    if (!has_memory(block->state)) {
        return 0;
    }
    Run run;
    run.address = block->address;
    run.size = block->size;
    run.stream = block->stream;
    run.pool = pool_of_block(*block);
    if (!runs.empty() && runs.back().end() == run.address && runs.back().is_like(run)) {
        runs.back().size += run.size;
    } else {
        runs.push_back(run);
    }
    return 0;
}

} // namespace

std::vector<Run> list_runs(const Device &device) {
    std::vector<Run> runs;
    ductile_allocator *a = device.allocator.load(std::memory_order_acquire);
    if (a != nullptr) {
        walk_blocks(a, add_to_runs, &runs);
    }
    std::sort(runs.begin(), runs.end(),
              [](const Run &a, const Run &b) { return a.address < b.address; });
    return runs;
}

std::vector<Run> subtract_runs(const std::vector<Run> &from, const std::vector<Run> &other) {
    std::vector<Run> left;
    size_t first = 0;
    for (Run run : from) {
        while (first < other.size() && other[first].end() <= run.address) {
            first++;
        }
        ductile_addr at = run.address;
        for (size_t i = first; i < other.size() && other[i].address < run.end(); i++) {
            if (!other[i].is_like(run)) {
                continue;
            }
            if (other[i].address > at) {
                left.push_back({at, other[i].address - at, run.stream, run.pool});
            }
            at = std::max(at, other[i].end());
        }
        if (at < run.end()) {
            left.push_back({at, run.end() - at, run.stream, run.pool});
        }
    }
    return left;
}

/* ---- Watch ---------------------------------------------------------------------------------- */

namespace {

cudaStream_t to_cuda(ductile_stream stream) {
    return reinterpret_cast<cudaStream_t>(stream);
}

template <typename Entry = TraceEntry>
Entry make_entry(TraceEntry::Action action, DeviceIndex device, uint64_t address, size_t size,
                 cudaStream_t stream, const MempoolId_t &pool, const Context &context) {
    auto now = c10::getApproximateTime();
    if constexpr (std::is_constructible_v<Entry, TraceEntry::Action, DeviceIndex, size_t, size_t,
                                          cudaStream_t, MempoolId_t, decltype(now), Context>) {
        return Entry(action, device, address, size, stream, pool, now, context);
    } else {
        return Entry(action, device, address, size, stream, now, context);
    }
}

using PendingBlocks = std::map<ductile_addr, PendingBlock>;

int list_pending(void *user, const ductile_block_info *block) {
    if (block->state == DUCTILE_BLOCK_PENDING) {
        (*static_cast<PendingBlocks *>(user))[block->address] = {
            block->size, static_cast<size_t>(block->requested_size), to_cuda(block->stream),
            pool_of_block(*block), nullptr};
    }
    return 0;
}

} // namespace

Context gather_context(RecordContext level) {
    caching::CreateContextFn recorder = history.recorder.load(std::memory_order_relaxed);
    if (recorder == nullptr || history.when.load(std::memory_order_relaxed) < level) {
        return nullptr;
    }
    return recorder();
}

/* Of where memory serves. */
static uint64_t count_changes(const ductile_stats &stats) {
    return stats.maps + stats.unmaps + stats.readdressed_handles;
}

void Watch::start(Device &device) {
    ductile_stats stats = read_stats(device);
    n_changes_ = count_changes(stats);
    runs_ = list_runs(device);
    pending_.clear();
    n_pending_ = stats.pending_blocks;
    if (n_pending_ != 0) {
        walk_blocks(device.open(), list_pending, &pending_);
    }
}

void Watch::stop() {
    notes_.clear();
    if (trackers.empty()) {
        pending_.clear();
    }
}

void Watch::record(Device &device, TraceEntry::Action action, uint64_t address, size_t size,
                   cudaStream_t stream, const MempoolId_t &pool, const Context &context) {
    bool is_kept = history.enabled && history.skipped.count(static_cast<int>(action)) == 0;
    if (!is_kept && trackers.empty()) {
        return;
    }
    bool with_stack = history.when >= RecordContext::ALLOC;
    TraceEntry entry = make_entry(action, device.index, address, size, stream, pool,
                                  with_stack ? context : nullptr);
    if (own_notes != nullptr && !own_notes->compile_contexts.empty()) {
        set_compile_context_(entry, own_notes->compile_contexts.back(), 0);
    }
    if (own_notes != nullptr) {
        set_user_metadata_(entry, own_notes->user_metadata, 0);
    }
    bool is_of_segment = action == TraceEntry::SEGMENT_MAP || action == TraceEntry::SEGMENT_UNMAP;
    for (const auto &tracker : trackers) {
        if (!is_of_segment) { /* those were heard when it happened */
            tracker(entry);
        }
    }
    if (is_kept) {
        trace.add(std::move(entry));
    }
}

/* ---- Trackers and mappings ------------------------------------------------------------------ */

namespace {

/* What a tracker throws cannot pass through the library. */
void hear_mapping(void *user, ductile_allocator *, const ductile_map_event *event) {
    auto &device = *static_cast<Device *>(user);
    try {
        device.watch.hear(device, *event);
    } catch (const std::exception &e) {
        TORCH_WARN("a trace tracker failed: ", e.what());
    }
}

} // namespace

void Watch::hear(const Device &device, const ductile_map_event &event) {
    auto listeners = std::atomic_load(&listeners_);
    if (listeners == nullptr) {
        return;
    }
    bool is_mapped = event.change == DUCTILE_MAP_MAPPED;
    TraceEntry entry = make_entry(is_mapped ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP,
                                  device.index, event.address, event.size, to_cuda(event.stream),
                                  {event.pool.first, event.pool.second}, nullptr);
    for (const auto &tracker : *listeners) {
        tracker(entry);
    }
}

void Watch::listen_to(Device &device, ductile_allocator *allocator) {
    const std::lock_guard<std::mutex> lock(listening_);
    uint64_t id = 0;
    if (allocator != nullptr && !is_listening_ && std::atomic_load(&listeners_) != nullptr) {
        is_listening_ =
            ductile_add_map_callback(allocator, hear_mapping, &device, 0, &id) == DUCTILE_OK;
        if (!is_listening_) {
            TORCH_WARN("trace trackers will not hear of memory that is mapped and unmapped");
        }
    }
}

void Watch::add_tracker(Device &device, caching::AllocatorTraceTracker tracker) {
    trackers.push_back(std::move(tracker));
    std::atomic_store(
        &listeners_, std::make_shared<const std::vector<caching::AllocatorTraceTracker>>(trackers));
    listen_to(device, device.allocator.load(std::memory_order_acquire));
}

/* ---- What happened inside a call ------------------------------------------------------------ */

void Watch::note_segments(Device &device, const Context &context) {
    uint64_t n_changes = count_changes(read_stats(device));
    if (n_changes == n_changes_) {
        return;
    }
    n_changes_ = n_changes;
    std::vector<Run> now = list_runs(device);
    for (const Run &run : subtract_runs(runs_, now)) {
        record(device, TraceEntry::SEGMENT_UNMAP, run.address, run.size, to_cuda(run.stream),
               run.pool, context);
    }
    for (const Run &run : subtract_runs(now, runs_)) {
        record(device, TraceEntry::SEGMENT_MAP, run.address, run.size, to_cuda(run.stream),
               run.pool, context);
    }
    runs_ = std::move(now);
}

/* What is pending no longer is noted as free. Others may free blocks too, past this adapter: those
 * are counted by the library, and have no notes. */
void Watch::look_at_pending(Device &device) {
    PendingBlocks now;
    walk_blocks(device.open(), list_pending, &now);
    for (auto it = pending_.begin(); it != pending_.end();) {
        if (now.count(it->first) != 0) {
            ++it;
            continue;
        }
        complete(device, it->first, it->second);
        it = pending_.erase(it);
    }
}

void Watch::note_pending(Device &device) {
    uint64_t n_pending = read_stats(device).pending_blocks;
    bool has_changed = n_pending != n_pending_;
    n_pending_ = n_pending;
    if (has_changed && !pending_.empty()) {
        look_at_pending(device);
    }
}

void Watch::note_changes(Device &device, const Context &context) {
    note_pending(device);
    note_segments(device, context);
}

bool Watch::overlaps_pending(ductile_addr address, uint64_t size) const {
    auto found = pending_.lower_bound(address + size);
    if (found == pending_.begin()) {
        return false;
    }
    --found;
    return found->first + found->second.size > address;
}

void Watch::note_alloc(Device &device, void *ptr, size_t requested, cudaStream_t stream,
                       Context context) {
    ductile_block_info info = {};
    info.struct_size = sizeof info;
    MempoolId_t pool = {0, 0};
    if (ductile_query_block(device.open(), to_address(ptr), &info) == DUCTILE_OK) {
        pool = pool_of_block(info);
        if (overlaps_pending(to_address(ptr), info.size)) {
            look_at_pending(device);
        }
    }
    record(device, TraceEntry::ALLOC, to_address(ptr), requested, stream, pool, context);
    if (context != nullptr) {
        notes_[to_address(ptr)] = Note{std::move(context)};
    }
}

/* The block's notes end when it is free, for its next life has notes of its own. */
void Watch::complete(Device &device, ductile_addr address, const PendingBlock &block) {
    record(device, TraceEntry::FREE_COMPLETED, address, block.requested, block.stream, block.pool,
           block.context);
    notes_.erase(address);
}

ductile_status Watch::free(Device &device, void *ptr, const ductile_block_info &info,
                           Context context) {
    ductile_addr address = to_address(ptr);
    note_pending(device);
    int is_pending = 0;
    ductile_status status = ductile_free_ex(device.open(), address, nullptr, 0, &is_pending);
    if (status != DUCTILE_OK) {
        return status;
    }
    const Context *allocated = context_of(address);
    if (context == nullptr && allocated != nullptr) {
        context = *allocated; /* as PyTorch does where frees have no stack of their own */
    }
    PendingBlock block = {info.size, static_cast<size_t>(info.requested_size), to_cuda(info.stream),
                          pool_of_block(info), std::move(context)};
    record(device, TraceEntry::FREE_REQUESTED, address, block.requested, block.stream, block.pool,
           block.context);
    if (is_pending == 0) {
        complete(device, address, block);
        return status;
    }
    pending_[address] = std::move(block);
    n_pending_++;
    return status;
}

void Watch::note_out_of_memory(Device &device, size_t free, size_t size, cudaStream_t stream,
                               Context context) {
    record(device, TraceEntry::OOM, free, size, stream, {0, 0}, context);
}

/* The text stands where what the thread says of itself stands otherwise. */
void Watch::note_annotation(Device &device, const ductile_block_info &block,
                            const std::string &text, const Context &context) {
#if DUCTILE_TORCH_MINOR >= 14
    std::string &metadata = make_notes_of_thread().user_metadata;
    std::string own = std::exchange(metadata, text);
    record(device, TraceEntry::ANNOTATE, block.address, block.requested_size, to_cuda(block.stream),
           pool_of_block(block), context);
    metadata = std::move(own);
#else
    (void)device;
    (void)block;
    (void)text;
    (void)context;
#endif
}

void Watch::note_snapshot(Device &device, size_t active_bytes) {
    record(device, TraceEntry::SNAPSHOT, 0, active_bytes, nullptr, {0, 0}, nullptr);
}

const Context *Watch::context_of(ductile_addr address) const {
    auto found = notes_.find(address);
    return found == notes_.end() ? nullptr : &found->second.context;
}

/* ---- Annotations ---------------------------------------------------------------------------- */

namespace {

struct Annotations {
    std::mutex mutex;
    std::deque<Annotation> entries;
    size_t capacity = 1;
};
auto &annotations = *new Annotations();

} // namespace

void record_annotation(const std::vector<std::pair<std::string, std::string>> &values) {
    if (!history.enabled) {
        return;
    }
    Annotation entry(current_device(), c10::getApproximateTime());
    for (const auto &value : values) {
        entry.recordUserMetadata(value.first, value.second);
    }
    const std::lock_guard<std::mutex> lock(annotations.mutex);
    annotations.entries.push_back(std::move(entry));
    while (annotations.entries.size() > annotations.capacity) {
        annotations.entries.pop_front();
    }
}

std::vector<Annotation> list_annotations() {
    const std::lock_guard<std::mutex> lock(annotations.mutex);
    return {annotations.entries.begin(), annotations.entries.end()};
}

void set_annotation_capacity(size_t entries) {
    const std::lock_guard<std::mutex> lock(annotations.mutex);
    annotations.capacity = std::max<size_t>(entries, 1);
}

void clear_annotations() {
    const std::lock_guard<std::mutex> lock(annotations.mutex);
    annotations.entries.clear();
}

} // namespace ductile_torch
