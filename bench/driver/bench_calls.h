/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checked wrappers of the bench's table, under the rules of vmm/driver/driver.h: they are
 * refused, timed and traced like the library's calls of the same device, and counted together
 * (DVMM_OTHER_CALL). Pre of all: the device's first table is its own, and no wrapper of a test.
 */
#ifndef DUCTILE_BENCH_DRIVER_BENCH_CALLS_H
#define DUCTILE_BENCH_DRIVER_BENCH_CALLS_H

#include "vmm/driver/bench_calls.h"

/* The raw table, for the conformance suite; its entries get *ctx. */
const dvmm_bench_ops *bench_raw_ops(const dvmm_driver *d, void **ctx);

ductile_status bench_mem_alloc(dvmm_driver *d, uint64_t size, ductile_addr *out);
ductile_status bench_mem_free(dvmm_driver *d, ductile_addr addr);

/* Do the calls for stream-ordered memory work? */
bool bench_has_async_pool(const dvmm_driver *d);
ductile_status bench_mem_alloc_async(dvmm_driver *d, uint64_t size, ductile_stream stream,
                                     ductile_addr *out);
ductile_status bench_mem_free_async(dvmm_driver *d, ductile_addr addr, ductile_stream stream);
ductile_status bench_async_pool_info(dvmm_driver *d, uint64_t *reserved, uint64_t *reserved_peak);
/* Gives back and starts a new peak. */
ductile_status bench_async_pool_trim(dvmm_driver *d, uint64_t keep_bytes);

/* ERR_NOT_READY while work is under way. */
ductile_status bench_stream_query(dvmm_driver *d, ductile_stream stream);
/* Does bench_stream_wait_value work? */
bool bench_has_wait_value(const dvmm_driver *d);
/* Later work of the stream starts once *host_word >= value. host_word lies in host_alloc memory. */
ductile_status bench_stream_wait_value(dvmm_driver *d, ductile_stream stream, uint64_t *host_word,
                                       uint64_t value);
ductile_status bench_capture_begin(dvmm_driver *d, ductile_stream stream, dvmm_capture_mode mode);
/* Ends a capture and destroys its graph. */
ductile_status bench_capture_end(dvmm_driver *d, ductile_stream stream);

/* Page-locked host memory that the device can read. */
ductile_status bench_host_alloc(dvmm_driver *d, uint64_t size, void **out);
ductile_status bench_host_free(dvmm_driver *d, void *memory);

ductile_status bench_get_access_for(dvmm_driver *d, ductile_addr addr, int device,
                                    dvmm_access *out);
/* Contents, in stream order. read_back returns once the bytes are in `to`. A call that failed may
 * copy all the same. */
ductile_status bench_copy(dvmm_driver *d, ductile_addr to, ductile_addr from, uint64_t size,
                          ductile_stream stream);
ductile_status bench_read_back(dvmm_driver *d, void *to, ductile_addr from, uint64_t size,
                               ductile_stream stream);

#endif
