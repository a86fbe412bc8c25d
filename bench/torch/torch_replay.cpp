/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through the caching allocator of the installed PyTorch, the peer that Ductile is
 * measured beside. PYTORCH_CUDA_ALLOC_CONF chooses native or expandable segments, as in any
 * PyTorch program; one process measures one of them.
 *
 * Blocks are got and given back with raw_alloc_with_stream and raw_delete: what a tensor costs at
 * the C++ level, without the tensor. A use by another stream is record_stream, where the trace has
 * it; before the free that stream waits for a word in host memory, if the trace says where the use
 * ends.
 *
 * With --adapter the same goes through Ductile, by the adapter that a PyTorch program would use.
 *
 * Prints one JSON object a line, with the keys of ductile-bench.
 */
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <ductile.h>

extern "C" {
#include "bench/base/stopwatch.h"
#include "bench/trace/trace_read.h"
}

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

constexpr uint64_t kMiB = uint64_t{1} << 20;

/* ---- The driver, as far as PyTorch does not offer it ---------------------------------------- */

struct Driver {
    int (*stream_wait_value)(cudaStream_t, unsigned long long, uint64_t, unsigned) = nullptr;
    int (*host_alloc)(void **, size_t, unsigned) = nullptr;
    int (*mem_info)(size_t *, size_t *) = nullptr;
    int (*device_name)(char *, int, int) = nullptr;
    int (*event_create)(void **, unsigned) = nullptr;
    int (*event_record)(void *, cudaStream_t) = nullptr;
    int (*event_sync)(void *) = nullptr;

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
    }

    template <typename Function> static void load(void *library, const char *name, Function &out) {
        out = reinterpret_cast<Function>(dlsym(library, name));
        if (out == nullptr) {
            throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
        }
    }
};

void check(int code, const char *call) {
    if (code != 0) {
        throw std::runtime_error(std::string(call) + " returned " + std::to_string(code));
    }
}

/* ---- Ductile as PyTorch's allocator --------------------------------------------------------- */

/* The statistics have the time of driver calls only where the option asks for it. */
void time_driver_calls() {
    const char *conf = std::getenv("DUCTILE_CONF");
    std::string all = conf != nullptr && *conf != '\0' ? std::string(conf) + "," : "";
    (void)setenv("DUCTILE_CONF", (all + "time_driver_calls:on").c_str(), 1);
}

/* The adapter's functions; none of them when PyTorch's own allocator is measured. */
struct Adapter {
    ductile_allocator *(*allocator_of)(int) = nullptr;
    ductile_status (*get_stats)(ductile_allocator *, ductile_stats *) = nullptr;

    bool is_used() const {
        return allocator_of != nullptr;
    }

    void install(const char *path) {
        time_driver_calls();
        void *library = dlopen(path, RTLD_NOW);
        if (library == nullptr) {
            throw std::runtime_error(dlerror());
        }
        int (*enter)(char *, size_t) = nullptr;
        char message[512] = "";
        Driver::load(library, "ductile_torch_install", enter);
        if (enter(message, sizeof message) != 0) {
            throw std::runtime_error(message);
        }
        Driver::load(library, "ductile_torch_allocator", allocator_of);
        Driver::load(library, "ductile_get_stats", get_stats);
    }

    /* Host time in driver calls so far; 0 for PyTorch's own allocator, which does not say. */
    double driver_seconds() const {
        ductile_stats stats = {};
        stats.struct_size = sizeof stats;
        ductile_allocator *a = is_used() ? allocator_of(0) : nullptr;
        if (a == nullptr || get_stats(a, &stats) != DUCTILE_OK) {
            return 0;
        }
        return static_cast<double>(stats.driver_host_ns) * 1e-9;
    }
};

Adapter adapter;

/* ---- Gates ---------------------------------------------------------------------------------- */

/*
 * One word per stream in page-locked memory: gate n of a stream is open once its word is at least
 * n. When the allocator makes the host wait, for example because it flushes at its cap, the trace
 * cannot go on to open the gates. Real work would go on meanwhile, so a watcher then opens all.
 */
class Gates {
  public:
    Gates(const Driver &driver, const trace &t) : driver_(driver), lines_(t.n_streams) {
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
    }

    /* Before the free: later work of the stream waits for its gate `number` of this pass. */
    void close(size_t index, uint64_t number, cudaStream_t stream) {
        Line &line = lines_[index];
        line.closed = line.base + number;
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

  private:
    /* The gates of one stream. */
    struct Line {
        std::vector<void *> events; /* of closed gates, by number modulo how many there are */
        std::atomic<uint64_t> closed{0};
        uint64_t base = 0; /* gate k of this pass is number base + k */
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

    /* Two threads may raise a word: it must never sink. */
    void raise(size_t index, uint64_t value) {
        uint64_t now = __atomic_load_n(&words_[index], __ATOMIC_RELAXED);
        while (now < value && !__atomic_compare_exchange_n(&words_[index], &now, value, false,
                                                           __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        }
    }

    void watch() {
        uint64_t seen = 0;
        while (!is_over_) {
            std::this_thread::sleep_for(std::chrono::milliseconds(250));
            uint64_t now = progress_;
            if (now == seen && is_running_) {
                open_all();
            }
            seen = now;
        }
    }

    const Driver &driver_;
    uint64_t *words_ = nullptr; /* kept until the process ends: streams may read it */
    std::vector<Line> lines_;
    std::atomic<uint64_t> progress_{0};
    std::atomic<bool> is_running_{false};
    std::atomic<bool> is_over_{false};
    std::thread watcher_;
};

/* ---- One pass ------------------------------------------------------------------------------- */

struct Pass {
    bool completed = false;
    double seconds = 0; /* of allocations and frees: what gates cost the replay is left out */
    double driver_seconds = 0; /* of that, in driver calls, where the allocator says so */
};

class Replay {
  public:
    Replay(const Driver &driver, const trace &t)
        : trace_(t), allocator_(caching::get()), device_(c10::DeviceType::CUDA, 0),
          gates_(driver, t), blocks_(t.n_slots), has_gates_(t.n_gates != 0) {
        for (size_t i = 0; i < t.n_streams; i++) {
            streams_.push_back(t.streams[i].number == 0 ? c10::cuda::getDefaultCUDAStream(0)
                                                        : c10::cuda::getStreamFromPool(false, 0));
            raw_streams_.push_back(streams_.back().stream());
        }
    }

    /* Plays the whole trace, then frees what is live and waits. */
    Pass run() {
        Pass pass;
        watch_ = {};
        double driver_before = adapter.driver_seconds();
        stopwatch_start(&watch_);
        try {
            for (size_t i = 0; i < trace_.n_events; i++) {
                if (has_gates_) {
                    gates_.note_progress(true);
                }
                play(trace_.events[i]);
            }
            pass.completed = true;
        } catch (const c10::OutOfMemoryError &) {
            pass.completed = false;
        }
        stopwatch_pause(&watch_);
        pass.seconds = static_cast<double>(stopwatch_total_ns(&watch_)) * 1e-9;
        pass.driver_seconds = adapter.driver_seconds() - driver_before;
        clean_up();
        return pass;
    }

  private:
    void play(const trace_event &event) {
        switch (event.kind) {
        case TRACE_ALLOC:
            blocks_[event.slot] = allocator_->raw_alloc_with_stream(static_cast<size_t>(event.size),
                                                                    raw_streams_[event.stream]);
            return;
        case TRACE_FREE:
            give_back(event.slot);
            return;
        case TRACE_USE:
            use_elsewhere(event.slot, event.stream);
            return;
        case TRACE_FREE_GATED:
            free_gated(event);
            return;
        case TRACE_OPEN:
            off_the_clock([&] {
                for_each_gate(
                    event, [&](const trace_gate &gate) { gates_.open(gate.stream, gate.number); });
            });
            return;
        default:
            return;
        }
    }

    void give_back(uint32_t slot) {
        void *block = blocks_[slot];
        blocks_[slot] = nullptr;
        allocator_->raw_delete(block);
    }

    template <typename Action> void for_each_gate(const trace_event &event, Action action) {
        for (size_t i = 0; i < event.stream; i++) {
            action(trace_.gates[event.size + i]);
        }
    }

    void free_gated(const trace_event &event) {
        off_the_clock([&] {
            for_each_gate(event, [&](const trace_gate &gate) {
                gates_.close(gate.stream, gate.number, raw_streams_[gate.stream]);
            });
        });
        for_each_gate(event, [&](const trace_gate &gate) {
            if (gate.says_use) {
                use_elsewhere(event.slot, gate.stream);
            }
        });
        give_back(event.slot);
        off_the_clock([&] {
            for_each_gate(event, [&](const trace_gate &gate) {
                gates_.mark(gate.stream, gate.number, raw_streams_[gate.stream]);
            });
        });
    }

    /* Runs the action while the clock stands; an out-of-memory error never passes here. */
    template <typename Action> void off_the_clock(Action action) {
        stopwatch_pause(&watch_);
        action();
        stopwatch_start(&watch_);
    }

    /* record_stream takes a DataPtr and heeds only those that the allocator itself would delete. */
    void use_elsewhere(uint32_t slot, uint16_t stream) {
        void *block = blocks_[slot];
        at::DataPtr handle(block, block, allocator_->raw_deleter(), device_);
        allocator_->recordStream(handle, streams_[stream]);
        (void)handle.release_context();
    }

    void clean_up() {
        gates_.note_progress(false);
        gates_.end_pass();
        for (uint32_t slot = 0; slot < blocks_.size(); slot++) {
            if (blocks_[slot] != nullptr) {
                give_back(slot);
            }
        }
        c10::cuda::device_synchronize();
    }

    const trace &trace_;
    caching::CUDAAllocator *allocator_;
    c10::Device device_;
    Gates gates_;
    std::vector<void *> blocks_;
    std::vector<c10::cuda::CUDAStream> streams_;
    std::vector<cudaStream_t> raw_streams_; /* asking each time would be on the clock */
    bool has_gates_;
    stopwatch watch_ = {};
};

/* ---- Measuring a trace ---------------------------------------------------------------------- */

struct Options {
    uint64_t repeat = 2;
    bool min_capacity = false;
    const char *adapter_path = nullptr;
    std::vector<const char *> paths;
};

uint64_t reserved_peak() {
    return static_cast<uint64_t>(caching::getDeviceStats(0).reserved_bytes[0].peak);
}

void start_afresh() {
    caching::emptyCache();
    caching::resetPeakStats(0);
}

uint64_t device_bytes(const Driver &driver) {
    size_t free_bytes = 0;
    size_t total = 0;
    check(driver.mem_info(&free_bytes, &total), "cuMemGetInfo");
    return total;
}

bool completes_within(const trace &t, const Driver &driver, uint64_t cap) {
    start_afresh();
    caching::setMemoryFraction(static_cast<double>(cap) / static_cast<double>(device_bytes(driver)),
                               0);
    Replay replay(driver, t);
    return replay.run().completed;
}

/* The least cap under which one pass completes, to 2 MiB; completion above it is presumed. */
uint64_t find_min_capacity(const trace &t, const Driver &driver, uint64_t enough) {
    uint64_t too_little = (t.live_peak_bytes - 1) / (2 * kMiB) * (2 * kMiB);
    while (enough - too_little > 2 * kMiB) {
        uint64_t middle = too_little + (enough - too_little) / 2 / (2 * kMiB) * (2 * kMiB);
        (completes_within(t, driver, middle) ? enough : too_little) = middle;
    }
    start_afresh();
    caching::setMemoryFraction(1.0, 0);
    return enough;
}

const char *contender_name() {
    if (adapter.is_used()) {
        return "torch-ductile";
    }
    std::string conf;
    for (const char *name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
        const char *value = std::getenv(name);
        conf += value != nullptr ? value : "";
    }
    if (conf.find("backend:cudaMallocAsync") != std::string::npos) {
        return "torch-async";
    }
    return conf.find("expandable_segments:True") != std::string::npos ? "torch-expandable"
                                                                      : "torch-native";
}

double share(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double own_seconds(const Pass &pass) {
    return pass.seconds - pass.driver_seconds;
}

/* Of the passes after the first, where there are others: as in ductile-bench. */
double median_own_seconds(const std::vector<Pass> &passes) {
    std::vector<double> own;
    for (size_t i = passes.size() > 1 ? 1 : 0; i < passes.size(); i++) {
        own.push_back(own_seconds(passes[i]));
    }
    std::sort(own.begin(), own.end());
    return (own[(own.size() - 1) / 2] + own[own.size() / 2]) / 2;
}

void measure(const trace &t, const Driver &driver, const Options &options) {
    start_afresh();
    std::vector<Pass> passes;
    {
        Replay replay(driver, t);
        while (passes.size() < options.repeat) {
            passes.push_back(replay.run());
        }
    }
    const Pass &pass = passes.back();
    uint64_t peak = reserved_peak();
    double wall_ns = pass.seconds * 1e9 / static_cast<double>(t.n_ops);
    double ns = median_own_seconds(passes) * 1e9 / static_cast<double>(t.n_ops);
    char device[96] = "";
    check(driver.device_name(device, sizeof device, 0), "cuDeviceGetName");
    std::printf("{\"trace\":\"%s\",\"contender\":\"%s\",\"device\":\"%s\",\"events\":%" PRIu64
                ",\"live_peak_bytes\":%" PRIu64 ",\"reserved_peak_bytes\":%" PRIu64
                ",\"efficiency\":%.6f,\"completed\":%s,\"ns_per_op\":%.2f,\"wall_ns_per_op\":%.2f"
                ",\"passes\":%" PRIu64,
                t.name, contender_name(), device, t.n_file_events, t.live_peak_bytes, peak,
                share(t.live_peak_bytes, peak), pass.completed ? "true" : "false", ns, wall_ns,
                options.repeat);
    if (options.min_capacity && pass.completed) {
        uint64_t cap = find_min_capacity(t, driver, (peak + 2 * kMiB - 1) / (2 * kMiB) * 2 * kMiB);
        std::printf(",\"min_capacity_bytes\":%" PRIu64 ",\"min_capacity_efficiency\":%.6f", cap,
                    share(t.live_peak_bytes, cap));
    }
    std::printf("}\n");
    std::fflush(stdout);
}

/* ---- Command line --------------------------------------------------------------------------- */

int usage(std::FILE *to, int status) {
    std::fprintf(to,
                 "usage: torch_replay [--repeat N] [--min-capacity] [--adapter FILE] TRACE...\n");
    return status;
}

bool parse(int argc, char **argv, Options &options) {
    for (int i = 1; i < argc; i++) {
        if (std::strcmp(argv[i], "--repeat") == 0 && i + 1 < argc) {
            options.repeat = std::strtoull(argv[++i], nullptr, 10);
        } else if (std::strcmp(argv[i], "--min-capacity") == 0) {
            options.min_capacity = true;
        } else if (std::strcmp(argv[i], "--adapter") == 0 && i + 1 < argc) {
            options.adapter_path = argv[++i];
        } else if (argv[i][0] == '-') {
            return false;
        } else {
            options.paths.push_back(argv[i]);
        }
    }
    return options.repeat > 0 && !options.paths.empty();
}

/* The first allocation makes the device's context current, which the driver's calls need. */
void wake_device() {
    caching::init(c10::cuda::device_count_ensure_non_zero());
    c10::cuda::set_device(0);
    caching::raw_delete(
        caching::raw_alloc_with_stream(512, c10::cuda::getDefaultCUDAStream(0).stream()));
}

std::string first_line(const std::string &text) {
    return text.substr(0, text.find('\n'));
}

bool measure_file(const char *path, const Driver &driver, const Options &options) {
    trace_error error;
    trace *t = trace_load(path, TRACE_BUSIEST_GPU, &error);
    if (t == nullptr) {
        std::fprintf(stderr, "torch_replay: %s:%" PRIu64 ": %s\n", path, error.line, error.reason);
        return false;
    }
    measure(*t, driver, options);
    trace_free(t);
    return true;
}

} // namespace

// The events of recorded streams ask whether the device has a context, and libtorch_cuda registers
// the answer when it is loaded. The allocator itself does not need that library.
static void load_hooks() {
    if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL) == nullptr) {
        std::fprintf(stderr, "torch_replay: %s\n", dlerror());
    }
}

int main(int argc, char **argv) {
    Options options;
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
        return usage(stdout, 0);
    }
    if (!parse(argc, argv, options)) {
        return usage(stderr, 2);
    }
    try {
        load_hooks();
        if (options.adapter_path != nullptr) {
            adapter.install(options.adapter_path);
        }
        wake_device();
        Driver driver;
        bool ok = true;
        for (const char *path : options.paths) {
            ok = measure_file(path, driver, options) && ok;
        }
        // libtorch_cuda's own clean-up does not survive in a program that PyTorch did not start
        std::fflush(stdout);
        std::_Exit(ok ? 0 : 1);
    } catch (const c10::Error &e) {
        std::fprintf(stderr, "torch_replay: %s\n", first_line(e.what_without_backtrace()).c_str());
    } catch (const std::exception &e) {
        std::fprintf(stderr, "torch_replay: %s\n", e.what());
    }
    return 1;
}
