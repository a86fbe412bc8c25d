/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses by other streams that end when the trace says so, for the programs in this folder: what
 * bench/replay/gates.h is to ductile-bench, on CUDA alone and without Ductile's driver layer.
 */
#ifndef DUCTILE_BENCH_TORCH_PEER_GATES_HPP
#define DUCTILE_BENCH_TORCH_PEER_GATES_HPP

#include <cuda_runtime_api.h>

extern "C" {
#include "bench/base/stopwatch.h"
#include "bench/trace/trace.h"
}

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

/* ---- The driver, as far as the runtime does not offer it ------------------------------------- */

inline void check(int code, const char *call) {
    if (code != 0) {
        throw std::runtime_error(std::string(call) + " returned " + std::to_string(code));
    }
}

template <typename Function> void load(void *library, const char *name, Function &out) {
    out = reinterpret_cast<Function>(dlsym(library, name));
    if (out == nullptr) {
        throw std::runtime_error(std::string("there is no ") + name);
    }
}

/* Called apart from the runtime's functions: what gates cost is no allocator's. */
struct Driver {
    int (*stream_wait_value)(cudaStream_t, unsigned long long, uint64_t, unsigned) = nullptr;
    int (*host_alloc)(void **, size_t, unsigned) = nullptr;
    int (*mem_info)(size_t *, size_t *) = nullptr;
    int (*device_name)(char *, int, int) = nullptr;
    int (*event_create)(void **, unsigned) = nullptr;
    int (*event_record)(void *, cudaStream_t) = nullptr;
    int (*event_sync)(void *) = nullptr;
    int (*event_destroy)(void *) = nullptr;

    Driver() {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) {
            throw std::runtime_error("libcuda.so.1 cannot be opened");
        }
        load(library, "cuStreamWaitValue64_v2", stream_wait_value);
        load(library, "cuMemHostAlloc", host_alloc);
        load(library, "cuMemGetInfo_v2", mem_info);
        load(library, "cuDeviceGetName", device_name);
        load(library, "cuEventCreate", event_create);
        load(library, "cuEventRecord", event_record);
        load(library, "cuEventSynchronize", event_sync);
        load(library, "cuEventDestroy_v2", event_destroy);
    }

    std::string name() const {
        char text[96] = "";
        check(device_name(text, sizeof text, 0), "cuDeviceGetName");
        return text;
    }

    uint64_t total_bytes() const {
        size_t free_bytes = 0;
        size_t total = 0;
        check(mem_info(&free_bytes, &total), "cuMemGetInfo");
        return total;
    }
};

/* ---- Gates ----------------------------------------------------------------------------------- */

/*
 * One word per stream in page-locked memory: gate n of a stream is open once its word is at least
 * n. When the allocator makes the host wait, for example because it flushes at its cap, the trace
 * cannot go on to open the gates. Real work would go on meanwhile, so a watcher then opens all; how
 * long that took says nothing about an allocator, and waited_ns has it.
 *
 * An allocator that waits at every free would stand still for longer than a person waits: once the
 * watcher has opened gates so often in this process, no more are closed, and uses end at once.
 */
class Gates {
  public:
    Gates(const Driver &driver, const trace &t, uint64_t most_forced)
        : driver_(driver), most_forced_(most_forced), lines_(t.n_streams) {
        void *memory = nullptr;
        check(driver.host_alloc(&memory, lines_.size() * sizeof(uint64_t), 0), "cuMemHostAlloc");
        words_ = static_cast<uint64_t *>(memory);
        for (size_t i = 0; i < lines_.size(); i++) {
            words_[i] = 0;
            make_events(lines_[i], t.streams[i].max_closed_gates);
        }
        watcher_ = std::thread([this] { watch(); });
    }

    Gates(const Gates &) = delete;
    Gates &operator=(const Gates &) = delete;

    ~Gates() {
        is_over_ = true;
        watcher_.join();
        open_all();
        for (Line &line : lines_) {
            for (void *event : line.events) {
                (void)driver_.event_destroy(event);
            }
        }
    }

    /* Before the free: later work of the stream waits for its gate `number` of this pass. */
    void close(size_t index, uint64_t number, cudaStream_t stream) {
        Line &line = lines_[index];
        line.closed = line.base + number;
        if (are_left_open()) {
            return;
        }
        auto word = reinterpret_cast<uintptr_t>(&words_[index]);
        check(driver_.stream_wait_value(stream, word, line.closed, 0 /* at or above */),
              "cuStreamWaitValue64");
    }

    /* After the free: what the allocator recorded is done once this is. */
    void mark(size_t index, uint64_t number, cudaStream_t stream) {
        check(driver_.event_record(event_of(lines_[index], number), stream), "cuEventRecord");
    }

    /* The first gates of this pass are open, and the device has seen it. */
    void open(size_t index, uint64_t number) {
        if (number > 0) {
            raise(index, lines_[index].base + number);
            check(driver_.event_sync(event_of(lines_[index], number)), "cuEventSynchronize");
        }
    }

    void open_all() {
        for (size_t i = 0; i < lines_.size(); i++) {
            raise(i, lines_[i].closed);
        }
    }

    /* The next pass counts its gates from 1 again. */
    void end_pass() {
        open_all();
        for (Line &line : lines_) {
            line.base = line.closed;
        }
    }

    /* Call at every event of a pass, and with false between passes. */
    void note_progress(bool is_running) {
        progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        is_running_.store(is_running, std::memory_order_relaxed);
    }

    bool are_left_open() const {
        return n_forced_.load(std::memory_order_relaxed) >= most_forced_;
    }

    uint64_t waited_ns() const {
        return waited_ns_.load(std::memory_order_relaxed);
    }

  private:
    /* The gates of one stream. */
    struct Line {
        std::vector<void *> events; /* of closed gates, by number modulo how many there are */
        std::atomic<uint64_t> closed{0};
        uint64_t base = 0; /* gate k of this pass is number base + k */
    };

    /* What the watcher knows of the replay. */
    struct Sight {
        uint64_t progress;
        uint64_t since_ns;
        bool is_forced; /* gates were opened since */
    };

    void make_events(Line &line, uint64_t n) {
        constexpr unsigned without_timing = 2;
        line.events.resize(static_cast<size_t>(n));
        for (void *&event : line.events) {
            check(driver_.event_create(&event, without_timing), "cuEventCreate");
        }
    }

    static void *event_of(const Line &line, uint64_t number) {
        return line.events[(line.base + number) % line.events.size()];
    }

    /* Two threads may raise a word: it must never sink. True: it rose. */
    bool raise(size_t index, uint64_t value) {
        uint64_t now = __atomic_load_n(&words_[index], __ATOMIC_RELAXED);
        while (now < value) {
            if (__atomic_compare_exchange_n(&words_[index], &now, value, false, __ATOMIC_RELEASE,
                                            __ATOMIC_RELAXED)) {
                return true;
            }
        }
        return false;
    }

    bool force() {
        bool found = false;
        for (size_t i = 0; i < lines_.size(); i++) {
            found = raise(i, lines_[i].closed) || found;
        }
        return found;
    }

    void look(Sight &last) {
        /* Growth of a pool takes less than the first. An allocator that has waited once, as at its
         * cap, waits often. */
        uint64_t standstill_ns = n_forced_ == 0 ? 250000000 : 10000000;
        uint64_t now = host_now_ns();
        uint64_t progress = progress_;
        if (progress != last.progress) {
            if (last.is_forced) {
                waited_ns_ += now - last.since_ns;
                n_forced_++;
            }
            last = {progress, now, false};
        } else if (is_running_ && now - last.since_ns >= standstill_ns) {
            last.is_forced = force() || last.is_forced;
        }
    }

    void watch() {
        Sight last = {0, host_now_ns(), false};
        while (!is_over_) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            look(last);
        }
    }

    static inline std::atomic<uint64_t> n_forced_{0}; /* standstills of this process */
    const Driver &driver_;
    uint64_t most_forced_;
    uint64_t *words_ = nullptr; /* kept until the process ends: streams may read it */
    std::vector<Line> lines_;
    std::atomic<uint64_t> progress_{0};
    std::atomic<uint64_t> waited_ns_{0};
    std::atomic<bool> is_running_{false};
    std::atomic<bool> is_over_{false};
    std::thread watcher_;
};

#endif
