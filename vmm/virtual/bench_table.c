/* SPDX-License-Identifier: Apache-2.0 */
/* The virtual GPU's side of the bench's table. */
#include "vmm/virtual/bench_table.h"

#include "vmm/virtual/alloc.h"
#include "vmm/virtual/memory/exports.h"
#include "vmm/virtual/serve.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/uses.h"

#define SERVE_AT(cost, name, parameters, address, size, action)                                    \
    SERVE_NUMBER(DVMM_BENCH_##name, cost, name, parameters, address, size, action)

#define COST(name, size) dvmm_vgpu_cost_ns(DVMM_BENCH_##name, (size), 1)

/* A call whose cost depends on the size that is logged, or on nothing. */
#define SERVE(name, parameters, address, size, action)                                             \
    SERVE_AT(COST(name, size), name, parameters, address, size, action)

SERVE(get_access_for, (void *ctx, ductile_addr addr, int device, dvmm_access *out), addr, 0,
      dvmm_vgpu_get_access_for(gpu, addr, device, out))
SERVE(mem_alloc, (void *ctx, uint64_t size, ductile_addr *out), 0, size,
      dvmm_vgpu_mem_alloc(gpu, size, out))
SERVE_AT(COST(mem_free, dvmm_vgpu_allocation_size(gpu, addr)), mem_free,
         (void *ctx, ductile_addr addr), addr, 0, dvmm_vgpu_mem_free(gpu, addr))

/* The stream-ordered pool is not modelled. */

SERVE(mem_alloc_async, (void *ctx, uint64_t size, ductile_stream stream, ductile_addr *out), 0,
      size, ((void)stream, (void)out, DVMM_NOT_SUPPORTED))
SERVE(mem_free_async, (void *ctx, ductile_addr addr, ductile_stream stream), addr, 0,
      ((void)stream, DVMM_NOT_SUPPORTED))
SERVE(async_pool_info, (void *ctx, uint64_t *reserved, uint64_t *reserved_peak), 0, 0,
      ((void)reserved, (void)reserved_peak, DVMM_NOT_SUPPORTED))
SERVE(async_pool_trim, (void *ctx, uint64_t keep_bytes), 0, keep_bytes, DVMM_NOT_SUPPORTED)

SERVE(stream_query, (void *ctx, ductile_stream stream), dvmm_vgpu_word(stream), 0,
      dvmm_vgpu_stream_query(gpu, stream))
SERVE(stream_wait_value, (void *ctx, ductile_stream stream, uint64_t *host_word, uint64_t value),
      dvmm_vgpu_word(stream), value, dvmm_vgpu_stream_wait_value(gpu, stream, host_word, value))
SERVE(capture_begin, (void *ctx, ductile_stream stream, dvmm_capture_mode mode),
      dvmm_vgpu_word(stream), 0, dvmm_vgpu_capture_begin(gpu, stream, mode))
SERVE(capture_end, (void *ctx, ductile_stream stream), dvmm_vgpu_word(stream), 0,
      dvmm_vgpu_capture_end(gpu, stream, NULL))
SERVE(host_alloc, (void *ctx, uint64_t size, void **out), 0, size,
      dvmm_vgpu_host_alloc(gpu, size, out))
SERVE(host_free, (void *ctx, void *memory), dvmm_vgpu_word(memory), 0,
      dvmm_vgpu_host_free(gpu, memory))
SERVE(copy, (void *ctx, ductile_addr to, ductile_addr from, uint64_t size, ductile_stream stream),
      to, size, dvmm_vgpu_copy(gpu, to, from, size, stream))
SERVE(read_back, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
      from, size, dvmm_vgpu_read_back(gpu, to, from, size, stream))

static bool has_async_pool(void *ctx) {
    (void)ctx;
    return false;
}

static bool has_wait_value(void *ctx) {
    (void)ctx;
    return true;
}

const dvmm_bench_ops dvmm_vgpu_bench_ops = {.has_async_pool = has_async_pool,
                                            .has_wait_value = has_wait_value,
#define SERVED_BY(name, parameters) .name = serve_##name,
                                            DVMM_BENCH_CALLS(SERVED_BY)
#undef SERVED_BY
};
