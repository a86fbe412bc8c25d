/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second table of a device: the calls of the driver that the library never makes. Contenders
 * allocate with them, replays hold streams back, and tests look at a device and capture on it. The
 * virtual GPU answers them; bench/driver calls the CUDA driver, and has the wrappers. libductile
 * has none of this.
 */
#ifndef DUCTILE_VMM_DRIVER_BENCH_CALLS_H
#define DUCTILE_VMM_DRIVER_BENCH_CALLS_H

#include "vmm/driver/driver.h"

/* X(name, parameters of its entry). */
#define DVMM_BENCH_CALLS(X)                                                                        \
    X(get_access_for, (void *ctx, ductile_addr addr, int device, dvmm_access *out))                \
    X(mem_alloc, (void *ctx, uint64_t size, ductile_addr *out))                                    \
    X(mem_free, (void *ctx, ductile_addr addr))                                                    \
    X(mem_alloc_async, (void *ctx, uint64_t size, ductile_stream stream, ductile_addr *out))       \
    X(mem_free_async, (void *ctx, ductile_addr addr, ductile_stream stream))                       \
    X(async_pool_info, (void *ctx, uint64_t *reserved, uint64_t *reserved_peak))                   \
    X(async_pool_trim, (void *ctx, uint64_t keep_bytes))                                           \
    X(stream_query, (void *ctx, ductile_stream stream))                                            \
    X(stream_wait_value, (void *ctx, ductile_stream stream, uint64_t *host_word, uint64_t value))  \
    X(capture_begin, (void *ctx, ductile_stream stream, dvmm_capture_mode mode))                   \
    X(capture_end, (void *ctx, ductile_stream stream))                                             \
    X(host_alloc, (void *ctx, uint64_t size, void **out))                                          \
    X(host_free, (void *ctx, void *memory))                                                        \
    X(copy, (void *ctx, ductile_addr to, ductile_addr from, uint64_t size, ductile_stream stream)) \
    X(read_back, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream))

/* Numbers behind those of the library's calls, so that one device can count both. */
typedef enum dvmm_bench_call {
    DVMM_BENCH_CALL_BEFORE = DVMM_N_CALLS - 1,
#define DVMM_BENCH_ENUM(name, parameters) DVMM_BENCH_##name,
    DVMM_BENCH_CALLS(DVMM_BENCH_ENUM)
#undef DVMM_BENCH_ENUM
        DVMM_N_ALL_CALLS /* of both tables */
} dvmm_bench_call;

/* Entries return the driver's code, and get the `ctx` of the device's first table. */
typedef struct dvmm_bench_ops {
    bool (*has_async_pool)(void *ctx); /* mem_alloc_async works   */
    bool (*has_wait_value)(void *ctx); /* stream_wait_value works */
#define DVMM_BENCH_ENTRY(name, parameters) int(*name) parameters;
    DVMM_BENCH_CALLS(DVMM_BENCH_ENTRY)
#undef DVMM_BENCH_ENTRY
} dvmm_bench_ops;

#endif
