/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations and frees. What Ductile cannot serve, for whatever reason but that memory is short,
 * is passed to the driver with its arguments untouched, and so is each free of memory that is not
 * ours.
 */
#include "counts.h"
#include "deferred.h"
#include "device.h"
#include "real.h"

enum { PASS = -1, PITCH_ALIGNMENT = 512 };

/* The driver's code for a status; PASS: the driver shall answer. */
static cu_result code_of(ductile_status status) {
    switch ((int)status) {
    case DUCTILE_OK:
        return CU_SUCCESS;
    case DUCTILE_ERR_OUT_OF_MEMORY:
    case DUCTILE_ERR_OUT_OF_ADDRESSES:
    case DUCTILE_ERR_OUT_OF_HOST_MEMORY:
    case DUCTILE_ERR_NO_DESCRIPTORS:
        return CU_OUT_OF_MEMORY;
    default:
        return PASS;
    }
}

static cu_result count_native(cu_result code, const void *caller, size_t size) {
    if (code == CU_SUCCESS) {
        dpre_count(caller, size, false);
    }
    return code;
}

/* Is there more now that Ductile has given back what it holds free? cuMemGetInfo tells of it as
 * free, and to the driver it is not. */
static bool made_room(cu_result code, int device) {
    return code == CU_OUT_OF_MEMORY && dpre_give_back(device);
}

/* The driver's answer to a request, counted; `code` is a variable of the caller's. */
#define NATIVE(code, device, size, function, ...)                                                  \
    ((code) = REAL(function, __VA_ARGS__),                                                         \
     (code) = made_room(code, device) ? REAL(function, __VA_ARGS__) : (code),                      \
     count_native(code, CALLER, size))

/* Ours, unless the driver shall answer. */
#define PASSED(code, size, function, ...)                                                          \
    ((code) != PASS ? (code) : NATIVE(code, DPRE_EVERY_DEVICE, size, function, __VA_ARGS__))

/* ---- Memory of no stream ------------------------------------------------------------------- */

/* Work on the plain stream, if the options put any there, ends before the memory is handed out. */
static ductile_status alloc_done(const dpre_device *d, size_t size, ductile_addr *out) {
    ductile_status status = ductile_alloc(dpre_allocator(d), size, dpre_plain_stream(d), out);
    if (status == DUCTILE_OK && dpre_plain_works(d) &&
        dpre_sync_stream(dpre_plain_stream(d)) != CU_SUCCESS) {
        (void)ductile_free(dpre_allocator(d), *out);
        return DUCTILE_ERR_DRIVER;
    }
    return status;
}

static cu_result serve_plain(ductile_addr *out, size_t size, const void *caller) {
    if (out == NULL || size == 0 || dpre_served() != DPRE_ALL) {
        return PASS;
    }
    dpre_device *d = dpre_enter_current();
    ductile_addr found = 0;
    cu_result code = d != NULL ? code_of(alloc_done(d, size, &found)) : PASS;
    dpre_leave(d);
    if (code == CU_SUCCESS) {
        *out = found;
        dpre_count(caller, size, true);
    }
    return code;
}

cu_result cuMemAlloc_v2(ductile_addr *out, size_t size) {
    cu_result code = serve_plain(out, size, CALLER);
    return PASSED(code, size, cuMemAlloc_v2, out, size);
}

static bool is_element(unsigned int bytes) {
    return bytes == 4 || bytes == 8 || bytes == 16;
}

static cu_result serve_pitched(ductile_addr *out, size_t *pitch, size_t width, size_t height,
                               const void *caller) {
    size_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    size_t size = 0;
    bool is_too_large = row < width || __builtin_mul_overflow(row, height, &size);
    cu_result code = pitch == NULL || is_too_large ? PASS : serve_plain(out, size, caller);
    if (code == CU_SUCCESS) {
        *pitch = row;
    }
    return code;
}

cu_result cuMemAllocPitch_v2(ductile_addr *out, size_t *pitch, size_t width, size_t height,
                             unsigned int element) {
    cu_result code = is_element(element) ? serve_pitched(out, pitch, width, height, CALLER) : PASS;
    return PASSED(code, width * height, cuMemAllocPitch_v2, out, pitch, width, height, element);
}

/* Programs rely on the wait: by the time the call returns no kernel uses the memory,
 * on any stream. */
static cu_result free_done(const dpre_device *d, ductile_addr addr) {
    if (!dpre_hold_captures()) {
        return dpre_defer(dpre_ordinal(d), addr);
    }
    cu_result code = dpre_wait(d);
    dpre_release_captures();
    if (code != CU_SUCCESS) {
        return code; /* as the driver does */
    }
    ductile_status status = ductile_free(dpre_allocator(d), addr);
    return status == DUCTILE_OK || status == DUCTILE_ERR_EXITING ? CU_SUCCESS : CU_INVALID_VALUE;
}

static bool is_refused(const ductile_block_info *block, ductile_addr addr) {
    return block->address != addr || dpre_is_deferred(addr);
}

cu_result cuMemFree_v2(ductile_addr addr) {
    ductile_block_info block;
    dpre_device *d = dpre_enter_owner(addr, &block);
    cu_result code = d == NULL                  ? PASS
                     : is_refused(&block, addr) ? CU_INVALID_VALUE
                                                : free_done(d, addr);
    dpre_leave(d);
    return code != PASS ? code : REAL(cuMemFree_v2, addr);
}

/* ---- Memory in the order of a stream ------------------------------------------------------- */

/* A stream that the driver will not tell of is taken for a capturing one:
 * its call is the driver's. */
static bool is_capturing(ductile_stream stream) {
    int status = 0;
    return dpre_real() == NULL || dpre_real()->cuStreamIsCapturing(stream, &status) != CU_SUCCESS ||
           status != 0;
}

/* pool: NULL means the current one. */
static cu_result serve_ordered(ductile_addr *out, size_t size, cu_mem_pool pool,
                               ductile_stream stream, const void *caller) {
    if (out == NULL || size == 0 || dpre_served() == DPRE_OFF || is_capturing(stream)) {
        return PASS;
    }
    dpre_device *d = dpre_enter_stream(stream);
    ductile_addr found = 0;
    bool is_default =
        d != NULL && (pool == NULL ? dpre_default_is_current(d) : dpre_is_default_pool(d, pool));
    cu_result code =
        is_default ? code_of(ductile_alloc(dpre_allocator(d), size, stream, &found)) : PASS;
    dpre_leave(d);
    if (code == CU_SUCCESS) {
        *out = found;
        dpre_count(caller, size, true);
    }
    return code;
}

/* What NULL names in a program compiled for default streams of each thread, and in any other. */
static ductile_stream per_thread(ductile_stream stream) {
    return stream == NULL ? CU_PER_THREAD_STREAM : stream;
}

static ductile_stream legacy(ductile_stream stream) {
    return stream;
}

#define DEFINE_ALLOC(function, of)                                                                 \
    cu_result function(ductile_addr *out, size_t size, ductile_stream stream) {                    \
        cu_result code = serve_ordered(out, size, NULL, of(stream), CALLER);                       \
        return PASSED(code, size, function, out, size, stream);                                    \
    }

DEFINE_ALLOC(cuMemAllocAsync, legacy)
DEFINE_ALLOC(cuMemAllocAsync_ptsz, per_thread)

#define DEFINE_ALLOC_FROM(function, of)                                                            \
    cu_result function(ductile_addr *out, size_t size, cu_mem_pool pool, ductile_stream stream) {  \
        cu_result code = pool != NULL ? serve_ordered(out, size, pool, of(stream), CALLER) : PASS; \
        return PASSED(code, size, function, out, size, pool, stream);                              \
    }

DEFINE_ALLOC_FROM(cuMemAllocFromPoolAsync, legacy)
DEFINE_ALLOC_FROM(cuMemAllocFromPoolAsync_ptsz, per_thread)

/* A default stream is the current context's. Ductile takes its handle for its own GPU's, so where
 * that is another one the free waits, also for what is on that stream. */
static bool is_behind_another_default(const dpre_device *d, ductile_stream stream) {
    return dpre_is_default_stream(stream) && !dpre_is_current(d);
}

static cu_result free_behind_current(const dpre_device *d, ductile_addr addr) {
    if (!dpre_hold_captures()) {
        return dpre_defer(dpre_ordinal(d), addr);
    }
    cu_result code = dpre_sync_context();
    dpre_release_captures();
    return code == CU_SUCCESS ? free_done(d, addr) : code;
}

static cu_result free_behind(const dpre_device *d, ductile_addr addr, ductile_stream stream) {
    if (is_behind_another_default(d, stream)) {
        return free_behind_current(d, addr);
    }
    ductile_status status = ductile_free_ex(dpre_allocator(d), addr, &stream, 1, NULL);
    return status == DUCTILE_OK || status == DUCTILE_ERR_EXITING ? CU_SUCCESS
           : code_of(status) == CU_OUT_OF_MEMORY                 ? CU_OUT_OF_MEMORY
                                                                 : CU_INVALID_VALUE;
}

/* On a stream that is being captured it would be a node, which only memory of the graph can have:
 * the driver refuses ours. */
static cu_result free_ordered(ductile_addr addr, ductile_stream stream) {
    ductile_block_info block;
    dpre_device *d = is_capturing(stream) ? NULL : dpre_enter_owner(addr, &block);
    cu_result code = d == NULL                  ? PASS
                     : is_refused(&block, addr) ? CU_INVALID_VALUE
                                                : free_behind(d, addr, stream);
    dpre_leave(d);
    return code;
}

#define DEFINE_FREE(function, of)                                                                  \
    cu_result function(ductile_addr addr, ductile_stream stream) {                                 \
        cu_result code = free_ordered(addr, of(stream));                                           \
        return code != PASS ? code : REAL(function, addr, stream);                                 \
    }

DEFINE_FREE(cuMemFreeAsync, legacy)
DEFINE_FREE(cuMemFreeAsync_ptsz, per_thread)

/* ---- Counted only -------------------------------------------------------------------------- */

cu_result cuMemAllocManaged(ductile_addr *out, size_t size, unsigned int flags) {
    cu_result code;
    return NATIVE(code, DPRE_EVERY_DEVICE, size, cuMemAllocManaged, out, size, flags);
}

/* No device: memory of the host. */
static int device_of(const cu_phys_head *props) {
    bool is_of_device = props != NULL && props->location_type == CU_LOCATION_OF_DEVICE;
    return is_of_device ? props->location : -1;
}

cu_result cuMemCreate(unsigned long long *out, size_t size, const void *props,
                      unsigned long long flags) {
    cu_result code;
    return NATIVE(code, device_of(props), size, cuMemCreate, out, size, props, flags);
}
