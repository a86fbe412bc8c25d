/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bench's calls of the CUDA driver, each with the primary context current. They are found by
 * the library's loader at the first of them.
 */
#include "bench/driver/cuda_calls.h"

#include "bench/driver/cuda_functions.h"
#include "vmm/cuda/context.h"
#include "vmm/cuda/load.h"

#include <pthread.h>

/* ---- The functions, and what a device offers ----------------------------------------------- */

static const cu_wanted wanted_functions[] = {
#define WANT(name, exported, version, parameters)                                                  \
    CU_WANTED(cu_bench_api, name, exported, version, false),
    CU_BENCH_FUNCTIONS(WANT)
#undef WANT
};

/* All zero where the library does not load: then every function is missing. */
static cu_bench_api functions;

/* What is known of one device. Constant once it is known, but for the last field. */
typedef struct known_device {
    atomic_bool is_known;
    bool has_wait_value;
    cu_mem_pool pool; /* the device's default pool; NULL: no stream-ordered allocation */
    /* Set once the pool was told to keep freed memory, at its first use, so that a program that
     * never allocates from the pool does not change it. */
    atomic_bool keeps_pool;
} known_device;

static known_device devices[DVMM_MAX_DEVICES];

/* An attribute that the driver does not know counts as 0. */
static bool device_has(const cuda_backend *b, cu_device_attribute which) {
    int value = 0;
    return b->api->cuDeviceGetAttribute(&value, which, b->device) == DVMM_SUCCESS && value != 0;
}

static bool has_pool_functions(void) {
    return functions.cuMemAllocAsync != NULL && functions.cuMemFreeAsync != NULL &&
           functions.cuDeviceGetDefaultMemPool != NULL && functions.cuMemPoolSetAttribute != NULL &&
           functions.cuMemPoolGetAttribute != NULL && functions.cuMemPoolTrimTo != NULL;
}

static void ask_device(const cuda_backend *b, known_device *it) {
    const size_t n = sizeof(wanted_functions) / sizeof(wanted_functions[0]);
    (void)dvmm_cuda_find(wanted_functions, n, &functions, (dvmm_reason){NULL, 0});
    it->has_wait_value =
        functions.cuStreamWaitValue64 != NULL && device_has(b, CU_HAS_WAIT_VALUE_64);
    if (has_pool_functions() && device_has(b, CU_HAS_MEMORY_POOLS) &&
        functions.cuDeviceGetDefaultMemPool(&it->pool, b->device) != DVMM_SUCCESS) {
        it->pool = NULL;
    }
}

/* The functions are found again with each device: they are the same. */
static known_device *known(const cuda_backend *b) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    known_device *it = &devices[(unsigned)b->device % DVMM_MAX_DEVICES];
    if (!atomic_load_explicit(&it->is_known, memory_order_acquire)) {
        pthread_mutex_lock(&lock);
        if (!atomic_load_explicit(&it->is_known, memory_order_relaxed)) {
            ask_device(b, it);
            atomic_store_explicit(&it->is_known, true, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    return it;
}

/* The entry of one function. */
#define ENTRY(name, parameters, function, arguments)                                               \
    static int cuda_##name parameters {                                                            \
        const cuda_backend *b = ctx;                                                               \
        (void)known(b);                                                                            \
        if (functions.function == NULL) {                                                          \
            return DVMM_NOT_SUPPORTED;                                                             \
        }                                                                                          \
        RETURN_IN_CONTEXT(b, functions.function arguments);                                        \
    }

/* ---- Classic and stream-ordered allocation ------------------------------------------------- */

ENTRY(mem_alloc, (void *ctx, uint64_t size, ductile_addr *out), cuMemAlloc, (out, size))
ENTRY(mem_free, (void *ctx, ductile_addr addr), cuMemFree, (addr))

/* By default the pool releases all memory at each synchronisation, which would make comparisons of
 * allocators meaningless. Two threads may both get here; the setting is the same. */
static int keep_pool(known_device *it) {
    if (atomic_load_explicit(&it->keeps_pool, memory_order_relaxed)) {
        return DVMM_SUCCESS;
    }
    uint64_t all = UINT64_MAX;
    int code = functions.cuMemPoolSetAttribute(it->pool, CU_POOL_RELEASE_THRESHOLD, &all);
    atomic_store_explicit(&it->keeps_pool, code == DVMM_SUCCESS, memory_order_relaxed);
    return code;
}

static int cuda_mem_alloc_async(void *ctx, uint64_t size, ductile_stream stream,
                                ductile_addr *out) {
    const cuda_backend *b = ctx;
    known_device *it = known(b);
    if (it->pool == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    DTI_TRY(keep_pool(it));
    RETURN_IN_CONTEXT(b, functions.cuMemAllocAsync(out, size, stream));
}

static int cuda_mem_free_async(void *ctx, ductile_addr addr, ductile_stream stream) {
    const cuda_backend *b = ctx;
    if (known(b)->pool == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    RETURN_IN_CONTEXT(b, functions.cuMemFreeAsync(addr, stream));
}

static int cuda_async_pool_info(void *ctx, uint64_t *reserved, uint64_t *reserved_peak) {
    cu_mem_pool pool = known(ctx)->pool;
    if (pool == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    DTI_TRY(functions.cuMemPoolGetAttribute(pool, CU_POOL_RESERVED_CURRENT, reserved));
    return functions.cuMemPoolGetAttribute(pool, CU_POOL_RESERVED_HIGH, reserved_peak);
}

/* 0 is the only value that the driver takes: a peak falls to what is held now. */
static int start_new_peaks(cu_mem_pool pool) {
    uint64_t zero = 0;
    int code = functions.cuMemPoolSetAttribute(pool, CU_POOL_RESERVED_HIGH, &zero);
    return code != DVMM_SUCCESS ? code
                                : functions.cuMemPoolSetAttribute(pool, CU_POOL_USED_HIGH, &zero);
}

static int cuda_async_pool_trim(void *ctx, uint64_t keep_bytes) {
    cu_mem_pool pool = known(ctx)->pool;
    if (pool == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    DTI_TRY(functions.cuMemPoolTrimTo(pool, keep_bytes));
    return start_new_peaks(pool);
}

/* ---- Streams and captures ------------------------------------------------------------------ */

ENTRY(stream_query, (void *ctx, ductile_stream stream), cuStreamQuery, (stream))

/* Page-locked memory has the same address on both sides. */
static int cuda_stream_wait_value(void *ctx, ductile_stream stream, uint64_t *host_word,
                                  uint64_t value) {
    const cuda_backend *b = ctx;
    if (!known(b)->has_wait_value) {
        return DVMM_NOT_SUPPORTED;
    }
    ductile_addr word = (ductile_addr)(uintptr_t)host_word;
    RETURN_IN_CONTEXT(b,
                      functions.cuStreamWaitValue64(stream, word, value, CU_WAIT_UNTIL_AT_LEAST));
}

ENTRY(capture_begin, (void *ctx, ductile_stream stream, dvmm_capture_mode mode),
      cuStreamBeginCapture, (stream, (cu_capture_mode)mode))

/* What was captured here is never launched, so its graph goes at once. */
static int end_and_destroy(ductile_stream stream) {
    cu_graph graph = NULL;
    int code = functions.cuStreamEndCapture(stream, &graph);
    int undo = graph == NULL ? DVMM_SUCCESS : functions.cuGraphDestroy(graph);
    return code != DVMM_SUCCESS ? code : undo;
}

static int cuda_capture_end(void *ctx, ductile_stream stream) {
    const cuda_backend *b = ctx;
    (void)known(b);
    if (functions.cuStreamEndCapture == NULL || functions.cuGraphDestroy == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    RETURN_IN_CONTEXT(b, end_and_destroy(stream));
}

/* ---- Memory and contents ------------------------------------------------------------------- */

/* Memory management needs no context. */
static int cuda_get_access_for(void *ctx, ductile_addr addr, int device, dvmm_access *out) {
    const cuda_backend *b = ctx;
    const cu_location peer = {.type = CU_LOCATION_DEVICE, .id = device};
    unsigned long long flags = 0;
    int code = b->api->cuMemGetAccess(&flags, &peer, addr);
    *out = (dvmm_access)flags;
    return code;
}

ENTRY(host_alloc, (void *ctx, uint64_t size, void **out), cuMemHostAlloc,
      (out, size, CU_HOST_FLAG_PORTABLE | CU_HOST_FLAG_DEVICE_MAP))
ENTRY(host_free, (void *ctx, void *memory), cuMemFreeHost, (memory))
ENTRY(copy, (void *ctx, ductile_addr to, ductile_addr from, uint64_t size, ductile_stream stream),
      cuMemcpyDtoDAsync, (to, from, size, stream))

static int copy_and_wait(const cuda_backend *b, void *to, ductile_addr from, uint64_t size,
                         ductile_stream stream) {
    int code = b->api->cuMemcpyDtoHAsync(to, from, size, stream);
    return code != DVMM_SUCCESS ? code : b->api->cuStreamSynchronize(stream);
}

IN_CONTEXT(read_back,
           (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
           copy_and_wait(b, to, from, size, stream))

/* ---- The table ----------------------------------------------------------------------------- */

static bool cuda_has_async_pool(void *ctx) {
    return known(ctx)->pool != NULL;
}

static bool cuda_has_wait_value(void *ctx) {
    return known(ctx)->has_wait_value;
}

const dvmm_bench_ops bench_cuda_ops = {.has_async_pool = cuda_has_async_pool,
                                       .has_wait_value = cuda_has_wait_value,
#define CUDA_ENTRY(name, parameters) .name = cuda_##name,
                                       DVMM_BENCH_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
};
