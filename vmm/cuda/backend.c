/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the CUDA backend: each entry is one call of the driver.
 *
 * Memory management needs no context and gets none. Streams, events and contents use the current
 * context: they run with the primary one (context.h).
 */
#include "vmm/cuda/backend.h"

#include "vmm/base/lock.h"
#include "vmm/cuda/context.h"
#include "vmm/cuda/foreign.h"

#include <stdlib.h>

/* ---- Turns --------------------------------------------------------------------------------- */

/* The driver's lock around calls for memory is not fair: a thread that makes one after another
 * keeps another one waiting for up to a second. So all allocators of the process take turns at a
 * device. A turn is one call. A child after a fork never takes one: it may not use the driver. */
static dti_turns turns[DVMM_MAX_DEVICES];

static dti_turns *turns_of(const cuda_backend *b) {
    return &turns[(unsigned)b->device % DVMM_MAX_DEVICES];
}

static void take_turn(const cuda_backend *b) {
    dti_turn_take(turns_of(b));
}

/* Hands the code of the call on. */
static int end_turn(const cuda_backend *b, int code) {
    dti_turn_end(turns_of(b));
    return code;
}

/* The entry of a call that is made in a turn. */
#define IN_TURN(name, parameters, call)                                                            \
    static int cuda_##name parameters {                                                            \
        const cuda_backend *b = ctx;                                                               \
        take_turn(b);                                                                              \
        return end_turn(b, call);                                                                  \
    }

/* ---- Life ---------------------------------------------------------------------------------- */

static void cuda_close(void *ctx) {
    cuda_backend *b = ctx;
    dvmm_cuda_drop_joining(b);
    (void)b->api->cuDevicePrimaryCtxRelease(b->device);
    free(b);
}

/* ---- Memory on demand ---------------------------------------------------------------------- */

IN_CONTEXT(mem_info, (void *ctx, uint64_t *free_bytes, uint64_t *total_bytes),
           b->api->cuMemGetInfo((size_t *)free_bytes, (size_t *)total_bytes))

static int cuda_address_reserve(void *ctx, uint64_t size, uint64_t alignment, ductile_addr hint,
                                ductile_addr *out) {
    const cuda_backend *b = ctx;
    return b->api->cuMemAddressReserve(out, size, alignment, hint, 0);
}

static int cuda_address_free(void *ctx, ductile_addr addr, uint64_t size) {
    const cuda_backend *b = ctx;
    return b->api->cuMemAddressFree(addr, size);
}

cu_phys_props dvmm_cuda_props(const cuda_backend *b, const dvmm_phys_props *props) {
    const cu_location device = {.type = CU_LOCATION_DEVICE, .id = b->device};
    return (cu_phys_props){
        .type = CU_PHYS_PINNED,
        .handle_types = (int)props->handle_types,
        .location = props->is_host ? b->host : device,
        .flags = {.rdma = props->rdma},
    };
}

static int cuda_phys_create(void *ctx, uint64_t size, const dvmm_phys_props *props,
                            dvmm_phys *out) {
    const cuda_backend *b = ctx;
    const cu_phys_props wanted = dvmm_cuda_props(b, props);
    take_turn(b);
    return end_turn(b, b->api->cuMemCreate(out, size, &wanted, 0));
}

IN_TURN(phys_release, (void *ctx, dvmm_phys phys), b->api->cuMemRelease(phys))
IN_TURN(map, (void *ctx, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys),
        b->api->cuMemMap(addr, size, offset, phys, 0))
IN_TURN(unmap, (void *ctx, ductile_addr addr, uint64_t size), b->api->cuMemUnmap(addr, size))

static int cuda_set_access_for(void *ctx, ductile_addr addr, uint64_t size, dvmm_access access,
                               const int *devices, size_t n_devices) {
    const cuda_backend *b = ctx;
    cu_access_desc descs[DVMM_MAX_DEVICES];
    for (size_t i = 0; i < n_devices; i++) {
        descs[i] = (cu_access_desc){
            .location = {.type = CU_LOCATION_DEVICE, .id = devices[i]},
            .flags = (int)access,
        };
    }
    take_turn(b);
    return end_turn(b, b->api->cuMemSetAccess(addr, size, descs, n_devices));
}

static int cuda_set_access(void *ctx, ductile_addr addr, uint64_t size, dvmm_access access) {
    const cuda_backend *b = ctx;
    return cuda_set_access_for(ctx, addr, size, access, &b->device, 1);
}

static int cuda_get_access(void *ctx, ductile_addr addr, dvmm_access *out) {
    const cuda_backend *b = ctx;
    const cu_location here = {.type = CU_LOCATION_DEVICE, .id = b->device};
    unsigned long long flags = 0;
    int code = b->api->cuMemGetAccess(&flags, &here, addr);
    *out = (dvmm_access)flags;
    return code;
}

/* ---- Other devices, other processes -------------------------------------------------------- */

static int cuda_can_access_peer(void *ctx, int device, int *out) {
    const cuda_backend *b = ctx;
    cu_device peer = 0;
    int code = b->api->cuDeviceGet(&peer, device);
    return code != DVMM_SUCCESS ? code : b->api->cuDeviceCanAccessPeer(out, peer, b->device);
}

/* Where the driver writes depends on the type: a number, or 64 bytes. */
static int cuda_phys_export(void *ctx, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out) {
    const cuda_backend *b = ctx;
    void *to = type == DVMM_SHARE_FABRIC ? (void *)out->fabric : (void *)&out->fd;
    return b->api->cuMemExportToShareableHandle(to, phys, (int)type, 0);
}

/* A descriptor is passed as if it were a pointer, the bytes of a fabric handle by one. */
static int cuda_phys_import(void *ctx, const dvmm_shared *shared, dvmm_phys *out) {
    const cuda_backend *b = ctx;
    dvmm_shared copy = *shared;
    void *from = copy.type == DVMM_SHARE_FABRIC ? (void *)copy.fabric : (void *)(intptr_t)copy.fd;
    return b->api->cuMemImportFromShareableHandle(out, from, (int)copy.type);
}

/* ---- Streams ------------------------------------------------------------------------------- */

IN_CONTEXT(stream_create, (void *ctx, ductile_stream *out),
           b->api->cuStreamCreate(out, CU_STREAM_FLAG_NON_BLOCKING))
IN_CONTEXT(stream_destroy, (void *ctx, ductile_stream stream), b->api->cuStreamDestroy(stream))
IN_CONTEXT(stream_sync, (void *ctx, ductile_stream stream), b->api->cuStreamSynchronize(stream))

/* For a stream of a green context the newer call answers the primary one, the older another. */
static int context_of(const cuda_backend *b, ductile_stream stream, cu_context *out) {
    cu_green_context green = NULL;
    return b->api->cuStreamGetCtx_v2 != NULL ? b->api->cuStreamGetCtx_v2(stream, out, &green)
                                             : b->api->cuStreamGetCtx(stream, out);
}

static int compare_context(const cuda_backend *b, ductile_stream stream, int *out) {
    cu_context context = NULL;
    int code = context_of(b, stream, &context);
    *out = code == DVMM_SUCCESS && context == b->context;
    return code;
}

IN_CONTEXT(stream_is_ours, (void *ctx, ductile_stream stream, int *out),
           compare_context(b, stream, out))
IN_CONTEXT(stream_wait_event, (void *ctx, ductile_stream stream, dvmm_event event),
           b->api->cuStreamWaitEvent(stream, event, 0))

/* ---- Captures ------------------------------------------------------------------------------ */

static int ask_capture_status(const cuda_backend *b, ductile_stream stream,
                              dvmm_capture_status *out) {
    cu_capture_status status = DVMM_CAPTURE_NONE;
    int code = b->api->cuStreamIsCapturing(stream, &status);
    *out = (dvmm_capture_status)status;
    return code;
}

IN_CONTEXT(capture_status, (void *ctx, ductile_stream stream, dvmm_capture_status *out),
           ask_capture_status(b, stream, out))

static int cuda_capture_exchange_mode(void *ctx, dvmm_capture_mode *mode) {
    const cuda_backend *b = ctx;
    cu_capture_mode swapped = (cu_capture_mode)*mode;
    int code = b->api->cuThreadExchangeStreamCaptureMode(&swapped);
    *mode = (dvmm_capture_mode)swapped;
    return code;
}

IN_CONTEXT(context_sync, (void *ctx), b->api->cuCtxSynchronize())

static int cuda_context_record(void *ctx, dvmm_event event) {
    const cuda_backend *b = ctx;
    if (b->api->cuCtxRecordEvent == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    RETURN_IN_CONTEXT(b, b->api->cuCtxRecordEvent(b->context, event));
}

/* ---- Events -------------------------------------------------------------------------------- */

/* Without timing, an event costs a tenth. */
IN_CONTEXT(event_create, (void *ctx, dvmm_event *out),
           b->api->cuEventCreate(out, CU_EVENT_FLAG_DISABLE_TIMING))
IN_CONTEXT(event_destroy, (void *ctx, dvmm_event event), b->api->cuEventDestroy(event))

/* An event and a stream of two contexts do not go together. */
static int record_event(cuda_backend *b, dvmm_event event, ductile_stream stream) {
    int code = b->api->cuEventRecord(event, stream);
    return code == DVMM_INVALID_HANDLE ? dvmm_cuda_record_foreign(b, event, stream) : code;
}

IN_CONTEXT(event_record, (void *ctx, dvmm_event event, ductile_stream stream),
           record_event(b, event, stream))
IN_CONTEXT(event_query, (void *ctx, dvmm_event event), b->api->cuEventQuery(event))
IN_CONTEXT(event_sync, (void *ctx, dvmm_event event), b->api->cuEventSynchronize(event))

/* ---- Host memory and contents --------------------------------------------------------------- */

IN_CONTEXT(host_register, (void *ctx, void *memory, uint64_t size),
           b->api->cuMemHostRegister(memory, size, CU_HOST_REGISTER_PORTABLE))
IN_CONTEXT(host_unregister, (void *ctx, void *memory), b->api->cuMemHostUnregister(memory))
IN_CONTEXT(fill,
           (void *ctx, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream),
           b->api->cuMemsetD8Async(addr, value, size, stream))
IN_CONTEXT(upload,
           (void *ctx, ductile_addr to, const void *from, uint64_t size, ductile_stream stream),
           b->api->cuMemcpyHtoDAsync(to, from, size, stream))
IN_CONTEXT(download, (void *ctx, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
           b->api->cuMemcpyDtoHAsync(to, from, size, stream))

/* Where a copy failed is of no use: others may have been made before it. */
static int copy_batch(const cuda_backend *b, dvmm_batch *batch, ductile_stream stream) {
    cu_copy_attributes attributes = {.source_order = CU_SOURCE_IN_STREAM_ORDER};
    size_t begin = 0;
    size_t failed = 0;
    return b->api->cuMemcpyBatchAsync(batch->is_out ? batch->host : batch->device,
                                      batch->is_out ? batch->device : batch->host, batch->sizes,
                                      batch->n, &attributes, &begin, 1, &failed, stream);
}

static int cuda_copy_batch(void *ctx, dvmm_batch *batch, ductile_stream stream) {
    const cuda_backend *b = ctx;
    if (b->api->cuMemcpyBatchAsync == NULL) {
        return DVMM_NOT_SUPPORTED;
    }
    RETURN_IN_CONTEXT(b, copy_batch(b, batch, stream));
}

/* ---- The table ----------------------------------------------------------------------------- */

const dvmm_driver_ops dvmm_cuda_ops = {.close = cuda_close,
                                       .clock_ns = NULL, /* the host's clock is the device's */
#define CUDA_ENTRY(name, parameters) .name = cuda_##name,
                                       DVMM_CALLS(CUDA_ENTRY)
#undef CUDA_ENTRY
};
