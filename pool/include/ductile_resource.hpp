/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory resource over a ductile_allocator, as CCCL's cuda::mr and RMM ask for one:
 * stream-ordered, of memory that the device can access. Needs CCCL and the CUDA runtime's headers
 * (CUDA 12.9 or newer), C++17, and libcudart at link time.
 *
 *     ductile::resource memory = ductile::resource::create();
 *     cuda::mr::any_resource<cuda::mr::device_accessible> any{memory};
 *
 * librmm asks for exceptions of its own: ductile_rmm.hpp.
 */
#ifndef DUCTILE_RESOURCE_HPP
#define DUCTILE_RESOURCE_HPP

#include <ductile.h>

#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace ductile {

/**
 * What an allocation throws for anything but a lack of memory, which is std::bad_alloc.
 * `status` says what it was.
 */
class error : public std::runtime_error {
  public:
    explicit error(ductile_status found)
        : std::runtime_error(std::string("ductile: ") + ductile_status_string(found)),
          status(found) {
    }

    error(ductile_status found, const char *why)
        : std::runtime_error(std::string("ductile: ") + why), status(found) {
    }

    ductile_status status;
};

/**
 * A handle on one device's allocator. Copies share the allocator and compare equal.
 *
 * Ownership: `create` makes an allocator that ends with the last copy: free its memory before. A
 *            resource made of a ductile_allocator borrows it: it must outlive all copies.
 * Threads:   safe, as ductile_alloc and ductile_free are.
 * Cost:      of a call: the allocator's own, and no lock or indirection beside it.
 */
class resource {
  public:
    /** Of every address. */
    static constexpr std::size_t most_alignment = 512;
    /** As of cudaMalloc. */
    static constexpr std::size_t default_alignment = 256;

    /** Borrows an allocator; not NULL. */
    explicit resource(ductile_allocator *allocator)
        : allocator_(allocator, [](ductile_allocator *) {}) {
    }

    /**
     * Makes an allocator.
     *
     * Arguments: options: as of ductile_create; NULL: the defaults.
     * Throws:    error, with what ductile_create returned and ductile_create_error says.
     */
    static resource create(const ductile_options *options = nullptr) {
        ductile_allocator *made = nullptr;
        ductile_status status = ductile_create(&made, options);
        if (status != DUCTILE_OK) {
            throw error(status, ductile_create_error());
        }
        return resource(std::shared_ptr<ductile_allocator>(made, end));
    }

    /** The allocator, for all that this class has no word for: statistics, trims, pools. */
    ductile_allocator *get() const noexcept {
        return allocator_.get();
    }

    /**
     * Allocates memory that `stream` may use at once; another stream once it is ordered after it.
     *
     * Arguments: bytes: 0 gives nullptr. alignment: a power of two up to 512; every address is a
     *            multiple of 512.
     * Throws:    std::bad_alloc: no memory. std::invalid_argument: the alignment. error: the rest.
     */
    void *allocate(cuda::stream_ref stream, std::size_t bytes,
                   std::size_t alignment = default_alignment) {
        check_alignment(alignment);
        if (bytes == 0) {
            return nullptr;
        }
        ductile_addr address = 0;
        require(ductile_alloc(get(), bytes, name_of(stream), &address));
        return reinterpret_cast<void *>(static_cast<std::uintptr_t>(address));
    }

    /**
     * Frees memory in the order of `stream`, which may be another than that of its allocation: then
     * its work so far is waited for before the memory serves again. Never waits on the host.
     *
     * Arguments: pointer: of this resource; nullptr does nothing. bytes, alignment: not looked at.
     * On error:  a pointer that is no live block stays what it is; the allocator's log callback
     *            gets a line. Freeing cannot throw.
     */
    void deallocate(cuda::stream_ref stream, void *pointer, std::size_t /*bytes*/,
                    std::size_t /*alignment*/ = default_alignment) noexcept {
        if (pointer != nullptr) {
            const ductile_stream user = name_of(stream);
            (void)ductile_free_ex(get(), address_of(pointer), &user, 1, nullptr);
        }
    }

    /**
     * Allocates memory that every stream may use at once. Waits for the legacy default stream of
     * the allocator's device, whose memory it is; not to be called while a stream is captured in
     * global mode.
     *
     * Throws: as allocate; error(DUCTILE_ERR_DRIVER) if the wait fails: then nothing is allocated.
     */
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        void *pointer = allocate(default_stream(), bytes, alignment);
        if (pointer != nullptr && wait_for_default() != cudaSuccess) {
            deallocate(default_stream(), pointer, bytes, alignment);
            throw error(DUCTILE_ERR_DRIVER);
        }
        return pointer;
    }

    /** Frees memory that no work under way uses any more, which is the caller's to know. */
    void deallocate_sync(void *pointer, std::size_t /*bytes*/,
                         std::size_t /*alignment*/ = default_alignment) noexcept {
        if (pointer != nullptr) {
            (void)ductile_free(get(), address_of(pointer));
        }
    }

    bool operator==(const resource &other) const noexcept {
        return get() == other.get();
    }
    bool operator!=(const resource &other) const noexcept {
        return get() != other.get();
    }

    friend constexpr void get_property(const resource &, cuda::mr::device_accessible) noexcept {
    }
    using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;

  private:
    explicit resource(std::shared_ptr<ductile_allocator> allocator)
        : allocator_(std::move(allocator)) {
    }

    static void end(ductile_allocator *allocator) {
        (void)ductile_destroy(allocator);
    }

    static void require(ductile_status status) {
        if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
            throw std::bad_alloc();
        }
        if (status != DUCTILE_OK) {
            throw error(status);
        }
    }

    static void check_alignment(std::size_t alignment) {
        bool is_power = alignment != 0 && (alignment & (alignment - 1)) == 0;
        if (!is_power || alignment > most_alignment) {
            throw std::invalid_argument("ductile: an alignment is a power of two up to 512, not " +
                                        std::to_string(alignment));
        }
    }

    static cuda::stream_ref default_stream() {
        return cuda::stream_ref{static_cast<cudaStream_t>(cudaStreamLegacy)};
    }

    /** The handle means the stream of the current device. */
    cudaError_t wait_for_default() const {
        ductile_options options;
        ductile_options_init(&options);
        ductile_get_options(get(), &options);
        int before = 0;
        cudaError_t code = cudaGetDevice(&before);
        if (code != cudaSuccess || before == options.device) {
            return code != cudaSuccess ? code : cudaStreamSynchronize(cudaStreamLegacy);
        }
        code = cudaSetDevice(options.device);
        if (code == cudaSuccess) {
            code = cudaStreamSynchronize(cudaStreamLegacy);
            (void)cudaSetDevice(before);
        }
        return code;
    }

    /** One stream must have one name. Stream NULL is what the runtime takes it for in this program:
     * the legacy default stream, or the thread's own. */
    static ductile_stream name_of(cuda::stream_ref stream) noexcept {
        cudaStream_t found = stream.get();
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
        found = found == nullptr ? cudaStreamPerThread : found;
#endif
        return found == cudaStreamLegacy ? nullptr : found;
    }

    static ductile_addr address_of(void *pointer) noexcept {
        return static_cast<ductile_addr>(reinterpret_cast<std::uintptr_t>(pointer));
    }

    std::shared_ptr<ductile_allocator> allocator_;
};

static_assert(cuda::mr::resource_with<resource, cuda::mr::device_accessible>);

} // namespace ductile

#endif
