/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * Replays traces through an allocator that is no contender of ductile-bench, for `bench/run
 * compare`: told line by line what to measure, it prints one JSON object for each, with the keys of
 * ductile-bench. The allocator is a Peer:
 *
 *   Block, Refused              what it hands out; the exception that says there is no memory
 *   kMostForced                 how often uses are ended for it before they end at once (peer_gates)
 *   make_streams(t), stream(i)  the trace's streams
 *   alloc(block, size, i), free(block), use(block, i), is_live(block)
 *   start_afresh(cap)           gives everything back; holds no more than cap then, 0: any
 *   give_back()                 holds nothing until start_afresh
 *   reserved()                  bytes held
 *   reserved_peak()             the most since start_afresh
 *   cost()                      time in driver calls and waits of the host, so far
 *   wait_for_device(), name()
 *
 * Calls go straight to it: what is measured costs as much as one of them.
 */
/* clang-format on */
#ifndef DUCTILE_BENCH_TORCH_PEER_REPLAY_HPP
#define DUCTILE_BENCH_TORCH_PEER_REPLAY_HPP

#include "bench/torch/peer_gates.hpp"

extern "C" {
#include "bench/base/call_times.h"
#include "bench/trace/trace_read.h"
}

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct PeerCost {
    uint64_t driver_ns = 0;
    uint64_t host_waits = 0;
};

/* So far, where memory was short. Of PyTorch's own allocators only retries are known. */
struct PeerShortage {
    std::optional<uint64_t> waits;   /* times that the host waited           */
    std::optional<uint64_t> returns; /* times that memory went to the driver */
};

/* ---- One pass -------------------------------------------------------------------------------- */

struct Pass {
    bool completed = false;
    uint64_t wall_ns = 0; /* of allocations and frees: what gates cost the replay is left out */
    PeerCost cost;        /* of that, in driver calls */

    uint64_t own_ns() const {
        return wall_ns - std::min(wall_ns, cost.driver_ns);
    }
};

/* Times of single calls, and room for those of one trace. */
class Calls {
  public:
    explicit Calls(size_t n) {
        if (!call_times_reserve(&times_, n)) {
            throw std::bad_alloc();
        }
    }
    Calls(const Calls &) = delete;
    Calls &operator=(const Calls &) = delete;
    ~Calls() {
        call_times_drop(&times_);
    }
    void add(uint64_t ns) {
        call_times_add(&times_, ns);
    }
    void end(dti_json &row, const char *name) {
        call_summary summary = call_times_summarize(&times_);
        call_summary_json(&row, name, &summary);
        times_.n = 0;
    }

  private:
    call_times times_ = {};
};

/* Where live and reserved memory over time go. */
struct Timeline {
    std::FILE *file;
    const char *contender;
};

template <typename Peer> class Replay {
  public:
    Replay(const Driver &driver, Peer &peer, const trace &t)
        : trace_(t), peer_(peer), gates_(driver, t, Peer::kMostForced), blocks_(t.n_slots),
          has_gates_(t.n_gates > 0) {
        for (size_t i = 0; i < t.n_streams; i++) {
            streams_.push_back(peer.stream(i));
        }
    }

    bool ended_uses_at_once() const {
        return has_gates_ && gates_.are_left_open();
    }

    /* Plays the whole trace, then frees what is live and waits. */
    Pass run() {
        return play_all([&] { play_range<false>(0, trace_.n_events, nullptr); });
    }

    /* The same, each call by itself. The pass's own times mean nothing. */
    Pass run_timed(Calls &calls) {
        return play_all([&] { play_range<true>(0, trace_.n_events, &calls); });
    }

    /* The same, stopping at every sample. */
    Pass run_sampled(const Timeline &to) {
        return play_all([&] {
            size_t at = 0;
            for (size_t i = 0; i < trace_.n_samples; i++) {
                size_t end = trace_.samples[i].event + 1;
                play_range<false>(at, end, nullptr);
                at = end;
                write_sample(to, trace_.samples[i]);
            }
            play_range<false>(at, trace_.n_events, nullptr);
        });
    }

  private:
    using Block = typename Peer::Block;

    template <typename Play> Pass play_all(Play play) {
        Pass pass;
        watch_ = {};
        PeerCost before = peer_.cost();
        uint64_t waited_before = gates_.waited_ns();
        stopwatch_start(&watch_);
        try {
            play();
            pass.completed = true;
        } catch (const typename Peer::Refused &) {
            pass.completed = false;
        }
        stopwatch_pause(&watch_);
        PeerCost now = peer_.cost();
        uint64_t waited = gates_.waited_ns() - waited_before;
        uint64_t wall = stopwatch_total_ns(&watch_);
        uint64_t driver = now.driver_ns - before.driver_ns;
        pass.wall_ns = wall - std::min(wall, waited);
        pass.cost.driver_ns = driver - std::min(driver, waited);
        pass.cost.host_waits = now.host_waits - before.host_waits;
        clean_up();
        return pass;
    }

    template <bool is_timed> void play_range(size_t first, size_t end, Calls *calls) {
        for (size_t i = first; i < end; i++) {
            if (has_gates_) {
                gates_.note_progress(true);
            }
            play<is_timed>(trace_.events[i], calls);
        }
    }

    template <bool is_timed> void play(const trace_event &event, Calls *calls) {
        switch (event.kind) {
        case TRACE_ALLOC:
            call<is_timed>(calls, [&] {
                peer_.alloc(blocks_[event.slot], static_cast<size_t>(event.size), event.stream);
            });
            return;
        case TRACE_FREE:
            call<is_timed>(calls, [&] { peer_.free(blocks_[event.slot]); });
            return;
        case TRACE_USE:
            peer_.use(blocks_[event.slot], event.stream);
            return;
        case TRACE_FREE_GATED:
            free_gated<is_timed>(event, calls);
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

    template <bool is_timed, typename Action> void call(Calls *calls, Action action) {
        if constexpr (is_timed) {
            uint64_t waited = gates_.waited_ns();
            uint64_t start = host_now_ns();
            action();
            uint64_t ns = host_now_ns() - start;
            ns -= std::min(ns, stopwatch_cost_ns() + gates_.waited_ns() - waited);
            calls->add(ns);
        } else {
            action();
        }
    }

    template <typename Action> void for_each_gate(const trace_event &event, Action action) {
        for (size_t i = 0; i < event.stream; i++) {
            action(trace_.gates[event.size + i]);
        }
    }

    template <bool is_timed> void free_gated(const trace_event &event, Calls *calls) {
        off_the_clock([&] {
            for_each_gate(event, [&](const trace_gate &gate) {
                gates_.close(gate.stream, gate.number, streams_[gate.stream]);
            });
        });
        for_each_gate(event, [&](const trace_gate &gate) {
            if (gate.says_use) {
                peer_.use(blocks_[event.slot], gate.stream);
            }
        });
        call<is_timed>(calls, [&] { peer_.free(blocks_[event.slot]); });
        off_the_clock([&] {
            for_each_gate(event, [&](const trace_gate &gate) {
                gates_.mark(gate.stream, gate.number, streams_[gate.stream]);
            });
        });
    }

    /* Runs the action while the clock stands; a refusal never passes here. */
    template <typename Action> void off_the_clock(Action action) {
        stopwatch_pause(&watch_);
        action();
        stopwatch_start(&watch_);
    }

    void write_sample(const Timeline &to, const trace_sample &sample) {
        std::fprintf(to.file, "%s,%s,%zu,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                     trace_.name, to.contender, sample.event, sample.live_bytes, peer_.reserved(),
                     trace_.live_peak_bytes, peer_.reserved_peak());
    }

    void clean_up() {
        gates_.note_progress(false);
        gates_.end_pass();
        for (Block &block : blocks_) {
            if (Peer::is_live(block)) {
                peer_.free(block);
            }
        }
        peer_.wait_for_device();
    }

    const trace &trace_;
    Peer &peer_;
    Gates gates_;
    std::vector<Block> blocks_;
    std::vector<cudaStream_t> streams_; /* asking each time would be on the clock */
    bool has_gates_;
    stopwatch watch_ = {};
};

/* ---- JSON ------------------------------------------------------------------------------------ */

inline double share(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

inline double micro(uint64_t ns) {
    return static_cast<double>(ns) * 1e-3;
}

inline void print_pass(dti_json &row, const char *name, const Pass &pass, uint64_t ops) {
    dti_json_open(&row, name, '{');
    dti_json_number(&row, "ops", ops);
    dti_json_number(&row, "stream_syncs", pass.cost.host_waits);
    dti_json_real(&row, "driver_time_us", micro(pass.cost.driver_ns), 3);
    dti_json_real(&row, "wall_us", micro(pass.wall_ns), 3);
    dti_json_close(&row, '}');
}

/* Where it is known. */
inline void print_count(dti_json &row, const char *name, std::optional<uint64_t> before,
                        std::optional<uint64_t> now) {
    if (now) {
        dti_json_number(&row, name, *now - before.value_or(0));
    }
}

/* ---- Measuring ------------------------------------------------------------------------------- */

struct Options {
    uint64_t repeat = 2;
    double seconds = 1e9; /* no pass begins later, but for the second one; and in timing calls */
    const char *given = nullptr; /* the program's own option and its value */
    std::vector<const char *> paths;
};

struct TraceDeleter {
    void operator()(trace *t) const {
        trace_free(t);
    }
};
using TracePointer = std::unique_ptr<trace, TraceDeleter>;

inline TracePointer load_trace(const char *path) {
    trace_error error;
    TracePointer t(trace_load(path, TRACE_BUSIEST_GPU, &error));
    if (t == nullptr) {
        throw std::runtime_error(std::string(path) + ":" + std::to_string(error.line) + ": " +
                                 error.reason);
    }
    return t;
}

template <typename Peer> class Bench {
  public:
    Bench(const Driver &driver, Peer &peer, const Options &options)
        : driver_(driver), peer_(peer), options_(options) {
    }

    /* From an empty cache: the passes, then those in which each call is timed. */
    void measure(const trace &t) {
        PeerShortage before = peer_.shortage();
        std::vector<Pass> passes = run_passes(t);
        PeerShortage now = peer_.shortage();
        uint64_t peak = peer_.reserved_peak();
        dti_json row = begin_row(t);
        print_passes(row, t, passes, peak);
        print_count(row, "pressure_waits", before.waits, now.waits);
        print_count(row, "pressure_returns", before.returns, now.returns);
        dti_json_bool(&row, "uses_end_at_once", uses_end_at_once_);
        if (passes.back().completed) {
            print_times_of_calls(row, t);
        }
        end_row(row);
    }

    /* Other processes have the device now. */
    void rest() {
        peer_.give_back();
    }

    void measure_capacity(const trace &t) {
        peer_.start_afresh(0);
        peer_.make_streams(t);
        bool completed = Replay<Peer>(driver_, peer_, t).run().completed;
        uint64_t peak = peer_.reserved_peak();
        dti_json row = begin_row(t);
        dti_json_bool(&row, "completed", completed);
        if (completed) {
            print_min_capacity(row, t, find_min_capacity(t, peak));
        }
        end_row(row);
    }

    void write_timeline(const trace &t, const char *path) {
        std::FILE *file = std::fopen(path, "ae");
        if (file == nullptr) {
            throw std::runtime_error(std::string(path) + " cannot be written");
        }
        peer_.start_afresh(0);
        peer_.make_streams(t);
        bool completed =
            Replay<Peer>(driver_, peer_, t).run_sampled({file, peer_.name()}).completed;
        bool written = std::fclose(file) == 0;
        dti_json row = begin_row(t);
        dti_json_bool(&row, "completed", completed && written);
        end_row(row);
    }

  private:
    std::vector<Pass> run_passes(const trace &t) {
        peer_.start_afresh(0);
        peer_.make_streams(t);
        Replay<Peer> replay(driver_, peer_, t);
        std::vector<Pass> passes;
        uint64_t end = end_of_time();
        while (passes.size() < options_.repeat && (passes.empty() || passes.back().completed) &&
               (passes.size() < 2 || host_now_ns() < end)) {
            passes.push_back(replay.run());
        }
        uses_end_at_once_ = replay.ended_uses_at_once();
        return passes;
    }

    /* After it no pass begins that need not. */
    uint64_t end_of_time() const {
        return host_now_ns() + static_cast<uint64_t>(std::min(options_.seconds, 1e9) * 1e9);
    }

    dti_json begin_row(const trace &t) {
        dti_json row = dti_json_begin_line(stdout);
        dti_json_text(&row, "trace", t.name);
        dti_json_text(&row, "contender", peer_.name());
        dti_json_text(&row, "device", driver_.name().c_str());
        dti_json_number(&row, "events", t.n_file_events);
        dti_json_number(&row, "streams", t.n_streams);
        dti_json_number(&row, "live_peak_bytes", t.live_peak_bytes);
        return row;
    }

    static void end_row(dti_json &row) {
        dti_json_end_line(&row);
        std::fflush(stdout);
    }

    /* Of the passes after the first, where there are others: as in ductile-bench. */
    static double median_own_ns(const std::vector<Pass> &passes) {
        std::vector<uint64_t> own;
        for (size_t i = passes.size() > 1 ? 1 : 0; i < passes.size(); i++) {
            own.push_back(passes[i].own_ns());
        }
        std::sort(own.begin(), own.end());
        return static_cast<double>(own[(own.size() - 1) / 2] + own[own.size() / 2]) / 2;
    }

    static Pass sum(const std::vector<Pass> &passes) {
        Pass all;
        for (const Pass &pass : passes) {
            all.wall_ns += pass.wall_ns;
            all.cost.driver_ns += pass.cost.driver_ns;
            all.cost.host_waits += pass.cost.host_waits;
        }
        return all;
    }

    static void print_passes(dti_json &row, const trace &t, const std::vector<Pass> &passes,
                             uint64_t peak) {
        const Pass &last = passes.back();
        Pass all = sum(passes);
        auto ops = static_cast<double>(t.n_ops);
        dti_json_number(&row, "passes", passes.size());
        dti_json_number(&row, "reserved_peak_bytes", peak);
        dti_json_real(&row, "efficiency", share(t.live_peak_bytes, peak), 6);
        dti_json_bool(&row, "completed", last.completed);
        dti_json_real(&row, "ns_per_op", median_own_ns(passes) / ops, 2);
        dti_json_real(&row, "wall_ns_per_op", static_cast<double>(last.wall_ns) / ops, 2);
        dti_json_real(&row, "driver_time_us", micro(last.cost.driver_ns), 3);
        dti_json_number(&row, "stream_syncs", all.cost.host_waits);
        print_pass(row, "first_pass", passes.front(), t.n_ops);
        print_pass(row, "last_pass", last, t.n_ops);
        print_pass(row, "all_passes", all, t.n_ops * passes.size());
    }

    /* One cold pass and two warm ones, as in ductile-bench; one where the time is up. */
    void print_times_of_calls(dti_json &row, const trace &t) {
        uint64_t end = end_of_time();
        peer_.start_afresh(0);
        Calls calls(2 * static_cast<size_t>(t.n_ops));
        Replay<Peer> replay(driver_, peer_, t);
        replay.run_timed(calls);
        calls.end(row, "cold_call_ns");
        if (options_.repeat > 1) {
            replay.run_timed(calls);
            if (host_now_ns() < end) {
                replay.run_timed(calls);
            }
            calls.end(row, "warm_call_ns");
        }
    }

    bool completes_within(const trace &t, uint64_t cap) {
        peer_.start_afresh(cap);
        return Replay<Peer>(driver_, peer_, t).run().completed;
    }

    /* The least cap under which one pass completes, to 2 MiB; completion above it is presumed.
     * Doubled until it suffices: what was held without a cap may have been luck. */
    uint64_t find_min_capacity(const trace &t, uint64_t reserved) {
        constexpr uint64_t step = 2 * kMiB;
        uint64_t total = driver_.total_bytes() / step * step;
        uint64_t too_little = (t.live_peak_bytes - 1) / step * step;
        uint64_t enough = std::max((reserved + step - 1) / step * step, too_little + step);
        while (enough < total && !completes_within(t, enough)) {
            too_little = enough;
            enough = std::min(total, enough + enough / 8 / step * step + step);
        }
        while (enough - too_little > step) {
            uint64_t middle = too_little + (enough - too_little) / 2 / step * step;
            (completes_within(t, middle) ? enough : too_little) = middle;
        }
        return enough;
    }

    static void print_min_capacity(dti_json &row, const trace &t, uint64_t cap) {
        dti_json_text(&row, "min_capacity_device", "cuda");
        dti_json_number(&row, "min_capacity_bytes", cap);
        dti_json_real(&row, "min_capacity_efficiency", share(t.live_peak_bytes, cap), 6);
    }

    const Driver &driver_;
    Peer &peer_;
    const Options &options_;
    bool uses_end_at_once_ = false;
};

/* ---- Command line ---------------------------------------------------------------------------- */

/* own: the program's own option, which takes a value. */
inline bool parse(int argc, char **argv, const char *own, Options &options) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool has_value = i + 1 < argc;
        if (std::strcmp(word, "--repeat") == 0 && has_value) {
            options.repeat = std::strtoull(argv[++i], nullptr, 10);
        } else if (std::strcmp(word, "--seconds") == 0 && has_value) {
            options.seconds = std::strtod(argv[++i], nullptr);
        } else if (std::strcmp(word, own) == 0 && has_value) {
            options.given = argv[++i];
        } else if (word[0] == '-') {
            return false;
        } else {
            options.paths.push_back(word);
        }
    }
    return options.repeat > 0 && !options.paths.empty();
}

/* One line of standard input: `measure N`, `capacity N` or `timeline N FILE`, N counts the traces.
 */
template <typename Peer>
void answer(Bench<Peer> &bench, const std::vector<TracePointer> &traces, const std::string &line) {
    std::istringstream words(line);
    std::string verb;
    std::string file;
    size_t n = 0;
    words >> verb >> n >> std::ws;
    std::getline(words, file);
    if (n >= traces.size()) {
        throw std::runtime_error("there is no trace " + std::to_string(n));
    }
    if (verb == "measure") {
        bench.measure(*traces[n]);
    } else if (verb == "capacity") {
        bench.measure_capacity(*traces[n]);
    } else if (verb == "timeline") {
        bench.write_timeline(*traces[n], file.c_str());
    } else {
        throw std::runtime_error("what is '" + verb + "'?");
    }
}

/* A row that could not be finished still ends its line, so that the next one is whole. */
inline void print_failure(const std::string &reason) {
    (void)std::putchar('\n');
    dti_json row = dti_json_begin_line(stdout);
    dti_json_text(&row, "failed", reason.c_str());
    dti_json_end_line(&row);
    std::fflush(stdout);
}

/* Loads all traces and says so, then answers line by line. */
template <typename Peer> void serve(Peer &peer, const Options &options) {
    Driver driver;
    Bench<Peer> bench(driver, peer, options);
    std::vector<TracePointer> traces;
    for (const char *path : options.paths) {
        traces.push_back(load_trace(path));
    }
    dti_json ready = dti_json_begin_line(stdout);
    dti_json_number(&ready, "ready", traces.size());
    dti_json_end_line(&ready);
    std::fflush(stdout);
    char line[4096];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        line[std::strcspn(line, "\n")] = '\0';
        try {
            answer(bench, traces, line);
        } catch (const std::exception &e) {
            std::string what = e.what();
            print_failure(what.substr(0, what.find('\n')));
        }
        bench.rest();
    }
}

/* The program of a peer: `bench/run compare` starts it and asks. run(options) serves; it returns
 * the exit status. */
template <typename Run>
int peer_main(int argc, char **argv, const char *program, const char *own, Run run) {
    Options options;
    if (!parse(argc, argv, own, options)) {
        std::fprintf(stderr, "usage: %s %s VALUE [--repeat N] [--seconds S] TRACE...\n", program,
                     own);
        return 2;
    }
    try {
        return run(options);
    } catch (const std::exception &e) {
        std::string what = e.what();
        std::fprintf(stderr, "%s: %s\n", program, what.substr(0, what.find('\n')).c_str());
    }
    return 1;
}

#endif
