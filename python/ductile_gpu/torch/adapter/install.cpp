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

/* Runs `action`; returns 0, or 1 with a message. */
template <typename Action> int guarded(char *message, size_t size, Action action) {
    try {
        action();
        return 0;
    } catch (const c10::Error &e) {
        write_message(message, size, e.what_without_backtrace());
    } catch (const std::exception &e) {
        write_message(message, size, e.what());
    }
    return 1;
}

void install() {
    caching::CUDAAllocator *current = caching::allocator.load();
    TORCH_CHECK(current != nullptr, "PyTorch has no CUDA allocator yet");
    if (current == the_allocator()) {
        return;
    }
    TORCH_CHECK(!current->initialized(),
                "CUDA is already initialised in this process: PyTorch's allocator cannot be "
                "exchanged any more. Call ductile_gpu.torch.enable() before the first use of CUDA");
    TORCH_CHECK(current->name() == "native", "PyTorch's allocator is \"", current->name(),
                "\", not its own native one: Ductile does not replace it");
    remember_native(current);
    follow_settings();
    std::shared_ptr<caching::CUDAAllocator> shared(the_allocator(),
                                                   [](caching::CUDAAllocator *) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    c10::SetAllocator(c10::DeviceType::CUDA, the_allocator());
}

std::atomic<void (*)()> note{nullptr};

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

} // namespace

} // namespace ductile_torch

extern "C" {

#define ADAPTER_API __attribute__((visibility("default")))

/* Makes Ductile the allocator of this process. 0, or 1 with a message. */
ADAPTER_API int ductile_torch_install(char *message, size_t size) {
    return ductile_torch::guarded(message, size, ductile_torch::install);
}

ADAPTER_API int ductile_torch_is_installed(void) {
    return ductile_torch::caching::allocator.load() == ductile_torch::the_allocator();
}

/* Options of the library, as in DUCTILE_CONF, for devices that are still to be used. */
ADAPTER_API int ductile_torch_set_options(const char *text, char *message, size_t size) {
    return ductile_torch::guarded(message, size, [&] { ductile_torch::set_options(text); });
}

/* The library's allocator of a device, made if need be; NULL with a message when it cannot be. */
ADAPTER_API ductile_allocator *ductile_torch_open(int device, char *message, size_t size) {
    ductile_allocator *a = nullptr;
    (void)ductile_torch::guarded(message, size, [&] {
        a = ductile_torch::device_at(static_cast<c10::DeviceIndex>(device)).open();
    });
    return a;
}

/* After the allocator's settings have been parsed again, with a memory fraction among them or not.
 */
ADAPTER_API int ductile_torch_refresh(int is_fraction_named, char *message, size_t size) {
    return ductile_torch::guarded(message, size,
                                  [&] { ductile_torch::refresh_settings(is_fraction_named != 0); });
}

/* Why calls do not take the quick path at the moment: bits of `Special`; 0: they do. */
ADAPTER_API unsigned ductile_torch_detours(void) {
    return ductile_torch::special.load();
}

/* Tells as many devices as PyTorch would: for programs that use the allocator without CUDA's
 * initialisation, such as tests on the virtual GPU. */
ADAPTER_API int ductile_torch_init(int device_count, char *message, size_t size) {
    return ductile_torch::guarded(message, size,
                                  [&] { ductile_torch::the_allocator()->init(device_count); });
}

/* allocateWithAddress, likewise. The block is the caller's. */
ADAPTER_API int ductile_torch_alloc_at(size_t bytes, void *address, cudaStream_t stream,
                                       char *message, size_t size) {
    return ductile_torch::guarded(message, size, [&] {
        ductile_torch::Device &device = ductile_torch::device_at(0);
        (void)ductile_torch::allocate_at(device, bytes, address, stream).release_context();
    });
}

/* Has PyTorch's allocator of the moment, Ductile or not, tell `event` of each allocation and free,
 * with the action's number in PyTorch's TraceEntry. CUDA must be initialised. There is no way back.
 */
ADAPTER_API int ductile_torch_track(void (*event)(int action, int device, uint64_t address,
                                                  uint64_t bytes, uint64_t stream),
                                    char *message, size_t size) {
    return ductile_torch::guarded(message, size, [&] {
        ductile_torch::caching::get()->attachAllocatorTraceTracker([event](const auto &entry) {
            event(static_cast<int>(entry.action_), entry.device_, entry.addr_, entry.size_,
                  reinterpret_cast<uintptr_t>(entry.stream_));
        });
    });
}

/* Has it call `take` on the thread of each allocation before the allocation, with nothing locked;
 * NULL: no more. It is PyTorch's history, with one entry and no stacks: a program that records
 * history replaces it. */
ADAPTER_API int ductile_torch_gather(void (*take)(void), char *message, size_t size) {
    return ductile_torch::guarded(message, size, [&] {
        ductile_torch::note.store(take, std::memory_order_release);
        ductile_torch::gather(&ductile_torch::caching::CUDAAllocator::recordHistory,
                              take != nullptr);
    });
}

/* The library's allocator of a device; NULL when it has served nothing yet. */
ADAPTER_API ductile_allocator *ductile_torch_allocator(int device) {
    if (device < 0 || device >= ductile_torch::n_devices) {
        return nullptr;
    }
    return ductile_torch::devices[device].allocator.load(std::memory_order_acquire);
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
