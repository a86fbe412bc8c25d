/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ductile::resource as librmm and what is built on it ask for one: a lack of memory is RMM's own
 * exception, for which its callbacks, its pools and its users wait. Needs what ductile_resource.hpp
 * needs, librmm 26.8 or newer with its headers, and C++20.
 *
 *     ductile::rmm_resource memory{ductile::resource::create()};
 *     rmm::mr::set_current_device_resource(memory);
 */
#ifndef DUCTILE_RMM_HPP
#define DUCTILE_RMM_HPP

#include <ductile_resource.hpp>

#include <rmm/error.hpp>

namespace ductile {

/**
 * A ductile::resource, and all that it promises but what it throws.
 */
class rmm_resource : public resource {
  public:
    explicit rmm_resource(resource memory) : resource(std::move(memory)) {
    }

    /** As resource::allocate, but throws rmm::out_of_memory: no memory. rmm::bad_alloc: an
     * alignment above 512. */
    void *allocate(cuda::stream_ref stream, std::size_t bytes,
                   std::size_t alignment = default_alignment) {
        return served(bytes, alignment,
                      [&] { return resource::allocate(stream, bytes, alignment); });
    }

    /** As resource::allocate_sync, and throws as allocate does. */
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return served(bytes, alignment, [&] { return resource::allocate_sync(bytes, alignment); });
    }

  private:
    template <class Request>
    static void *served(std::size_t bytes, std::size_t alignment, const Request &request) {
        if (alignment > most_alignment) {
            throw rmm::bad_alloc("ductile: an alignment is at most 512");
        }
        try {
            return request();
        } catch (const std::bad_alloc &) {
            throw rmm::out_of_memory("ductile: no memory for " + std::to_string(bytes) + " bytes");
        }
    }
};

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>);

} // namespace ductile

#endif
