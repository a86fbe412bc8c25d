/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when a request is refused: whom to ask, whom to tell, and the message. */
#include "torch_allocator.h"

#include "torch_settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace ductile_torch {

namespace {

std::mutex observers_mutex;
auto &observers = *new std::vector<caching::OutOfMemoryObserver>();
#if DUCTILE_TORCH_MINOR >= 12
auto &rejection_observers = *new std::vector<caching::OomRejectionObserver>();
#endif

struct MemoryInfo {
    size_t free = 0;
    size_t total = 0;
};

/* Zeros when the driver does not answer: the refusal has to be reported nevertheless. */
MemoryInfo read_memory_info(const Device &device) {
    MemoryInfo info;
    try {
        const c10::cuda::CUDAGuard guard(device.index);
        if (cudaMemGetInfo(&info.free, &info.total) != cudaSuccess) {
            (void)cudaGetLastError();
        }
    } catch (const c10::Error &) {
        info = {};
    }
    return info;
}

/* What the library may hold: the smallest of PyTorch's fraction,
 * Ductile's own limit, the device. */
ductile_limits read_limits(Device &device) {
    auto limits = sized<ductile_limits>();
    return ductile_get_limits(device.open(), &limits) == DUCTILE_OK ? limits : ductile_limits{};
}

/* Who uses the device, in PyTorch's sentences; nothing of what is not known. own_bytes: held by the
 * allocators of PyTorch here. */
std::string write_processes(const Device &device, uint64_t own_bytes) {
    std::array<char, 32> bus_id = {};
    std::array<ductile_gpu_process, 256> found = {};
    size_t n = 0;
    if (cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device.index) != cudaSuccess) {
        (void)cudaGetLastError();
        return std::string();
    }
    if (ductile_list_gpu_processes(bus_id.data(), found.data(), found.size(), &n) != DUCTILE_OK) {
        return std::string();
    }
    std::string others;
    std::string own;
    for (size_t i = 0; i < std::min(n, found.size()); i++) {
        const std::string bytes = format_bytes(found[i].used_bytes);
        if (found[i].pid != static_cast<uint64_t>(getpid())) {
            others +=
                "Process " + std::to_string(found[i].pid) + " has " + bytes + " memory in use. ";
            continue;
        }
        own = "Including non-PyTorch memory, this process has " + bytes + " memory in use. ";
        if (found[i].used_bytes > own_bytes) {
            own += format_bytes(found[i].used_bytes - own_bytes) +
                   " of it is CUDA's context and libraries that do not allocate through PyTorch. ";
        }
    }
    return others + own;
}

/* The sentences are PyTorch's, so that what reads its messages reads these; the advice is not: it
 * comes from the state of this allocator. */
std::string write_message(Device &device, const ductile_stats &stats, const MemoryInfo &info,
                          size_t size) {
    ductile_limits limits = read_limits(device);
    uint64_t native = native_reserved(device.index);
    std::string out = "CUDA out of memory. Tried to allocate " + format_bytes(size) + ". GPU " +
                      std::to_string(device.index) + " has a total capacity of " +
                      format_bytes(info.total) + " of which " + format_bytes(info.free) +
                      " is free. " + write_processes(device, stats.reserved_bytes + native);
    if (limits.limit_bytes < limits.device_bytes) {
        out += format_bytes(limits.limit_bytes) + " allowed; ";
    }
    uint64_t unallocated = held_of(stats) - stats.allocated_bytes;
    return out + "Of the allocated memory " + format_bytes(stats.allocated_bytes) +
           " is allocated by PyTorch, and " + format_bytes(unallocated) +
           " is reserved by PyTorch but unallocated. " +
           (stats.spilled_bytes != 0
                ? format_bytes(stats.spilled_bytes) + " of it lies in the host's memory. "
                : "") +
           (native != 0 ? format_bytes(native) + " more is held by PyTorch's own allocator. "
                        : "") +
           (device.captures > 0 ? "A CUDA graph is being captured: memory that streams still use "
                                  "cannot be waited for. "
                                : "");
}

template <typename Observer>
std::vector<Observer> copy_observers(const std::vector<Observer> &registered) {
    const std::lock_guard<std::mutex> lock(observers_mutex);
    return registered;
}

/* Counts the refusal, and tells whom it concerns. */
void tell_refused(Device &device, const ductile_stats &stats, const MemoryInfo &info, size_t size) {
#if DUCTILE_TORCH_MINOR >= 12
    if (is_rejection(device)) {
        device.failures.rejections++;
        for (const auto &observer : copy_observers(rejection_observers)) {
            observer(device.index, size, stats.reserved_bytes, read_limits(device).device_bytes);
        }
        return;
    }
#endif
    (void)stats;
    device.failures.ooms++;
    for (const auto &observer : copy_observers(observers)) {
        observer(device.index, size, read_limits(device).limit_bytes, info.free);
    }
}

std::string write_advice(Device &device) {
    auto report = sized<ductile_oom_report>();
    ductile_allocator *a = device.open();
    if (ductile_get_oom_report(a, &report) != DUCTILE_OK || report.number == 0) {
        return std::string();
    }
    std::string fraction = "PyTorch's memory fraction (set_per_process_memory_fraction)";
    if (uint64_t native = native_reserved(device.index)) {
        fraction += ", beside " + format_bytes(native) + " of PyTorch's own allocator,";
    }
    report.limit_name = device.is_fraction(report.limit_bytes) ? fraction.c_str() : nullptr;
    std::string text(ductile_oom_report_format(&report, DUCTILE_REPORT_TEXT, nullptr, 0) + 1, '\0');
    (void)ductile_oom_report_format(&report, DUCTILE_REPORT_TEXT, &text[0], text.size());
    text.pop_back();
    return "\nDuctile: " + text;
}

} // namespace

/* PyTorch's policy for servers: under a memory fraction, what exceeds it is refused without asking
 * any observer, and is counted apart. */
bool is_rejection(Device &device) {
    auto report = sized<ductile_oom_report>();
    return device.fraction < 1.0 && rejects_early() &&
           ductile_get_oom_report(device.open(), &report) == DUCTILE_OK &&
           report.needed_bytes > report.limit_bytes;
}

/* Who registered to give memory back, such as the collector of tensors sent to other processes. */
bool run_free_memory_callbacks() {
    bool freed = false;
    for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
        freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
}

void raise_out_of_memory(Device &device, size_t size, cudaStream_t stream, Context context) {
    std::string advice = write_advice(device);
    ductile_stats stats = read_stats(device);
    MemoryInfo info = read_memory_info(device);
    {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        device.watch.record(TraceEntry::OOM, info.free, size, stream, {0, 0}, context);
    }
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), stats.allocated_bytes,
                                     stats.reserved_bytes, to_device(device.index));
    tell_refused(device, stats, info, size);
    TORCH_CHECK_WITH(OutOfMemoryError, false, write_message(device, stats, info, size), advice,
                     " See documentation for Memory Management  "
                     "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)");
    abort(); /* not reached: the check throws */
}

void raise_asleep(Device &device, size_t size) {
    auto refusal = sized<ductile_refusal>();
    bool is_known = ductile_sleep_refusal(device.open(), &refusal) == DUCTILE_OK;
    std::string name = is_known && refusal.tag[0] != '\0' ? std::string("'") + refusal.tag + "'"
                                                          : "memory without a tag";
    TORCH_CHECK(
        false, "Ductile: ", format_bytes(size), " on GPU ", std::to_string(device.index),
        " belong to ", name,
        ", which sleeps: wake it first (ductile_gpu.torch.wake), or allocate outside of "
        "it (ductile_gpu.torch.outside)");
    abort(); /* not reached: the check throws */
}

/* What native refuses first, it is asked for again: of that no observer hears. */
template <typename Observer>
static void attach(std::vector<Observer> &own, Observer observer,
                   void (caching::CUDAAllocator::*at_native)(Observer)) {
    if (is_native_in_use()) {
        (native_allocator()->*at_native)([observer](auto... told) {
            if (!is_first_try()) {
                observer(told...);
            }
        });
    }
    const std::lock_guard<std::mutex> lock(observers_mutex);
    own.push_back(std::move(observer));
}

void Allocator::attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) {
    attach(observers, std::move(observer), &caching::CUDAAllocator::attachOutOfMemoryObserver);
}

#if DUCTILE_TORCH_MINOR >= 12
void Allocator::attachOomRejectionObserver(caching::OomRejectionObserver observer) {
    attach(rejection_observers, std::move(observer),
           &caching::CUDAAllocator::attachOomRejectionObserver);
}
#endif

} // namespace ductile_torch
