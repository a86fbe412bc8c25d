/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/driver/bench_calls.h"
#include "bench/workloads/fsdp_work.h"

#include "bench/base/stopwatch.h"

#include "vmm/base/align.h"
#include "vmm/base/status.h"

#include <stdlib.h>

/* One copy lasts long against what issuing it costs the host. */
#define COPY_BYTES (256 * DTI_MIB)
#define UPLOAD_BYTES (64 * DTI_MIB)

/* What copies take, measured when the work is opened. */
typedef struct fsdp_speed {
    double copy_bytes_per_ns;
    double upload_bytes_per_ns;
} fsdp_speed;

typedef struct cuda_work {
    fsdp_work base;
    fsdp_speed speed;
    ductile_addr from, to; /* what compute copies: none of the allocator's memory     */
    ductile_addr landing;  /* where communication's bytes arrive                       */
    void *host;            /* page-locked: copies from it do not make the host wait    */
} cuda_work;

static cuda_work *of(fsdp_work *w) {
    return (cuda_work *)w;
}

static ductile_status copy(cuda_work *w, uint64_t size) {
    return bench_copy(w->base.on->driver, w->to, w->from, size, w->base.on->streams[FSDP_COMPUTE]);
}

static ductile_status upload(cuda_work *w, uint64_t size) {
    return dvmm_upload(w->base.on->driver, w->landing, w->host, size,
                       w->base.on->streams[FSDP_COMMUNICATION]);
}

typedef ductile_status (*move_fn)(cuda_work *w, uint64_t size);

static ductile_status move(cuda_work *w, move_fn some, uint64_t most, uint64_t size) {
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && size > 0) {
        uint64_t now = size < most ? size : most;
        status = some(w, now);
        size -= now;
    }
    return status;
}

static ductile_status cuda_busy(fsdp_work *base, size_t stream, uint64_t ns, ductile_addr address,
                                uint64_t size) {
    cuda_work *w = of(base);
    (void)address;
    (void)size;
    bool is_compute = stream == FSDP_COMPUTE;
    double speed = is_compute ? w->speed.copy_bytes_per_ns : w->speed.upload_bytes_per_ns;
    uint64_t bytes = (uint64_t)((double)ns * speed);
    return is_compute ? move(w, copy, COPY_BYTES, bytes) : move(w, upload, UPLOAD_BYTES, bytes);
}

/* The host spends its own time. */
static ductile_status cuda_host(fsdp_work *base, uint64_t ns) {
    (void)base;
    (void)ns;
    return DUCTILE_OK;
}

static ductile_status cuda_sync(fsdp_work *base) {
    const testbed *bed = base->on;
    ductile_status first = dvmm_stream_sync(bed->driver, bed->streams[FSDP_COMPUTE]);
    ductile_status second = dvmm_stream_sync(bed->driver, bed->streams[FSDP_COMMUNICATION]);
    return first != DUCTILE_OK ? first : second;
}

static uint64_t cuda_now_ns(const fsdp_work *base) {
    (void)base;
    return host_now_ns();
}

static void free_device(const testbed *bed, ductile_addr address) {
    if (address != 0) {
        (void)bench_mem_free(bed->driver, address);
    }
}

static void cuda_close(fsdp_work *base) {
    cuda_work *w = of(base);
    (void)cuda_sync(base);
    free_device(base->on, w->from);
    free_device(base->on, w->to);
    free_device(base->on, w->landing);
    if (w->host != NULL) {
        (void)bench_host_free(base->on->driver, w->host);
    }
    free(w);
}

/* ---- How fast copies are ------------------------------------------------------------------- */

/* The second time: the first one warms up. */
static ductile_status measure(cuda_work *w, move_fn some, uint64_t most, double *bytes_per_ns) {
    enum { COPIES = 20 };
    ductile_status status = DUCTILE_OK;
    for (int i = 0; status == DUCTILE_OK && i < 2; i++) {
        uint64_t start = host_now_ns();
        status = move(w, some, most, COPIES * most);
        if (status == DUCTILE_OK) {
            status = cuda_sync(&w->base);
        }
        *bytes_per_ns = (double)(COPIES * most) / (double)(host_now_ns() - start + 1);
    }
    return status;
}

static ductile_status prepare(cuda_work *w) {
    dvmm_driver *d = w->base.on->driver;
    DTI_TRY(bench_mem_alloc(d, COPY_BYTES, &w->from));
    DTI_TRY(bench_mem_alloc(d, COPY_BYTES, &w->to));
    DTI_TRY(bench_mem_alloc(d, UPLOAD_BYTES, &w->landing));
    DTI_TRY(bench_host_alloc(d, UPLOAD_BYTES, &w->host));
    DTI_TRY(measure(w, copy, COPY_BYTES, &w->speed.copy_bytes_per_ns));
    return measure(w, upload, UPLOAD_BYTES, &w->speed.upload_bytes_per_ns);
}

ductile_status fsdp_work_open_cuda(const testbed *on, fsdp_work **out) {
    static const fsdp_work_ops ops = {
        .busy = cuda_busy,
        .host = cuda_host,
        .sync = cuda_sync,
        .now_ns = cuda_now_ns,
        .close = cuda_close,
    };
    cuda_work *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    w->base = (fsdp_work){.ops = &ops, .on = on};
    ductile_status status = prepare(w);
    if (status != DUCTILE_OK) {
        cuda_close(&w->base);
        return status;
    }
    *out = &w->base;
    return DUCTILE_OK;
}
