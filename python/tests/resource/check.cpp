/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses ductile_resource.hpp as CCCL's containers do, on the virtual GPU: through any_resource, on
 * two streams, without memory, with wrong arguments. Prints one line for what is wrong. Compiled
 * with CUDA_API_PER_THREAD_DEFAULT_STREAM, too.
 */
#include <ductile_resource.hpp>
#include <ductile_virtual.h>

#include <cstdio>
#include <optional>

namespace {

constexpr std::size_t MiB = 1 << 20;
using any_device_resource = cuda::mr::any_resource<cuda::mr::device_accessible>;

ductile_virtual_gpu *gpu;
int n_wrong, n_waits, current_device, waited_device;
cudaStream_t waited_stream;
bool does_waiting_fail;

void expect(bool is_true, const char *claim) {
    if (!is_true) {
        (void)std::printf("wrong: %s\n", claim);
        n_wrong++;
    }
}

template <class Thrown, class Call> bool throws(Call call) {
    try {
        call();
    } catch (const Thrown &) {
        return true;
    } catch (...) {
        return false;
    }
    return false;
}

ductile_options options_of_gpu() {
    ductile_options options;
    ductile_options_init(&options);
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = gpu;
    return options;
}

ductile::resource make() {
    ductile_options options = options_of_gpu();
    return ductile::resource::create(&options);
}

ductile_stats stats_of(const ductile::resource &memory) {
    ductile_stats stats;
    stats.struct_size = sizeof stats;
    expect(ductile_get_stats(memory.get(), nullptr, &stats) == DUCTILE_OK, "statistics can be read");
    return stats;
}

cuda::stream_ref new_stream() {
    ductile_stream made = nullptr;
    expect(ductile_virtual_stream_create(gpu, &made) == DUCTILE_OK, "a stream can be made");
    return cuda::stream_ref{static_cast<cudaStream_t>(made)};
}

void a_block_belongs_to_the_stream_that_asked() {
    ductile::resource memory = make();
    cuda::stream_ref stream = new_stream();
    void *block = memory.allocate(stream, MiB);
    ductile_block_info info;
    info.struct_size = sizeof info;
    auto address = static_cast<ductile_addr>(reinterpret_cast<std::uintptr_t>(block));
    expect(ductile_query_block(memory.get(), address, &info) == DUCTILE_OK, "the block is known");
    expect(info.stream == stream.get() && info.requested_size == MiB, "it has stream and size");
    memory.deallocate(stream, block, MiB);
    expect(stats_of(memory).live_blocks == 0, "and is freed");
}

void a_free_on_another_stream_waits_for_its_work() {
    ductile_virtual_set_schedule(gpu, DUCTILE_SCHEDULE_LAZY, 0);
    ductile::resource memory = make();
    cuda::stream_ref own = new_stream(), other = new_stream();
    void *block = memory.allocate(own, MiB);
    auto address = static_cast<ductile_addr>(reinterpret_cast<std::uintptr_t>(block));
    ductile_virtual_use read = {address, MiB, 0};
    expect(ductile_virtual_launch(gpu, other.get(), &read, 1) == DUCTILE_OK, "launched");
    memory.deallocate(other, block, MiB);
    expect(stats_of(memory).pending_bytes == MiB, "memory that another stream reads is pending");
    expect(ductile_virtual_stream_sync(gpu, other.get()) == DUCTILE_OK, "synchronised");
    ductile_virtual_set_schedule(gpu, DUCTILE_SCHEDULE_EAGER, 0);
}

void any_resource_shares_the_allocator() {
    std::optional<any_device_resource> any;
    cuda::stream_ref stream = new_stream();
    {
        ductile::resource memory = make();
        any.emplace(memory);
        expect(*any == any_device_resource{memory}, "copies are equal");
        ductile::resource another = make();
        expect(memory != another, "other allocators are not");
    }
    void *block = any->allocate(stream, 3 * MiB, 256);
    expect(block != nullptr, "the allocator lives as long as its last copy");
    any->deallocate(stream, block, 3 * MiB, 256);
}

void what_is_wrong_is_thrown() {
    ductile_options options = options_of_gpu();
    options.limit_bytes = 8 * MiB;
    ductile::resource memory = ductile::resource::create(&options);
    cuda::stream_ref stream = new_stream();
    expect(throws<std::bad_alloc>([&] { (void)memory.allocate(stream, 64 * MiB); }),
           "no memory is bad_alloc");
    expect(throws<std::invalid_argument>([&] { (void)memory.allocate(stream, 1, 1024); }),
           "an alignment of 1,024 is refused");
    expect(throws<std::invalid_argument>([&] { (void)memory.allocate(stream, 1, 48); }),
           "an alignment of 48 is refused");
    expect(memory.allocate(stream, 0) == nullptr, "no bytes are no pointer");
    memory.deallocate(stream, nullptr, 0);
    options.struct_size = 1;
    expect(throws<ductile::error>([&] { (void)ductile::resource::create(&options); }),
           "an option that is refused is an error with a status");
    expect(stats_of(memory).live_blocks == 0, "nothing is left");
}

ductile_stream stream_of(ductile::resource &memory, cudaStream_t asked) {
    void *block = memory.allocate(cuda::stream_ref{asked}, MiB);
    ductile_block_info info;
    info.struct_size = sizeof info;
    auto address = static_cast<ductile_addr>(reinterpret_cast<std::uintptr_t>(block));
    expect(ductile_query_block(memory.get(), address, &info) == DUCTILE_OK, "the block is known");
    memory.deallocate(cuda::stream_ref{asked}, block, MiB);
    return info.stream;
}

/* As the runtime takes it, where the program is compiled so. */
void stream_null_is_what_it_is_for_the_program() {
    ductile::resource memory = make();
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    expect(stream_of(memory, nullptr) == cudaStreamPerThread, "it is the thread's own");
#else
    expect(stream_of(memory, nullptr) == nullptr, "it is the legacy default stream");
#endif
    expect(stream_of(memory, cudaStreamLegacy) == nullptr, "the legacy one has one name");
    expect(stream_of(memory, cudaStreamPerThread) == cudaStreamPerThread, "the other one too");
}

void memory_of_no_stream_waits_first() {
    ductile::resource memory = make();
    n_waits = 0;
    current_device = 3;
    void *block = memory.allocate_sync(MiB);
    expect(block != nullptr && n_waits == 1, "the default stream is waited for");
    expect(waited_stream == cudaStreamLegacy, "the legacy one, whatever the program has");
    expect(waited_device == 0 && current_device == 3, "on the device whose memory it is");
    memory.deallocate_sync(block, MiB);
    does_waiting_fail = true;
    expect(throws<ductile::error>([&] { (void)memory.allocate_sync(MiB); }), "a wait may fail");
    does_waiting_fail = false;
    expect(stats_of(memory).live_blocks == 0, "then nothing is allocated");
}

} // namespace

/* The runtime's calls, for the virtual GPU. */
extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaSetDevice(int device) {
    current_device = device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    n_waits++;
    waited_stream = stream;
    waited_device = current_device;
    if (does_waiting_fail) {
        return cudaErrorIllegalAddress;
    }
    bool is_done = ductile_virtual_stream_sync(gpu, stream) == DUCTILE_OK;
    return is_done ? cudaSuccess : cudaErrorUnknown;
}

int main() {
    if (ductile_virtual_create(&gpu, nullptr) != DUCTILE_OK) {
        return 2;
    }
    a_block_belongs_to_the_stream_that_asked();
    a_free_on_another_stream_waits_for_its_work();
    any_resource_shares_the_allocator();
    what_is_wrong_is_thrown();
    stream_null_is_what_it_is_for_the_program();
    memory_of_no_stream_waits_first();
    ductile_virtual_destroy(gpu);
    (void)std::printf("%d wrong\n", n_wrong);
    return n_wrong == 0 ? 0 : 1;
}
