/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a virtual GPU, and its side of the driver seam. */
#include "vmm/base/align.h"
#include "vmm/driver/open_virtual.h"
#include "vmm/virtual/addresses/addresses.h"
#include "vmm/virtual/alloc.h"
#include "vmm/virtual/bench_table.h"
#include "vmm/virtual/memory/exports.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/serve.h"
#include "vmm/virtual/state/clock.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/events.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/uses.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Life ---------------------------------------------------------------------------------- */

static const uint64_t DEFAULT_CAPACITY = 139 * DTI_GIB;
static const uint64_t DEFAULT_GRANULE = 2 * DTI_MIB;
static const uint64_t DEFAULT_HOST = 128 * DTI_GIB;
static const uint64_t DEFAULT_ADDRESSES = 125 * DTI_TIB;
static const uint64_t SMALLEST_GRANULE = 4 * DTI_KIB;
static const uint64_t LARGEST_CAPACITY = 64 * DTI_TIB;
static const uint64_t LARGEST_ADDRESSES = 1024 * DTI_TIB;
static const uint64_t LARGEST_LOG = (uint64_t)1 << 24;

static uint64_t or_default(uint64_t value, uint64_t otherwise) {
    return value != 0 ? value : otherwise;
}

static ductile_virtual_options resolved(const ductile_virtual_options *given) {
    ductile_virtual_options options;
    ductile_virtual_options_init(&options);
    if (given != NULL) {
        memcpy(&options, given, dti_min(given->struct_size, sizeof(options)));
    }
    options.struct_size = sizeof(options);
    options.capacity_bytes = or_default(options.capacity_bytes, DEFAULT_CAPACITY);
    options.granule_bytes = or_default(options.granule_bytes, DEFAULT_GRANULE);
    options.address_bytes = or_default(options.address_bytes, DEFAULT_ADDRESSES);
    options.host_bytes = or_default(options.host_bytes, DEFAULT_HOST);
    options.n_devices = options.n_devices != 0 ? options.n_devices : 1;
    return options;
}

static bool is_possible(const ductile_virtual_options *o) {
    return dti_is_power_of_two(o->granule_bytes) && o->granule_bytes >= SMALLEST_GRANULE &&
           o->capacity_bytes >= o->granule_bytes && o->capacity_bytes <= LARGEST_CAPACITY &&
           o->address_bytes >= o->granule_bytes && o->address_bytes <= LARGEST_ADDRESSES &&
           (unsigned)o->schedule <= DUCTILE_SCHEDULE_RANDOM && o->n_devices <= DVMM_MAX_DEVICES &&
           (unsigned)o->rdma <= DUCTILE_VIRTUAL_RDMA_TRAP && o->log_calls <= LARGEST_LOG &&
           o->detect >= 0 && o->detect <= 2;
}

/* Tells the virtual GPUs of all processes apart; a forked child makes others than its parent. */
static uint64_t new_identity(void) {
    static _Atomic uint32_t n_made;
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    uint64_t when = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint64_t nth = atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed);
    return (when ^ (uint64_t)getpid() << 40) * UINT64_C(0x9E3779B97F4A7C15) + nth;
}

void ductile_virtual_options_init(ductile_virtual_options *options) {
    *options = (ductile_virtual_options){.struct_size = sizeof(*options)};
}

ductile_status ductile_virtual_create(ductile_virtual_gpu **out,
                                      const ductile_virtual_options *options) {
    if (out == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = NULL;
    ductile_virtual_options full = resolved(options);
    if (!is_possible(&full)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    vgpu *gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    gpu->head.backend = ductile_virtual_backend();
    gpu->options = full;
    gpu->identity = new_identity();
    gpu->race.level = full.detect;
    gpu->granule_shift = (unsigned)__builtin_ctzll(full.granule_bytes);
    dti_lock_init(&gpu->lock, DTI_RANK_DRIVER);
    dvmm_vgpu_memory_init(gpu);
    dvmm_vgpu_streams_init(gpu);
    if (!dvmm_vgpu_addresses_init(gpu) || !dvmm_vgpu_watch_init(gpu)) {
        ductile_virtual_destroy(gpu);
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *out = gpu;
    return DUCTILE_OK;
}

/* Captures first, as they point at queues; then work, whose queues go with their streams. */
void ductile_virtual_destroy(ductile_virtual_gpu *gpu) {
    if (gpu == NULL) {
        return;
    }
    dvmm_vgpu_capture_fini(gpu);
    dvmm_vgpu_work_fini(gpu);
    dvmm_vgpu_streams_fini(gpu);
    dvmm_vgpu_events_fini(&gpu->work);
    dvmm_vgpu_host_fini(gpu);
    dvmm_vgpu_alloc_fini(gpu);
    dvmm_vgpu_exports_fini(gpu);
    dvmm_vgpu_memory_fini(gpu);
    dvmm_vgpu_addresses_fini(gpu);
    dvmm_vgpu_watch_fini(gpu);
    dvmm_vgpu_clock_fini(&gpu->race.context_after);
    dvmm_vgpu_lanes_fini(&gpu->race.lanes);
    free(gpu);
}

/* ---- The library's calls ------------------------------------------------------------------- */

#define SERVE_AT(cost, name, parameters, address, size, action)                                    \
    SERVE_NUMBER(DVMM_CALL_##name, cost, name, parameters, address, size, action)

#define COST(name, size) dvmm_vgpu_cost_ns(DVMM_CALL_##name, (size), 1)

/* A call whose cost depends on the size that is logged, or on nothing. */
#define SERVE(name, parameters, address, size, action)                                             \
    SERVE_AT(COST(name, size), name, parameters, address, size, action)

/* ---- Memory -------------------------------------------------------------------------------- */

static int report_memory(const vgpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes) {
    *total_bytes = gpu->options.capacity_bytes;
    *free_bytes = *total_bytes - gpu->memory.used_bytes - gpu->memory.external_bytes;
    return DVMM_SUCCESS;
}

SERVE(mem_info, (void *ctx, uint64_t *free_bytes, uint64_t *total_bytes), 0, 0,
      report_memory(gpu, free_bytes, total_bytes))
SERVE(address_reserve,
      (void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint, ductile_addr *out), hint,
      size, dvmm_vgpu_address_reserve(gpu, size, alignment, hint, out))
SERVE(address_free, (void *ctx, ductile_addr addr, uint64_t size), addr, size,
      dvmm_vgpu_address_free(gpu, addr, size))

/* Memory that only closed descriptors kept is free again. */
static int create_phys(vgpu *gpu, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out) {
    dvmm_vgpu_exports_sweep(gpu);
    return dvmm_vgpu_phys_create(gpu, size, props, out);
}

SERVE_AT(props->is_host ? dvmm_vgpu_host_create_ns(size) : COST(phys_create, size), phys_create,
         (void *ctx, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out), 0, size,
         create_phys(gpu, size, props, out))

static uint64_t phys_size(const vgpu *gpu, dvmm_phys name) {
    const vgpu_phys *phys = dvmm_vgpu_find_phys(gpu, name);
    return phys != NULL ? phys->size : 0;
}

SERVE_AT(COST(phys_release, phys_size(gpu, phys)), phys_release, (void *ctx, dvmm_phys phys), phys,
         0, dvmm_vgpu_phys_release(gpu, phys))
SERVE(map, (void *ctx, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys), addr,
      size, dvmm_vgpu_map(gpu, addr, size, offset, phys))

/* A fault of effect 2 lets the first mapping of the span be done, and no more. */
static uint64_t size_done(const vgpu_served *c) {
    if (c->fault == NULL || c->fault->effect != EFFECT_FIRST) {
        return c->size;
    }
    const vgpu_mapping *mapping = dvmm_vgpu_mapping_at(c->gpu, c->address);
    return mapping != NULL ? dti_min(c->size, mapping->phys->size) : c->size;
}

static uint64_t cost_per_mapping(const vgpu *gpu, dvmm_call call, ductile_addr addr,
                                 uint64_t size) {
    return dvmm_vgpu_cost_ns(call, size, dvmm_vgpu_count_mappings(gpu, addr, size));
}

SERVE_AT(cost_per_mapping(gpu, DVMM_CALL_unmap, addr, size), unmap,
         (void *ctx, ductile_addr addr, uint64_t size), addr, size,
         dvmm_vgpu_unmap(gpu, addr, size_done(&served)))
SERVE_AT(cost_per_mapping(gpu, DVMM_CALL_set_access, addr, size), set_access,
         (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access), addr, size,
         dvmm_vgpu_set_device_access(gpu, addr, size_done(&served), 0, access))
SERVE(get_access, (void *ctx, ductile_addr addr, dvmm_access *out), addr, 0,
      dvmm_vgpu_get_access_for(gpu, addr, 0, out))
SERVE(can_access_peer, (void *ctx, int device, int *out), (uint64_t)device, 0,
      dvmm_vgpu_can_access_peer(gpu, device, out))

/* Costs as much as set_access: the cost of further devices has not been measured. */
SERVE_AT(cost_per_mapping(gpu, DVMM_CALL_set_access, addr, size), set_access_for,
         (void *ctx, ductile_addr addr, uint64_t size, dvmm_access access, const int *devices,
          size_t n_devices),
         addr, size,
         dvmm_vgpu_set_access_for(gpu, addr, size_done(&served), access, devices, n_devices))
SERVE(phys_export, (void *ctx, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out), phys, 0,
      dvmm_vgpu_phys_export(gpu, phys, type, out))
SERVE(phys_import, (void *ctx, const dvmm_shared *shared, dvmm_phys *out), 0, 0,
      dvmm_vgpu_phys_import(gpu, shared, out))

/* ---- Streams ------------------------------------------------------------------------------- */

SERVE(stream_create, (void *ctx, ductile_stream *out), 0, 0, dvmm_vgpu_stream_create(gpu, out))
SERVE(stream_destroy, (void *ctx, ductile_stream stream), dvmm_vgpu_word(stream), 0,
      dvmm_vgpu_stream_destroy(gpu, stream))
SERVE(stream_sync, (void *ctx, ductile_stream stream), dvmm_vgpu_word(stream), 0,
      dvmm_vgpu_stream_sync(gpu, stream))
SERVE(stream_is_ours, (void *ctx, ductile_stream stream, int *out), dvmm_vgpu_word(stream), 0,
      dvmm_vgpu_stream_is_ours(gpu, stream, out))
SERVE(stream_wait_event, (void *ctx, ductile_stream stream, dvmm_event event),
      dvmm_vgpu_word(stream), dvmm_vgpu_word(event),
      dvmm_vgpu_stream_wait_event(gpu, stream, event))
SERVE(context_sync, (void *ctx), 0, 0, dvmm_vgpu_context_sync(gpu))
SERVE(context_record, (void *ctx, dvmm_event event), dvmm_vgpu_word(event), 0,
      dvmm_vgpu_context_record(gpu, event))
SERVE(capture_status, (void *ctx, ductile_stream stream, dvmm_capture_status *out),
      dvmm_vgpu_word(stream), 0, dvmm_vgpu_capture_status_of(gpu, stream, out))
SERVE(capture_exchange_mode, (void *ctx, dvmm_capture_mode *mode), 0, 0,
      dvmm_vgpu_capture_exchange_mode(gpu, mode))

/* ---- Events -------------------------------------------------------------------------------- */

SERVE(event_create, (void *ctx, dvmm_event *out), 0, 0, dvmm_vgpu_event_create(gpu, out))
SERVE(event_destroy, (void *ctx, dvmm_event event), dvmm_vgpu_word(event), 0,
      dvmm_vgpu_event_destroy(gpu, event))
SERVE(event_record, (void *ctx, dvmm_event event, ductile_stream stream), dvmm_vgpu_word(event),
      dvmm_vgpu_word(stream), dvmm_vgpu_event_record(gpu, event, stream))
SERVE(event_query, (void *ctx, dvmm_event event), dvmm_vgpu_word(event), 0,
      dvmm_vgpu_event_query(gpu, event))
SERVE(event_sync, (void *ctx, dvmm_event event), dvmm_vgpu_word(event), 0,
      dvmm_vgpu_event_sync(gpu, event))

/* ---- Host memory and contents -------------------------------------------------------------- */

SERVE(host_register, (void *ctx, void *memory, uint64_t size), dvmm_vgpu_word(memory), size,
      dvmm_vgpu_host_register(gpu, memory, size))
SERVE(host_unregister, (void *ctx, void *memory), dvmm_vgpu_word(memory), 0,
      dvmm_vgpu_host_unregister(gpu, memory))
SERVE(fill, (void *ctx, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream),
      addr, size, dvmm_vgpu_fill(gpu, addr, value, size, stream))
SERVE(upload, (void *ctx, ductile_addr to, const void *from, uint64_t size, ductile_stream stream),
      to, size, dvmm_vgpu_upload(gpu, to, from, size, stream))
SERVE(download, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
      from, size, dvmm_vgpu_download(gpu, to, from, size, stream))

/* A fault of effect 2 lets the first copy be made, and no more. */
static uint32_t copies_done(const vgpu_served *c, const dvmm_batch *batch) {
    return c->fault != NULL && c->fault->effect == EFFECT_FIRST ? 1 : batch->n;
}

SERVE(copy_batch, (void *ctx, dvmm_batch *batch, ductile_stream stream), batch->device[0],
      batch->bytes, dvmm_vgpu_copy_batch(gpu, batch, copies_done(&served, batch), stream))

/* ---- The seam ------------------------------------------------------------------------------ */

static void serve_close(void *ctx) {
    vgpu *gpu = ctx;
    if (gpu->is_private) {
        ductile_virtual_destroy(gpu);
    }
}

static uint64_t serve_clock_ns(void *ctx) {
    vgpu *gpu = ctx;
    return atomic_load_explicit(&gpu->time_ns, memory_order_relaxed);
}

static const dvmm_driver_ops virtual_ops = {.close = serve_close,
                                            .clock_ns = serve_clock_ns,
#define SERVED_BY(name, parameters) .name = serve_##name,
                                            DVMM_CALLS(SERVED_BY)
#undef SERVED_BY
};

static dvmm_caps caps_of(const vgpu *gpu) {
    return (dvmm_caps){.name = "Ductile virtual GPU",
                       .driver_version = "virtual",
                       .granule_bytes = gpu->options.granule_bytes,
                       .total_bytes = gpu->options.capacity_bytes,
                       .host_bytes = gpu->options.host_bytes,
                       .is_virtual = true,
                       .share_types = (gpu->options.no_descriptors != 0 ? 0 : DVMM_SHARE_FD) |
                                      (gpu->options.has_fabric != 0 ? DVMM_SHARE_FABRIC : 0),
                       .has_rdma = gpu->options.rdma != DUCTILE_VIRTUAL_RDMA_NONE,
                       .has_context_events = gpu->options.no_context_events == 0,
                       .has_batches = true};
}

static ductile_status make_private(ductile_virtual_gpu **out) {
    ductile_status status = ductile_virtual_create(out, NULL);
    if (status == DUCTILE_OK) {
        (*out)->is_private = true;
    }
    return status;
}

static ductile_status serve_open(ductile_virtual_gpu *gpu, dvmm_opened *out) {
    ductile_status status = gpu == NULL ? make_private(&gpu) : DUCTILE_OK;
    if (status == DUCTILE_OK) {
        *out = (dvmm_opened){.ops = &virtual_ops, .ctx = gpu, .caps = caps_of(gpu)};
    }
    return status;
}

const dvmm_backend *ductile_virtual_backend(void) {
    static const dvmm_backend backend = {.version = DVMM_VERSION,
                                         .shape = DVMM_SHAPE,
                                         .open = serve_open,
                                         .bench = &dvmm_vgpu_bench_ops};
    return &backend;
}
