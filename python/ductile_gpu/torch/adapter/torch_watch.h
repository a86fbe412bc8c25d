/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What recordHistory and trace trackers see of one device.
 *
 * A free and its note are one step, and an allocation is noted before its block is known to
 * any other thread: so the notes of one address are in the order of its life. What the library did
 * inside a call (memory mapped and unmapped, pending blocks that became free) is found by comparing
 * before and after; the comparison costs a walk over the blocks, and happens only when a counter
 * says that something moved.
 */
#ifndef DUCTILE_TORCH_WATCH_H
#define DUCTILE_TORCH_WATCH_H

#include "torch_common.h"

#include <algorithm>
#include <map>

namespace ductile_torch {

struct Device;

/* The latest of what is told, oldest first. */
template <typename Entry> class Latest {
  public:
    void set_capacity(size_t entries) {
        capacity_ = std::max<size_t>(entries, 1);
        drop_oldest();
    }
    void add(Entry entry) {
        entries_.push_back(std::move(entry));
        drop_oldest();
    }
    void clear() {
        entries_.clear();
    }
    std::vector<Entry> list() const {
        return {entries_.begin(), entries_.end()};
    }

  private:
    void drop_oldest() {
        while (entries_.size() > capacity_) {
            entries_.pop_front();
        }
    }

    std::deque<Entry> entries_;
    size_t capacity_ = 1;
};

/* Addresses with memory behind them, of one stream and pool. */
struct Run {
    ductile_addr address = 0;
    uint64_t size = 0;
    ductile_stream stream = nullptr;
    MempoolId_t pool = {0, 0};

    ductile_addr end() const {
        return address + size;
    }
    bool is_like(const Run &other) const {
        return stream == other.stream && pool == other.pool;
    }
};

/* What is known of one block beyond what the library knows. */
struct Note {
    Context context; /* of its allocation */
};

struct PendingBlock {
    uint64_t size = 0;
    size_t requested = 0;
    cudaStream_t stream = nullptr;
    MempoolId_t pool = {0, 0};
    Context context;
};

/* Settings of recordHistory, for the whole process. */
struct HistorySettings {
    std::atomic<bool> enabled{false};
    std::atomic<caching::CreateContextFn> recorder{nullptr};
    std::atomic<RecordContext> when{RecordContext::NEVER};
    std::unordered_set<int> skipped; /* actions; changed with every device's mutex held */
};
extern HistorySettings &history;

/* The caller's stack when `level` is recorded. Call it with no lock held: it may need the GIL. */
Context gather_context(RecordContext level);

/* Guarded by the device's mutex. */
class Watch {
  public:
    explicit Watch(Device &device) : device_(device) {
    }
    void start();
    /* Trackers go on, and hear the end of each free that they heard requested. */
    void stop();

    void note_alloc(void *ptr, size_t requested, cudaStream_t stream, Context context);
    /* Frees the block and notes it. */
    ductile_status free(void *ptr, const ductile_block_info &info, Context context);
    /* To history and trackers. */
    void record(TraceEntry::Action action, uint64_t address, size_t size, cudaStream_t stream,
                const MempoolId_t &pool, const Context &context);

    /* Records what the library did since the last call, with the stack of the caller it was done
     * for. */
    void note_changes(const Context &context);

    const Context *context_of(ductile_addr address) const;

    /* A tracker hears every event; of memory mapped and unmapped from the library itself, and
     * before memory leaves, because a library that registered it (NCCL) must let go of it while it
     * is there. */
    void add_tracker(caching::AllocatorTraceTracker tracker);

    /* The device's allocator has just been made. No lock need be held. */
    void listen_to(ductile_allocator *allocator);

    /* For map callbacks, on any thread. */
    void hear(const ductile_map_event &event);

    Latest<TraceEntry> trace;
    std::vector<caching::AllocatorTraceTracker> trackers;

  private:
    void note_segments(const Context &context);
    void note_pending();
    void look_at_pending();
    void complete(ductile_addr address, const PendingBlock &block);
    bool overlaps_pending(ductile_addr address, uint64_t size) const;

    Device &device_;
    /* The same list, for threads that do not hold the mutex: replaced as a whole. */
    std::shared_ptr<const std::vector<caching::AllocatorTraceTracker>> listeners_;
    std::mutex listening_; /* guards is_listening_ */
    bool is_listening_ = false;
    std::unordered_map<ductile_addr, Note> notes_;
    std::map<ductile_addr, PendingBlock> pending_; /* as far as the notes go */
    uint64_t n_pending_ = 0;                       /* as the library counted when last asked */
    std::vector<Run> runs_;
    uint64_t n_changes_ = 0; /* of where memory serves, in the library's life */
};

/* The runs of a device's allocator, by address. */
std::vector<Run> list_runs(const Device &device);

/* The parts of `from` that no like run of `other` covers. Both by address. */
std::vector<Run> subtract_runs(const std::vector<Run> &from, const std::vector<Run> &other);

/* Of all devices. */
struct Annotations {
    std::mutex mutex; /* guards the latest */
    Latest<Annotation> latest;
};
extern Annotations &annotations;

/* What a thread has said of itself. */
struct ThreadNotes {
    std::vector<std::string> compile_contexts;
    std::string user_metadata;
};
ThreadNotes *notes_of_thread(); /* nullptr where it said nothing */
ThreadNotes &make_notes_of_thread();

} // namespace ductile_torch

#endif
