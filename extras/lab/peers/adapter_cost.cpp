/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the adapter adds to a call of the library, without a GPU: replays the allocations and frees
 * of a trace on the virtual GPU, by turns straight through the library and through PyTorch's
 * allocator, which is the adapter. All on one stream; uses by others are left out. Of each piece of
 * the trace the quickest of all passes counts, so that a busy machine shows little.
 *
 *     DUCTILE_CONF=driver:virtual adapter_cost ADAPTER [--passes N] TRACE...
 *
 * Prints one JSON object a line. play_library and play_adapter are functions of their own, so that
 * valgrind --tool=callgrind --toggle-collect=play_adapter counts the instructions of one of them.
 */
#include "extras/lab/peers/peer.hpp"

#include <c10/cuda/CUDACachingAllocator.h>

extern "C" {
#include "bench/base/stopwatch.h"
#include "bench/trace/trace_read.h"
#include "vmm/base/json.h"
}

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

/* The library that the adapter has loaded. */
struct Library {
    decltype(&ductile_alloc) alloc = nullptr;
    decltype(&ductile_free) free = nullptr;
    decltype(&ductile_get_stats) get_stats = nullptr;
    decltype(&ductile_time_driver_calls) time_driver_calls = nullptr;
    ductile_allocator *allocator = nullptr;
};

Library library;
caching::CUDAAllocator *adapter = nullptr;

void load_adapter(const char *path) {
    void *loaded = dlopen(path, RTLD_NOW);
    if (loaded == nullptr) {
        throw std::runtime_error(dlerror());
    }
    char message[512] = "";
    int (*install)(char *, size_t) = nullptr;
    int (*init)(int, char *, size_t) = nullptr;
    ductile_allocator *(*open)(int, char *, size_t) = nullptr;
    load(loaded, "ductile_torch_install", install);
    load(loaded, "ductile_torch_init", init);
    load(loaded, "ductile_torch_open", open);
    load(loaded, "ductile_alloc", library.alloc);
    load(loaded, "ductile_free", library.free);
    load(loaded, "ductile_get_stats", library.get_stats);
    load(loaded, "ductile_time_driver_calls", library.time_driver_calls);
    if (install(message, sizeof message) != 0 || init(1, message, sizeof message) != 0) {
        throw std::runtime_error(message);
    }
    adapter = caching::get();
    library.allocator = open(0, message, sizeof message);
    if (library.allocator == nullptr) {
        throw std::runtime_error(message);
    }
    library.time_driver_calls(library.allocator);
}

uint64_t driver_ns() {
    ductile_stats stats = {};
    stats.struct_size = sizeof stats;
    return library.get_stats(library.allocator, nullptr, &stats) == DUCTILE_OK
               ? stats.driver_host_ns
               : 0;
}

constexpr size_t kPiece = 2048; /* events */

struct Piece {
    const trace &t;
    size_t first;
    size_t end;
};

using Blocks = std::vector<void *>;

template <typename Alloc, typename Free>
void play(const Piece &piece, Blocks &blocks, Alloc alloc, Free free) {
    const trace &t = piece.t;
    for (size_t i = piece.first; i < piece.end; i++) {
        const trace_event &event = t.events[i];
        if (event.kind == TRACE_ALLOC) {
            blocks[event.slot] = alloc(static_cast<size_t>(event.size));
        } else if (event.kind == TRACE_FREE || event.kind == TRACE_FREE_GATED) {
            free(blocks[event.slot]);
            blocks[event.slot] = nullptr;
        }
    }
}

void *take(size_t size) {
    ductile_addr address = 0;
    if (library.alloc(library.allocator, size, nullptr, &address) != DUCTILE_OK) {
        throw std::runtime_error("the virtual GPU is too small for the trace");
    }
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address));
}

void give_back(void *block) {
    auto address = static_cast<ductile_addr>(reinterpret_cast<uintptr_t>(block));
    if (library.free(library.allocator, address) != DUCTILE_OK) {
        throw std::runtime_error("a free was refused");
    }
}

} // namespace

extern "C" __attribute__((noinline)) void play_library(const Piece &piece, Blocks &blocks) {
    play(piece, blocks, take, give_back);
}

extern "C" __attribute__((noinline)) void play_adapter(const Piece &piece, Blocks &blocks) {
    play(
        piece, blocks, [](size_t size) { return adapter->raw_alloc_with_stream(size, nullptr); },
        [](void *block) { adapter->raw_delete(block); });
}

namespace {

/* The first pass grows: it is not counted. */
void warm_up(const Piece &piece, Blocks &blocks) {
    play(piece, blocks, take, give_back);
}

/* Host time of one piece without driver calls. */
double time_piece(const Piece &piece, Blocks &blocks, void (*pass)(const Piece &, Blocks &)) {
    uint64_t driver_before = driver_ns();
    uint64_t start = host_now_ns();
    pass(piece, blocks);
    uint64_t took = host_now_ns() - start;
    uint64_t in_driver = driver_ns() - driver_before;
    return static_cast<double>(took - std::min(took, in_driver));
}

/* One pass; `least` has the quickest time of each piece. What is live in the end is freed. */
void run_pass(const trace &t, std::vector<double> &least, void (*pass)(const Piece &, Blocks &)) {
    Blocks blocks(t.n_slots);
    least.resize((t.n_events + kPiece - 1) / kPiece, 1e18);
    for (size_t i = 0; i < least.size(); i++) {
        Piece piece = {t, i * kPiece, std::min(t.n_events, (i + 1) * kPiece)};
        least[i] = std::min(least[i], time_piece(piece, blocks, pass));
    }
    for (void *block : blocks) {
        if (block != nullptr) {
            give_back(block);
        }
    }
}

double per_call(const trace &t, const std::vector<double> &pieces) {
    double sum = 0;
    for (double piece : pieces) {
        sum += piece;
    }
    return sum / static_cast<double>(t.n_ops);
}

void measure(const trace &t, int n_passes) {
    std::vector<double> unused;
    std::vector<double> by_library;
    std::vector<double> by_adapter;
    run_pass(t, unused, warm_up);
    for (int i = 0; i < n_passes; i++) {
        run_pass(t, by_library, play_library);
        run_pass(t, by_adapter, play_adapter);
    }
    double library_ns = per_call(t, by_library);
    double adapter_ns = per_call(t, by_adapter);
    dti_json row = dti_json_begin_line(stdout);
    dti_json_text(&row, "trace", t.name);
    dti_json_number(&row, "calls", t.n_ops);
    dti_json_signed(&row, "passes", n_passes);
    dti_json_real(&row, "library_ns_per_call", library_ns, 2);
    dti_json_real(&row, "adapter_ns_per_call", adapter_ns, 2);
    dti_json_real(&row, "added_ns_per_call", adapter_ns - library_ns, 2);
    dti_json_end_line(&row);
    std::fflush(stdout);
}

bool measure_file(const char *path, int n_passes) {
    trace_error error;
    trace *t = trace_load(path, TRACE_FULLEST_GPU, &error);
    if (t == nullptr) {
        std::fprintf(stderr, "adapter_cost: %s: %s\n", path, error.reason);
        return false;
    }
    measure(*t, n_passes);
    trace_free(t);
    return true;
}

} // namespace

int main(int argc, char **argv) {
    int first = 2;
    int n_passes = 10;
    if (argc > 3 && std::strcmp(argv[2], "--passes") == 0) {
        n_passes = std::atoi(argv[3]);
        first = 4;
    }
    if (argc <= first || n_passes < 1) {
        std::fprintf(stderr, "usage: adapter_cost ADAPTER [--passes N] TRACE...\n");
        return 2;
    }
    try {
        load_adapter(argv[1]);
        bool ok = true;
        for (int i = first; i < argc; i++) {
            ok = measure_file(argv[i], n_passes) && ok;
        }
        // libtorch_cuda's own clean-up does not survive in a program that PyTorch did not start
        std::_Exit(ok ? 0 : 1);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "adapter_cost: %s\n", e.what());
    }
    return 1;
}
