/* SPDX-License-Identifier: Apache-2.0 */
/* What happens when a request is refused: whom to ask, whom to tell, and the message. */
#include "torch_allocator.h"

#include "torch_settings.h"

namespace ductile_torch {

namespace {

std::mutex observers_mutex;
std::vector<caching::OutOfMemoryObserver> observers;

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

size_t allowed_bytes(const Device &device, const MemoryInfo &info) {
    return device.fraction < 1.0
               ? static_cast<size_t>(device.fraction * static_cast<double>(info.total))
               : info.total;
}

/* The sentences are PyTorch's, so that what reads its messages reads these; the advice is not: it
 * comes from the state of this allocator. */
std::string write_message(const Device &device, const ductile_stats &stats, const MemoryInfo &info,
                          size_t size) {
    std::string out = "CUDA out of memory. Tried to allocate " + format_bytes(size) + ". GPU " +
                      std::to_string(device.index) + " has a total capacity of " +
                      format_bytes(info.total) + " of which " + format_bytes(info.free) +
                      " is free. ";
    if (device.fraction < 1.0) {
        out += format_bytes(allowed_bytes(device, info)) + " allowed; ";
    }
    uint64_t unallocated = stats.reserved_bytes - stats.allocated_bytes;
    return out + "Of the allocated memory " + format_bytes(stats.allocated_bytes) +
           " is allocated by PyTorch, and " + format_bytes(unallocated) +
           " is reserved by PyTorch but unallocated. ";
}

std::string write_advice(Device &device) {
    ductile_oom_report report = {};
    report.struct_size = sizeof report;
    ductile_allocator *a = device.open();
    if (ductile_get_oom_report(a, &report) != DUCTILE_OK || report.number == 0) {
        return std::string();
    }
    std::string text(ductile_oom_report_text(&report, nullptr, 0) + 1, '\0');
    (void)ductile_oom_report_text(&report, &text[0], text.size());
    text.pop_back();
    return "\nDuctile: " + text;
}

} // namespace

void add_observer(caching::OutOfMemoryObserver observer) {
    const std::lock_guard<std::mutex> lock(observers_mutex);
    observers.push_back(std::move(observer));
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
    device.tally.ooms++;
    std::string advice = write_advice(device);
    ductile_stats stats = read_stats(device);
    MemoryInfo info = read_memory_info(device);
    {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        device.watch.note_out_of_memory(device, info.free, size, stream, std::move(context));
    }
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), stats.allocated_bytes,
                                     stats.reserved_bytes,
                                     c10::Device(c10::DeviceType::CUDA, device.index));
    std::vector<caching::OutOfMemoryObserver> told;
    {
        const std::lock_guard<std::mutex> lock(observers_mutex);
        told = observers;
    }
    for (const auto &observer : told) {
        observer(device.index, size, allowed_bytes(device, info), info.free);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, write_message(device, stats, info, size), advice,
                     " See documentation for Memory Management  "
                     "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)");
    abort(); /* not reached: the check throws */
}

void Allocator::attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) {
    add_observer(std::move(observer));
}

} // namespace ductile_torch
