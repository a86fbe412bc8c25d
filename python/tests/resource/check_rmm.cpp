/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ductile_rmm.hpp throws, through any_resource, on the virtual GPU: RMM's own exceptions, for
 * which librmm's callbacks and its tests wait. Prints one line for what is wrong.
 */
#include <ductile_rmm.hpp>
#include <ductile_virtual.h>

#include <cstdio>

namespace {

constexpr std::size_t PiB = std::size_t{1} << 50;
constexpr std::size_t alignment = 256;
int n_wrong;

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

template <class Memory> void memory_that_is_not_there_is_rmms_out_of_memory(Memory &memory) {
    cuda::stream_ref stream{static_cast<cudaStream_t>(cudaStreamLegacy)};
    expect(throws<rmm::out_of_memory>([&] { (void)memory.allocate(stream, PiB, alignment); }),
           "allocate throws rmm::out_of_memory");
    expect(throws<rmm::out_of_memory>([&] { (void)memory.allocate_sync(PiB, alignment); }),
           "allocate_sync throws rmm::out_of_memory");
    expect(throws<rmm::bad_alloc>([&] { (void)memory.allocate(stream, 1, 1024); }),
           "an alignment above 512 is rmm::bad_alloc");
    void *pointer = memory.allocate(stream, 1000, 512);
    expect(pointer != nullptr, "one of 512 is served");
    memory.deallocate(stream, pointer, 1000, 512);
}

} // namespace

extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaSetDevice(int) {
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return cudaSuccess;
}

int main() {
    ductile_virtual_gpu *gpu = nullptr;
    if (ductile_virtual_create(&gpu, nullptr) != DUCTILE_OK) {
        return 2;
    }
    {
        ductile_options options;
        ductile_options_init(&options);
        options.driver = DUCTILE_DRIVER_VIRTUAL;
        options.virtual_gpu = gpu;
        ductile::rmm_resource memory{ductile::resource::create(&options)};
        memory_that_is_not_there_is_rmms_out_of_memory(memory);
        cuda::mr::any_resource<cuda::mr::device_accessible> any{memory};
        memory_that_is_not_there_is_rmms_out_of_memory(any);
        ductile::rmm_resource copy{memory};
        expect(copy == memory, "copies are equal");
    }
    ductile_virtual_destroy(gpu);
    (void)std::printf("%d wrong\n", n_wrong);
    return n_wrong == 0 ? 0 : 1;
}
