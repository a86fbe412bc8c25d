/* SPDX-License-Identifier: Apache-2.0 */
/* What the Python side calls. Nothing throws out of here. */
#include "torch_allocator.h"

#include "torch_settings.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <atomic>
#include <cstdio>
#include <type_traits>

namespace ductile_torch {

namespace {

/* Never destroyed: tensors are freed while and after static objects are. */
Allocator *the_allocator() {
    static auto *allocator = new Allocator();
    return allocator;
}

void write_message(char *message, size_t size, const std::string &text) {
    if (message != nullptr && size > 0) {
        (void)std::snprintf(message, size, "%s", text.c_str());
    }
}

/* Not now; Python raises TooLate. */
struct NotNow : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Runs `action`; returns 0, or 1 or 2 (NotNow) with a message. */
template <typename Action> int guarded(char *message, size_t size, Action action) {
    try {
        action();
        return 0;
    } catch (const c10::Error &e) {
        write_message(message, size, e.what_without_backtrace());
    } catch (const NotNow &e) {
        write_message(message, size, e.what());
        return 2;
    } catch (const std::exception &e) {
        write_message(message, size, e.what());
    }
    return 1;
}

std::atomic<void (*)()> note{nullptr};
auto &own_trackers = *new std::vector<caching::AllocatorTraceTracker>();

/* A context is what PyTorch's allocators ask for before they lock anything. What is noted is kept
 * by its thread: with contexts of another kind PyTorch could not write snapshots. */
Context gather_note() {
    void (*take)() = note.load(std::memory_order_acquire);
    if (take != nullptr) {
        take();
    }
    return nullptr;
}

/* For allocations, not for frees. What later versions of PyTorch may be told is left as it is. */
template <typename... More>
void gather(void (caching::CUDAAllocator::*record)(bool, caching::CreateContextFn, size_t,
                                                   RecordContext, More...),
            bool on) {
    (caching::get()->*record)(on, on ? gather_note : nullptr, 1,
                              on ? RecordContext::ALLOC : RecordContext::NEVER,
                              std::decay_t<More>{}...);
}

/* ---- Taking native's place ------------------------------------------------------------------ */

/* A capture that began under one allocator ends under it. Pre: CUDA is in use, for to ask would
 * initialise it. */
void refuse_while_capturing() {
    DeviceIndex device = -1;
    if (c10::cuda::GetDevice(&device) != cudaSuccess || device < 0) {
        (void)cudaGetLastError();
        return;
    }
    if (is_captured(c10::cuda::getCurrentCUDAStream(device).stream())) {
        throw NotNow("a CUDA graph is being captured on the current stream: call enable() or "
                     "disable() before the capture begins, or after it has ended");
    }
}

void refuse_others(caching::CUDAAllocator *current) {
    std::string name = current->name();
    TORCH_CHECK(name != "pluggable",
                "PyTorch's allocator is a CUDAPluggableAllocator already: "
                "Ductile does not replace it. Leave torch.cuda.memory.change_current_allocator "
                "out of the program, or use ductile_gpu.torch.mem_pool() beside it");
    TORCH_CHECK(name != "cudaMallocAsync",
                "PyTorch's allocator is cudaMallocAsync, which the "
                "setting backend:cudaMallocAsync chose when PyTorch was loaded: Ductile replaces "
                "the native one. Leave that setting out");
    TORCH_CHECK(name == "native", "PyTorch's allocator is \"", name,
                "\", not its own native one: Ductile does not replace it");
}

/* As far as native says it: whom it tells of what, only native knows. */
void take_over_settings(caching::CUDAAllocator *native) {
    the_allocator()->init(count_native_devices(native));
    for (Device &device : AllDevices()) {
        device.fraction = native->getMemoryFraction(device.index);
        if (native_reserved(device.index) != 0) {
            (void)device.open(); /* what fails, fails before anything has changed */
        }
    }
    if (!native->isEnabled()) {
        the_allocator()->enable(false);
        native->enable(true); /* or it would take cached memory for memory of cudaMalloc */
    }
}

/* PyTorch exchanges an allocator only before that is in use, but asks the current one whether it
 * is. */
void become_current() {
    std::shared_ptr<caching::CUDAAllocator> shared(the_allocator(),
                                                   [](caching::CUDAAllocator *) {});
    caching::allocator.store(the_allocator());
    is_being_installed = true;
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    is_being_installed = false;
    c10::SetAllocator(c10::DeviceType::CUDA, the_allocator());
}

/* What this file attached to native hears Ductile too. */
void follow_over() {
    for (const auto &tracker : own_trackers) {
        the_allocator()->attachAllocatorTraceTracker(tracker);
    }
    if (note.load() != nullptr) {
        gather(&caching::CUDAAllocator::recordHistory, true);
    }
}

void take_native_s_place(caching::CUDAAllocator *native) {
    refuse_others(native);
    remember_native(native);
    stay_with_native();
    if (is_native_in_use()) {
        take_over_settings(native);
    }
    follow_settings();
    become_current();
    follow_over();
}

void install() {
    caching::CUDAAllocator *current = caching::allocator.load();
    TORCH_CHECK(current != nullptr, "PyTorch has no CUDA allocator yet");
    if (current->initialized()) {
        refuse_while_capturing();
    }
    if (current != the_allocator()) {
        take_native_s_place(current);
    } else if (is_off() && n_devices > 0) {
        native_allocator()->enable(true);
    }
    serve_by_ductile();
}

void leave() {
    if (caching::allocator.load() != the_allocator()) {
        throw NotNow("another allocator has taken Ductile's place in this process");
    }
    if (n_devices > 0) {
        refuse_while_capturing();
        native_allocator()->enable(caching_enabled);
    }
    serve_by_native();
}

/* The pool of an entry; NULL: entries of this PyTorch do not say it. */
template <typename Entry> auto said_pool(const Entry &entry, int) -> decltype(&entry.mempool_) {
    return &entry.mempool_;
}

template <typename Entry> const MempoolId_t *said_pool(const Entry & /*entry*/, long) {
    return nullptr;
}

} // namespace

} // namespace ductile_torch

using namespace ductile_torch;

extern "C" {

#define ADAPTER_API __attribute__((visibility("default")))

/* Makes Ductile the allocator of this process, or has it serve again. 0; 1 or, where it cannot be
 * now, 2 with a message. */
ADAPTER_API int ductile_torch_install(char *message, size_t size) {
    return guarded(message, size, install);
}

ADAPTER_API int ductile_torch_is_installed(void) {
    return caching::allocator.load() == the_allocator();
}

/* Gives new memory back to PyTorch's own allocator. What Ductile has served stays with it until it
 * is freed. 0; 1 or, where it cannot be now, 2 with a message. */
ADAPTER_API int ductile_torch_leave(char *message, size_t size) {
    return guarded(message, size, leave);
}

/* Does new memory come from Ductile, or will it when pools are closed that were open before? */
ADAPTER_API int ductile_torch_is_serving(void) {
    return ductile_torch_is_installed() != 0 && !is_off();
}

/* Pools and captures that were open before Ductile came and are not closed yet: so long new memory
 * comes from PyTorch's own allocator. */
ADAPTER_API int ductile_torch_inherited(void) {
    return static_cast<int>(count_inherited());
}

/* Is `take` of ductile_torch_gather called? */
ADAPTER_API int ductile_torch_is_gathering(void) {
    return note.load() != nullptr;
}

/* Options of the library, as in DUCTILE_CONF, for devices that are still to be used. */
ADAPTER_API int ductile_torch_set_options(const char *text, char *message, size_t size) {
    return guarded(message, size, [&] { set_options(text); });
}

/* For what probes for out-of-memory: 1 before it, -1 after it. */
ADAPTER_API int ductile_torch_forbid_spilling(int more, char *message, size_t size) {
    return guarded(message, size, [&] { forbid_spilling(more); });
}

/* The library's allocator of a device, made if need be; NULL with a message when it cannot be. */
ADAPTER_API ductile_allocator *ductile_torch_open(int device, char *message, size_t size) {
    ductile_allocator *a = nullptr;
    (void)guarded(message, size,
                  [&] { a = device_at(static_cast<c10::DeviceIndex>(device)).open(); });
    return a;
}

/* After the allocator's settings have been parsed again,
 * with a memory fraction among them or not. */
ADAPTER_API int ductile_torch_refresh(int is_fraction_named, char *message, size_t size) {
    return guarded(message, size, [&] { refresh_settings(is_fraction_named != 0); });
}

/* Why calls do not take the quick path at the moment: bits of `Special`; 0: they do. */
ADAPTER_API unsigned ductile_torch_detours(void) {
    return special.load();
}

/* Tells as many devices as PyTorch would: for programs that use the allocator without CUDA's
 * initialisation, such as tests on the virtual GPU. */
ADAPTER_API int ductile_torch_init(int device_count, char *message, size_t size) {
    return guarded(message, size, [&] { the_allocator()->init(device_count); });
}

/* allocateWithAddress, likewise. The block is the caller's. */
ADAPTER_API int ductile_torch_alloc_at(size_t bytes, void *address, cudaStream_t stream,
                                       char *message, size_t size) {
    return guarded(message, size, [&] {
        Device &device = device_at(0);
        (void)allocate_at(device, bytes, address, stream).release_context();
    });
}

/* Has PyTorch's allocator of the moment, Ductile or not, tell `event` of each allocation and free,
 * with the action's number in PyTorch's TraceEntry, and of its pool the two numbers, or NULL where
 * this PyTorch does not say them. CUDA must be initialised. There is no way back. */
ADAPTER_API int ductile_torch_track(void (*event)(int action, int device, uint64_t address,
                                                  uint64_t bytes, uint64_t stream,
                                                  const uint64_t *pool),
                                    char *message, size_t size) {
    return guarded(message, size, [&] {
        auto tracker = [event](const TraceEntry &entry) {
            const MempoolId_t *said = said_pool(entry, 0);
            const uint64_t pool[] = {said != nullptr ? said->first : 0,
                                     said != nullptr ? said->second : 0};
            event(static_cast<int>(entry.action_), entry.device_, entry.addr_, entry.size_,
                  reinterpret_cast<uintptr_t>(entry.stream_), said != nullptr ? pool : nullptr);
        };
        caching::get()->attachAllocatorTraceTracker(tracker);
        if (ductile_torch_is_installed() == 0) {
            own_trackers.push_back(tracker);
        }
    });
}

/* Has it call `take` on the thread of each allocation before the allocation, with nothing locked;
 * NULL: no more. It is PyTorch's history, with one entry and no stacks: a program that records
 * history replaces it. */
ADAPTER_API int ductile_torch_gather(void (*take)(void), char *message, size_t size) {
    return guarded(message, size, [&] {
        note.store(take, std::memory_order_release);
        gather(&caching::CUDAAllocator::recordHistory, take != nullptr);
    });
}

/* The library's allocator of a device; NULL when it has served nothing yet. */
ADAPTER_API ductile_allocator *ductile_torch_allocator(int device) {
    if (device < 0 || device >= n_devices) {
        return nullptr;
    }
    return devices[device].opened();
}

/* The version of PyTorch compiled against, as "2.11.0". */
ADAPTER_API const char *ductile_torch_built_for(void) {
    return DUCTILE_TORCH_VERSION;
}

/* The sizes of what it and the library tell each other, of which the last is 0. */
ADAPTER_API const size_t *ductile_torch_layout(void) {
    static const size_t sizes[] = {sizeof(ductile_options),
                                   sizeof(ductile_stats),
                                   sizeof(ductile_block_info),
                                   sizeof(ductile_oom_report),
                                   sizeof(ductile_limits),
                                   sizeof(ductile_map_event),
                                   0};
    return sizes;
}

} /* extern "C" */
