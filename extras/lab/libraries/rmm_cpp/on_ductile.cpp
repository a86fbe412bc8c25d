/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMM's cuda_memory_resource above Ductile: linked into a program of RMM's, this file's functions
 * take the place of librmm's, in the program and in librmm itself.
 */
#include <ductile_rmm.hpp>

#include <rmm/mr/cuda_memory_resource.hpp>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace {

std::size_t n_served; // under the lock of `resource_of`

void tell() {
    std::fprintf(stderr, "served by Ductile: %zu\n", n_served);
}

/** The current device's, made when it is first asked for; lives as long as the process does. */
ductile::rmm_resource &resource_of_current_device() {
    static std::mutex lock;
    static auto &resources = *new std::map<int, ductile::rmm_resource>;
    std::lock_guard<std::mutex> held{lock};
    if (n_served++ == 0) {
        std::atexit(tell);
    }
    int device = 0;
    (void)cudaGetDevice(&device);
    auto found = resources.find(device);
    if (found == resources.end()) {
        (void)cudaFree(nullptr); // the device's context, which the runtime makes late
        ductile_options options;
        ductile_options_init(&options);
        options.device = device;
        found = resources.emplace(device, ductile::resource::create(&options)).first;
    }
    return found->second;
}

} // namespace

RMM_NAMESPACE_BEGIN
namespace mr {

void *cuda_memory_resource::allocate(cuda::stream_ref stream, std::size_t bytes,
                                     std::size_t alignment) {
    return resource_of_current_device().allocate(stream, bytes, alignment);
}

void cuda_memory_resource::deallocate(cuda::stream_ref stream, void *pointer, std::size_t bytes,
                                      std::size_t alignment) noexcept {
    resource_of_current_device().deallocate(stream, pointer, bytes, alignment);
}

void *cuda_memory_resource::allocate_sync(std::size_t bytes, std::size_t alignment) {
    return resource_of_current_device().allocate_sync(bytes, alignment);
}

void cuda_memory_resource::deallocate_sync(void *pointer, std::size_t bytes,
                                           std::size_t alignment) noexcept {
    resource_of_current_device().deallocate_sync(pointer, bytes, alignment);
}

bool cuda_memory_resource::operator==(const cuda_memory_resource &) const noexcept {
    return true;
}

bool cuda_memory_resource::operator!=(const cuda_memory_resource &) const noexcept {
    return false;
}

} // namespace mr
RMM_NAMESPACE_END
