/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations and frees. A quick one asks what PyTorch's own allocator would ask too (who traces,
 * who profiles), tests one word, and calls the library; all else is out of line.
 */
#include "torch_allocator.h"

#include "torch_settings.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace ductile_torch {

std::atomic<bool> caching_enabled{true};

namespace {

/* ---- Memory straight from the driver -------------------------------------------------------- */

std::mutex uncached_mutex;
auto &uncached = *new std::unordered_map<void *, DeviceIndex>(); /* freed from at exit, too */

/* uncached_mutex held. */
void follow_uncached() {
    set_special(kUncached, !caching_enabled || !uncached.empty());
}

void *take_uncached(Device &device, size_t size, cudaStream_t stream) {
    const c10::cuda::CUDAGuard guard(device.index);
    void *ptr = nullptr;
    cudaError_t error = cudaMalloc(&ptr, size);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        raise_out_of_memory(device, size, stream, nullptr);
    }
    C10_CUDA_CHECK(error);
    const std::lock_guard<std::mutex> lock(uncached_mutex);
    uncached[ptr] = device.index;
    follow_uncached();
    return ptr;
}

bool give_back_uncached(void *ptr) {
    {
        const std::lock_guard<std::mutex> lock(uncached_mutex);
        if (uncached.erase(ptr) == 0) {
            return false;
        }
        follow_uncached();
    }
    C10_CUDA_CHECK(cudaFree(ptr));
    return true;
}

/* ---- The profiler --------------------------------------------------------------------------- */

/* c10::memoryProfilingEnabled, which asks this by way of one more call, when something is there. */
C10_ALWAYS_INLINE bool is_profiled() {
    return C10_UNLIKELY(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) !=
                        nullptr) &&
           c10::memoryProfilingEnabled();
}

void report_to_profiler(Device &device, void *ptr, int64_t change) {
    ductile_stats stats = read_stats(device);
    c10::reportMemoryUsageToProfiler(ptr, change, stats.allocated_bytes, held_of(stats),
                                     to_device(device.index));
}

/* ---- Allocating ----------------------------------------------------------------------------- */

/* Where a filter threw, the pool of the request is not known: what was served is given
 * back. */
C10_NOINLINE void refuse_if_thrown(ductile_allocator *a, ductile_addr address) {
    std::exception_ptr thrown = take_thrown();
    if (thrown != nullptr) {
        (void)ductile_free(a, address);
        std::rethrow_exception(thrown);
    }
}

ductile_status ask_library(ductile_allocator *a, size_t size, cudaStream_t stream,
                           ductile_addr *out) {
    ductile_status status = ductile_alloc(a, size, to_ductile(stream), out);
    if ((special.load(std::memory_order_relaxed) & kThrown) != 0) {
        refuse_if_thrown(a, *out);
    }
    return status;
}

/* A pool that is open for this thread until the end of a block. */
class OpenPool : Fixed {
  public:
    OpenPool(Device &device, const MempoolId_t &id) : device_(device), id_(id) {
        auto self = std::this_thread::get_id();
        device.pools.begin(id, [self](cudaStream_t) { return std::this_thread::get_id() == self; });
    }
    ~OpenPool() {
        try {
            device_.pools.end(id_);
            device_.pools.release(id_);
        } catch (const std::exception &e) {
            TORCH_WARN("closing a pool: ", e.what());
        }
    }

  private:
    Device &device_;
    MempoolId_t id_;
};

ductile_status try_last_resort(Device &device, const MempoolId_t &id, size_t size,
                               cudaStream_t stream, ductile_addr *out) {
    const OpenPool pool(device, id);
    if (!device.pools.is_native(id)) {
        return ask_library(device.open(), size, stream, out);
    }
    try {
        *out = to_address(native_allocator()->raw_alloc_with_stream(size, stream));
        return DUCTILE_OK;
    } catch (const c10::OutOfMemoryError &) {
        return DUCTILE_ERR_OUT_OF_MEMORY;
    }
}

ductile_status try_last_resorts(Device &device, size_t size, cudaStream_t stream,
                                ductile_addr *out) {
    ductile_status status = DUCTILE_ERR_OUT_OF_MEMORY;
    for (const MempoolId_t &id : device.pools.last_resorts()) {
        status = try_last_resort(device, id, size, stream, out);
        if (status == DUCTILE_OK) {
            break;
        }
    }
    return status;
}

/* Asks the library, then the observers that may free memory. */
ductile_status obtain(Device &device, size_t size, cudaStream_t stream, ductile_addr *out) {
    ductile_allocator *a = device.open();
    ductile_status status = ask_library(a, size, stream, out);
    if (status != DUCTILE_ERR_OUT_OF_MEMORY || is_rejection(device)) {
        return status;
    }
    bool has_more = run_free_memory_callbacks();
    /* the library asks native too, but not for what its limit forbids from the start */
    has_more |= reclaim_from_native(device) != 0;
    if (has_more) {
        device.failures.retries++;
        status = ask_library(a, size, stream, out);
    }
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        status = try_last_resorts(device, size, stream, out);
    }
    return status;
}

void *finish(Device &device, ductile_status status, ductile_addr address, size_t size,
             cudaStream_t stream, Context context) {
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        raise_out_of_memory(device, size, stream, std::move(context));
    }
    if (status == DUCTILE_ERR_ASLEEP) {
        raise_asleep(device, size);
    }
    if (status != DUCTILE_OK) {
        raise_status(device, status, "allocating");
    }
    note_home(to_pointer(address), device);
    return to_pointer(address);
}

/* The library is called without the device's mutex: it may run callbacks, which may want Python's
 * lock, whose holder may want the mutex. A thread that frees holds the mutex from the free to its
 * note, so that a block's notes are in the order of its life. */
void *take_noted(Device &device, size_t size, size_t rounded, cudaStream_t stream, unsigned flags) {
    Context context = gather_context(RecordContext::STATE);
    ductile_addr address = 0;
    ductile_status status = obtain(device, rounded, stream, &address);
    {
        const std::lock_guard<std::recursive_mutex> lock(device.mutex);
        if (status == DUCTILE_OK && rounded != size) {
            device.asked[to_pointer(address)] = size;
            device.rounded_up += rounded - size;
            count_rounded(1);
        }
        if ((flags & kWatched) != 0) {
            device.watch.note_changes(context);
            if (status == DUCTILE_OK) {
                device.watch.note_alloc(to_pointer(address), size, stream, context);
            }
        }
    }
    return finish(device, status, address, size, stream, std::move(context));
}

void *take_unprofiled(Device &device, size_t size, cudaStream_t stream) {
    constexpr size_t one_exa_bytes = 1152921504606846976ULL;
    TORCH_CHECK_WITH(OutOfMemoryError, size < one_exa_bytes,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    unsigned flags = special.load(std::memory_order_relaxed);
    if (!caching_enabled.load(std::memory_order_relaxed) && !is_off()) {
        return take_uncached(device, size, stream);
    }
    size_t rounded = (flags & kRounding) != 0 ? round_request(size) : size;
    if ((flags & (kWatched | kRounding)) != 0) {
        return take_noted(device, size, rounded, stream, flags);
    }
    ductile_addr address = 0;
    ductile_status status = obtain(device, size, stream, &address);
    Context context =
        status == DUCTILE_ERR_OUT_OF_MEMORY ? gather_context(RecordContext::STATE) : nullptr;
    return finish(device, status, address, size, stream, std::move(context));
}

/* Whatever is no plain hit. */
C10_NOINLINE void *take_otherwise(DeviceIndex index, size_t size, cudaStream_t stream) {
    Device &device = device_at(index);
    if (size != 0 && (special & kElsewhere) != 0 && device.pools.goes_to_native(stream)) {
        return take_native(device, size, stream); /* which tells the profiler itself */
    }
    void *ptr = size != 0 ? take_unprofiled(device, size, stream) : nullptr;
    if (ptr != nullptr && is_profiled()) {
        report_to_profiler(device, ptr, static_cast<int64_t>(size));
    }
    return ptr;
}

C10_ALWAYS_INLINE unsigned count_devices() {
    return static_cast<unsigned>(n_devices.load(std::memory_order_acquire));
}

/* A block of `size` bytes, or an exception. 0 bytes are nullptr. */
C10_ALWAYS_INLINE void *take_block(size_t size, DeviceIndex index, cudaStream_t stream) {
    /* -1, and all of them before init(), are no index below n_devices */
    if (C10_LIKELY(static_cast<unsigned>(index) < count_devices() &&
                   special.load(std::memory_order_relaxed) == 0 && !is_profiled())) {
        ductile_allocator *a = devices[index].opened();
        ductile_addr address = 0;
        if (C10_LIKELY(a != nullptr &&
                       ductile_alloc(a, size, to_ductile(stream), &address) == DUCTILE_OK)) {
            if (C10_UNLIKELY((special.load(std::memory_order_relaxed) & kThrown) != 0)) {
                refuse_if_thrown(a, address);
            }
            return to_pointer(address);
        }
    }
    return take_otherwise(index, size, stream);
}

C10_NOINLINE void tell_tracer(const c10::impl::PyInterpreter *interpreter, void *ptr,
                              bool is_allocation) {
    auto address = reinterpret_cast<uintptr_t>(ptr);
    if (is_allocation) {
        (*interpreter)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, address);
    } else {
        (*interpreter)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, address);
    }
}

C10_ALWAYS_INLINE void *take_traced(size_t size, DeviceIndex device, cudaStream_t stream) {
    void *ptr = take_block(size, device, stream);
    const c10::impl::PyInterpreter *interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interpreter != nullptr)) {
        tell_tracer(interpreter, ptr, true);
    }
    return ptr;
}

/* ---- Freeing -------------------------------------------------------------------------------- */

/* The process or the device is going away: nothing can be done about its memory any more. */
bool is_end(ductile_status status) {
    return status == DUCTILE_ERR_EXITING || status == DUCTILE_ERR_FORKED ||
           status == DUCTILE_ERR_DEVICE_LOST;
}

ductile_status free_noted(Device &device, void *ptr, unsigned flags, const Context &context) {
    auto info = sized<ductile_block_info>();
    const std::lock_guard<std::recursive_mutex> lock(device.mutex);
    ductile_status status = ductile_query_block(device.open(), to_address(ptr), &info);
    if (status != DUCTILE_OK) {
        return status;
    }
    if ((flags & kRounding) != 0) {
        auto asked = device.asked.find(ptr);
        if (asked != device.asked.end()) {
            info.requested_size = asked->second;
            device.asked.erase(asked);
            count_rounded(-1);
        }
    }
    if ((flags & kWatched) == 0) {
        return ductile_free(device.open(), to_address(ptr));
    }
    status = device.watch.free(ptr, info, context);
    device.watch.note_changes(context);
    return status;
}

ductile_status free_on_device(Device &device, void *ptr, unsigned flags, const Context &context) {
    if ((flags & (kWatched | kRounding)) != 0) {
        return free_noted(device, ptr, flags, context);
    }
    return ductile_free(device.open(), to_address(ptr));
}

/* Profiled, watched, another device's, the native allocator's, or wrong. */
C10_NOINLINE void give_back_otherwise(void *ptr) {
    TORCH_CHECK(n_devices > 0, "invalid device pointer: ", ptr);
    unsigned flags = special.load(std::memory_order_relaxed);
    if ((flags & kUncached) != 0 && give_back_uncached(ptr)) {
        return;
    }
    Device *home = find_home(ptr);
    if (home == nullptr) {
        Device &guess = guess_home(ptr);
        ductile_allocator *a = guess.allocator.load();
        ductile_status status =
            a != nullptr ? ductile_free(a, to_address(ptr)) : DUCTILE_ERR_FOREIGN_POINTER;
        if (is_end(status)) {
            return;
        }
        TORCH_CHECK(status == DUCTILE_ERR_FOREIGN_POINTER && is_native_in_use(),
                    "invalid device pointer: ", ptr, " (", ductile_status_string(status), ")");
        native_allocator()->raw_delete(ptr);
        return;
    }
    note_home(ptr, *home);
    if ((flags & kExported) != 0) {
        forget_export(home->open(), ptr);
    }
    if (is_profiled()) {
        auto info = sized<ductile_block_info>();
        if (ductile_query_block(home->open(), to_address(ptr), &info) == DUCTILE_OK) {
            report_to_profiler(*home, ptr, -static_cast<int64_t>(info.size));
        }
    }
    Context context = gather_context(RecordContext::ALL);
    ductile_status status = free_on_device(*home, ptr, flags, context);
    TORCH_CHECK(status == DUCTILE_OK || is_end(status), "invalid device pointer: ", ptr, " (",
                ductile_status_string(status), ")");
}

} // namespace

void Allocator::enable(bool value) {
    if (is_off() && n_devices > 0) {
        native_allocator()->enable(value);
    }
    const std::lock_guard<std::mutex> lock(uncached_mutex);
    caching_enabled = value;
    follow_uncached(); /* until memory of that time is freed */
}

void delete_block(void *ptr) {
    if (ptr == nullptr) {
        return;
    }
    const c10::impl::PyInterpreter *interpreter = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(interpreter != nullptr)) {
        tell_tracer(interpreter, ptr, false);
    }
    if (C10_LIKELY(special.load(std::memory_order_relaxed) == 0 && count_devices() != 0 &&
                   !is_profiled())) {
        ductile_allocator *a = guess_home(ptr).opened();
        if (C10_LIKELY(a != nullptr && ductile_free(a, to_address(ptr)) == DUCTILE_OK)) {
            return;
        }
    }
    give_back_otherwise(ptr);
}

c10::DataPtr Allocator::allocate(size_t size) {
    DeviceIndex device = current_device();
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    void *ptr = take_traced(size, device, stream);
    return {ptr, ptr, &delete_block, to_device(device)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
    return &delete_block;
}

void *Allocator::raw_alloc(size_t size) {
    DeviceIndex device = current_device();
    return take_traced(size, device, c10::cuda::getCurrentCUDAStream(device).stream());
}

void *Allocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
    return take_traced(size, current_device(), stream);
}

void Allocator::raw_delete(void *ptr) {
    delete_block(ptr);
}

/* The handle of a default stream means that of the block's own GPU, whichever thread passes it. */
static void refuse_foreign_default(const Device *device, c10::cuda::CUDAStream stream) {
    TORCH_CHECK_NOT_IMPLEMENTED(device == nullptr || device->index == stream.device_index(),
                                "Ductile: record_stream with the default stream of another GPU: "
                                "use a torch.cuda.Stream of that GPU");
}

static bool is_default_handle(c10::cuda::CUDAStream stream) {
    constexpr uintptr_t per_thread = 2; /* 0 and 1: the legacy one */
    return reinterpret_cast<uintptr_t>(stream.stream()) <= per_thread;
}

void Allocator::recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream) {
    /* views of foreign memory (DLPack, IPC) come here too, and have another deleter: native, whose
     * own memory has one that it knows, leaves them alone as well */
    if (ptr.get() != nullptr && ptr.get_deleter() != &delete_block && is_native_in_use()) {
        native_allocator()->recordStream(ptr, stream);
    }
    if (ptr.get() == nullptr || ptr.get_deleter() != &delete_block) {
        return;
    }
    void *block = ptr.get();
    if (n_devices > 1 && is_default_handle(stream)) {
        refuse_foreign_default(find_home(block), stream);
    }
    Device *device = n_devices > 0 ? &guess_home(block) : nullptr;
    ductile_allocator *a = device != nullptr ? device->allocator.load() : nullptr;
    ductile_stream used = to_ductile(stream.stream());
    if (a != nullptr && ductile_record_stream(a, to_address(block), used) == DUCTILE_OK) {
        return;
    }
    device = find_home(block);
    if (device != nullptr) {
        ductile_status status = ductile_record_stream(device->open(), to_address(block), used);
        if (status != DUCTILE_OK && !is_end(status)) {
            raise_status(*device, status, "record_stream");
        }
    } else if (is_native_in_use()) {
        c10::DataPtr native(block, block, native_allocator()->raw_deleter(), ptr.device());
        native_allocator()->recordStream(native, stream);
        (void)native.release_context();
    }
}

} // namespace ductile_torch
