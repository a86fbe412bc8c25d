/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_watch.h"

#include "torch_device.h"

#include <algorithm>

namespace ductile_torch {

/* Used when statics have ended, too. */
HistorySettings &history = *new HistorySettings();
Annotations &annotations = *new Annotations();

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

/* ---- Runs ----------------------------------------------------------------------------------- */

static void add_to_runs(std::vector<Run> &runs, const ductile_block_info &block) {
    if (!has_memory(block.state)) {
        return;
    }
    Run run = {block.address, block.size, block.stream, pool_of_block(block)};
    if (!runs.empty() && runs.back().end() == run.address && runs.back().is_like(run)) {
        runs.back().size += run.size;
    } else {
        runs.push_back(run);
    }
}

std::vector<Run> list_runs(const Device &device) {
    std::vector<Run> runs;
    ductile_allocator *a = device.opened();
    if (a != nullptr) {
        walk_blocks(a, [&](const ductile_block_info &block) { add_to_runs(runs, block); });
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

PendingBlocks list_pending(ductile_allocator *allocator) {
    PendingBlocks found;
    walk_blocks(allocator, [&](const ductile_block_info &block) {
        if (block.state == DUCTILE_BLOCK_PENDING) {
            found[block.address] = {block.size, static_cast<size_t>(block.requested_size),
                                    to_cuda(block.stream), pool_of_block(block), nullptr};
        }
    });
    return found;
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

void Watch::start() {
    ductile_stats stats = read_stats(device_);
    n_changes_ = count_changes(stats);
    runs_ = list_runs(device_);
    pending_.clear();
    n_pending_ = stats.pending_blocks;
    if (n_pending_ != 0) {
        pending_ = list_pending(device_.open());
    }
}

void Watch::stop() {
    notes_.clear();
    if (trackers.empty()) {
        pending_.clear();
    }
}

void Watch::record(TraceEntry::Action action, uint64_t address, size_t size, cudaStream_t stream,
                   const MempoolId_t &pool, const Context &context) {
    bool is_kept = history.enabled && history.skipped.count(static_cast<int>(action)) == 0;
    if (!is_kept && trackers.empty()) {
        return;
    }
    bool with_stack = history.when >= RecordContext::ALLOC;
    TraceEntry entry = make_entry(action, device_.index, address, size, stream, pool,
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
        device.watch.hear(*event);
    } catch (const std::exception &e) {
        TORCH_WARN("a trace tracker failed: ", e.what());
    }
}

} // namespace

void Watch::hear(const ductile_map_event &event) {
    auto listeners = std::atomic_load(&listeners_);
    if (listeners == nullptr) {
        return;
    }
    bool is_mapped = event.change == DUCTILE_MAP_MAPPED;
    TraceEntry entry = make_entry(is_mapped ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP,
                                  device_.index, event.address, event.size, to_cuda(event.stream),
                                  {event.pool.first, event.pool.second}, nullptr);
    for (const auto &tracker : *listeners) {
        tracker(entry);
    }
}

void Watch::listen_to(ductile_allocator *allocator) {
    const std::lock_guard<std::mutex> lock(listening_);
    uint64_t id = 0;
    if (allocator != nullptr && !is_listening_ && std::atomic_load(&listeners_) != nullptr) {
        is_listening_ =
            ductile_add_map_callback(allocator, hear_mapping, &device_, 0, &id) == DUCTILE_OK;
        if (!is_listening_) {
            TORCH_WARN("trace trackers will not hear of memory that is mapped and unmapped");
        }
    }
}

void Watch::add_tracker(caching::AllocatorTraceTracker tracker) {
    trackers.push_back(std::move(tracker));
    std::atomic_store(
        &listeners_, std::make_shared<const std::vector<caching::AllocatorTraceTracker>>(trackers));
    listen_to(device_.opened());
}

/* ---- What happened inside a call ------------------------------------------------------------ */

void Watch::note_segments(const Context &context) {
    uint64_t n_changes = count_changes(read_stats(device_));
    if (n_changes == n_changes_) {
        return;
    }
    n_changes_ = n_changes;
    std::vector<Run> now = list_runs(device_);
    for (const Run &run : subtract_runs(runs_, now)) {
        record(TraceEntry::SEGMENT_UNMAP, run.address, run.size, to_cuda(run.stream), run.pool,
               context);
    }
    for (const Run &run : subtract_runs(now, runs_)) {
        record(TraceEntry::SEGMENT_MAP, run.address, run.size, to_cuda(run.stream), run.pool,
               context);
    }
    runs_ = std::move(now);
}

/* What is pending no longer is noted as free. Others may free blocks too, past this adapter: those
 * are counted by the library, and have no notes. */
void Watch::look_at_pending() {
    PendingBlocks now = list_pending(device_.open());
    for (auto it = pending_.begin(); it != pending_.end();) {
        if (now.count(it->first) != 0) {
            ++it;
            continue;
        }
        complete(it->first, it->second);
        it = pending_.erase(it);
    }
}

void Watch::note_pending() {
    uint64_t n_pending = read_stats(device_).pending_blocks;
    bool has_changed = n_pending != n_pending_;
    n_pending_ = n_pending;
    if (has_changed && !pending_.empty()) {
        look_at_pending();
    }
}

void Watch::note_changes(const Context &context) {
    note_pending();
    note_segments(context);
}

bool Watch::overlaps_pending(ductile_addr address, uint64_t size) const {
    auto found = pending_.lower_bound(address + size);
    if (found == pending_.begin()) {
        return false;
    }
    --found;
    return found->first + found->second.size > address;
}

void Watch::note_alloc(void *ptr, size_t requested, cudaStream_t stream, Context context) {
    auto info = sized<ductile_block_info>();
    MempoolId_t pool = {0, 0};
    if (ductile_query_block(device_.open(), to_address(ptr), &info) == DUCTILE_OK) {
        pool = pool_of_block(info);
        if (overlaps_pending(to_address(ptr), info.size)) {
            look_at_pending();
        }
    }
    record(TraceEntry::ALLOC, to_address(ptr), requested, stream, pool, context);
    if (context != nullptr) {
        notes_[to_address(ptr)] = Note{std::move(context)};
    }
}

/* The block's notes end when it is free, for its next life has notes of its own. */
void Watch::complete(ductile_addr address, const PendingBlock &block) {
    record(TraceEntry::FREE_COMPLETED, address, block.requested, block.stream, block.pool,
           block.context);
    notes_.erase(address);
}

ductile_status Watch::free(void *ptr, const ductile_block_info &info, Context context) {
    ductile_addr address = to_address(ptr);
    note_pending();
    int is_pending = 0;
    ductile_status status = ductile_free_ex(device_.open(), address, nullptr, 0, &is_pending);
    if (status != DUCTILE_OK) {
        return status;
    }
    const Context *allocated = context_of(address);
    if (context == nullptr && allocated != nullptr) {
        context = *allocated; /* as PyTorch does where frees have no stack of their own */
    }
    PendingBlock block = {info.size, static_cast<size_t>(info.requested_size), to_cuda(info.stream),
                          pool_of_block(info), std::move(context)};
    record(TraceEntry::FREE_REQUESTED, address, block.requested, block.stream, block.pool,
           block.context);
    if (is_pending == 0) {
        complete(address, block);
        return status;
    }
    pending_[address] = std::move(block);
    n_pending_++;
    return status;
}

const Context *Watch::context_of(ductile_addr address) const {
    auto found = notes_.find(address);
    return found == notes_.end() ? nullptr : &found->second.context;
}

} // namespace ductile_torch
