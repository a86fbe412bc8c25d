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

#include <map>

namespace ductile_torch {

struct Device;

/* The latest entries of a trace. */
class Trace {
  public:
    void set_capacity(size_t entries);
    void add(TraceEntry entry);
    void clear();
    std::vector<TraceEntry> list() const; /* oldest first */

  private:
    std::vector<TraceEntry> entries_;
    size_t capacity_ = 1;
    size_t next_ = 0; /* once full: the oldest, and where the next one goes */
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
    void start(Device &device);
    /* Trackers go on, and hear the end of each free that they heard requested. */
    void stop();

    void note_alloc(Device &device, void *ptr, size_t requested, cudaStream_t stream,
                    Context context);
    /* Frees the block and notes it. */
    ductile_status free(Device &device, void *ptr, const ductile_block_info &info, Context context);
    void note_out_of_memory(Device &device, size_t free, size_t size, cudaStream_t stream,
                            Context context);
    void note_annotation(Device &device, const ductile_block_info &block, const std::string &text,
                         const Context &context);
    void note_snapshot(Device &device, size_t active_bytes);

    /* Records what the library did since the last call, with the stack of the caller it was done
     * for. */
    void note_changes(Device &device, const Context &context);

    const Context *context_of(ductile_addr address) const;

    /* A tracker hears every event; of memory mapped and unmapped from the library itself, and
     * before memory leaves, because a library that registered it (NCCL) must let go of it while it
     * is there. */
    void add_tracker(Device &device, caching::AllocatorTraceTracker tracker);

    /* The device's allocator has just been made. No lock need be held. */
    void listen_to(Device &device, ductile_allocator *allocator);

    /* For map callbacks, on any thread. */
    void hear(const Device &device, const ductile_map_event &event);

    Trace trace;
    std::vector<caching::AllocatorTraceTracker> trackers;

  private:
    void record(Device &device, TraceEntry::Action action, uint64_t address, size_t size,
                cudaStream_t stream, const MempoolId_t &pool, const Context &context);
    void note_segments(Device &device, const Context &context);
    void note_pending(Device &device);
    void look_at_pending(Device &device);
    void complete(Device &device, ductile_addr address, const PendingBlock &block);
    bool overlaps_pending(ductile_addr address, uint64_t size) const;

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

void record_annotation(const std::vector<std::pair<std::string, std::string>> &values);
std::vector<Annotation> list_annotations();
void set_annotation_capacity(size_t entries);
void clear_annotations();

/* What a thread has said of itself. */
struct ThreadNotes {
    std::vector<std::string> compile_contexts;
    std::string user_metadata;
};
ThreadNotes *notes_of_thread(); /* nullptr where it said nothing */
ThreadNotes &make_notes_of_thread();

} // namespace ductile_torch

#endif
