/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/driver/bench_calls.h"

#include "bench/driver/cuda_calls.h"
#include "vmm/base/check.h"
#include "vmm/driver/open_virtual.h"
#include "vmm/driver/wrap.h"

/* ---- The table of a device ----------------------------------------------------------------- */

const dvmm_bench_ops *bench_raw_ops(const dvmm_driver *d, void **ctx) {
    (void)dvmm_raw_ops(d, ctx);
    return dvmm_get_caps(d)->is_virtual ? ((const dvmm_virtual_head *)*ctx)->backend->bench
                                        : &bench_cuda_ops;
}

bool bench_has_async_pool(const dvmm_driver *d) {
    void *ctx;
    return bench_raw_ops(d, &ctx)->has_async_pool(ctx);
}

bool bench_has_wait_value(const dvmm_driver *d) {
    void *ctx;
    return bench_raw_ops(d, &ctx)->has_wait_value(ctx);
}

/* ---- Wrappers ------------------------------------------------------------------------------ */

/* What CALL needs of the device: `ops`, `ctx` and the call under way. */
#define BEGIN(d)                                                                                   \
    dvmm_seam_call call;                                                                           \
    void *ctx;                                                                                     \
    const dvmm_bench_ops *ops = bench_raw_ops(d, &ctx)

/* The status of the entry's call, or of the refusal to make it. */
#define CALL(d, name, address, size, args)                                                         \
    (dvmm_begin_call(&call, (d), DVMM_OTHER_CALL, (address), (size))                               \
         ? dvmm_end_call(&call, ops->name args)                                                    \
         : call.refusal)

/* A wrapper that only asserts what goes in. */
#define WRAP(name, parameters, pre, address, size, args)                                           \
    ductile_status bench_##name parameters {                                                       \
        BEGIN(d);                                                                                  \
        DTI_ASSERT(pre);                                                                           \
        return CALL(d, name, address, size, args);                                                 \
    }

/* The same with an output: `none` after a failure, else as `post` says. */
#define WRAP_OUT(name, parameters, pre, address, size, args, none, post)                           \
    ductile_status bench_##name parameters {                                                       \
        BEGIN(d);                                                                                  \
        DTI_ASSERT(pre);                                                                           \
        ductile_status status = CALL(d, name, address, size, args);                                \
        *out = status == DUCTILE_OK ? *out : (none);                                               \
        DTI_ASSERT(status != DUCTILE_OK || (post));                                                \
        return status;                                                                             \
    }

WRAP_OUT(mem_alloc, (dvmm_driver * d, uint64_t size, ductile_addr *out), size != 0, 0, size,
         (ctx, size, out), 0, *out != 0)
WRAP(mem_free, (dvmm_driver * d, ductile_addr addr), addr != 0, addr, 0, (ctx, addr))
WRAP_OUT(mem_alloc_async,
         (dvmm_driver * d, uint64_t size, ductile_stream stream, ductile_addr *out), size != 0, 0,
         size, (ctx, size, stream, out), 0, *out != 0)
WRAP(mem_free_async, (dvmm_driver * d, ductile_addr addr, ductile_stream stream), addr != 0, addr,
     0, (ctx, addr, stream))

ductile_status bench_async_pool_info(dvmm_driver *d, uint64_t *reserved, uint64_t *reserved_peak) {
    BEGIN(d);
    ductile_status status = CALL(d, async_pool_info, 0, 0, (ctx, reserved, reserved_peak));
    if (status != DUCTILE_OK) {
        *reserved = 0;
        *reserved_peak = 0;
    }
    return status;
}

WRAP(async_pool_trim, (dvmm_driver * d, uint64_t keep_bytes), true, 0, keep_bytes,
     (ctx, keep_bytes))
WRAP(stream_query, (dvmm_driver * d, ductile_stream stream), true, dvmm_word(stream), 0,
     (ctx, stream))
WRAP(stream_wait_value,
     (dvmm_driver * d, ductile_stream stream, uint64_t *host_word, uint64_t value),
     host_word != NULL, dvmm_word(stream), value, (ctx, stream, host_word, value))
WRAP(capture_begin, (dvmm_driver * d, ductile_stream stream, dvmm_capture_mode mode), true,
     dvmm_word(stream), 0, (ctx, stream, mode))
WRAP(capture_end, (dvmm_driver * d, ductile_stream stream), true, dvmm_word(stream), 0,
     (ctx, stream))
WRAP_OUT(host_alloc, (dvmm_driver * d, uint64_t size, void **out), size != 0, 0, size,
         (ctx, size, out), NULL, *out != NULL)
WRAP(host_free, (dvmm_driver * d, void *memory), true, dvmm_word(memory), 0, (ctx, memory))
WRAP_OUT(get_access_for, (dvmm_driver * d, ductile_addr addr, int device, dvmm_access *out), true,
         addr, 0, (ctx, addr, device, out), DVMM_ACCESS_NONE, true)
WRAP(copy,
     (dvmm_driver * d, ductile_addr to, ductile_addr from, uint64_t size, ductile_stream stream),
     true, to, size, (ctx, to, from, size, stream))
WRAP(read_back,
     (dvmm_driver * d, void *to, ductile_addr from, uint64_t size, ductile_stream stream), true,
     from, size, (ctx, to, from, size, stream))
