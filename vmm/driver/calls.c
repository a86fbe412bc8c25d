/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wrapper per driver call: what goes in is checked, the call is made between dvmm_begin_call
 * and dvmm_end_call, what came back is checked, and a failure leaves zero in every output.
 */
#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/driver/wrap.h"

#include <unistd.h>

/* ---- Wrappers ------------------------------------------------------------------------------ */

/* The status of `d->ops->name args`, or of the refusal to call it. */
#define CALL(d, name, address, size, args)                                                         \
    (dvmm_begin_call(&call, (d), DVMM_CALL_##name, (address), (size))                              \
         ? dvmm_end_call(&call, (d)->ops->name args)                                               \
         : call.refusal)

static bool is_granules(const dvmm_driver *d, uint64_t n) {
    return n != 0 && dti_is_aligned(n, d->caps.granule_bytes);
}

static bool is_span(const dvmm_driver *d, ductile_addr addr, uint64_t size) {
    return is_granules(d, addr) && is_granules(d, size);
}

/* A wrapper that only asserts what goes in. */
#define WRAP(name, parameters, pre, address, size, args)                                           \
    ductile_status dvmm_##name parameters {                                                        \
        dvmm_seam_call call;                                                                       \
        DTI_ASSERT(pre);                                                                           \
        return CALL(d, name, address, size, args);                                                 \
    }

/* The same with an output: `none` after a failure, else as `post` says. */
#define WRAP_OUT(name, parameters, pre, address, size, args, none, post)                           \
    ductile_status dvmm_##name parameters {                                                        \
        dvmm_seam_call call;                                                                       \
        DTI_ASSERT(pre);                                                                           \
        ductile_status status = CALL(d, name, address, size, args);                                \
        *out = status == DUCTILE_OK ? *out : (none);                                               \
        DTI_ASSERT(status != DUCTILE_OK || (post));                                                \
        return status;                                                                             \
    }

/* The last of the default streams; 0 and 1 are the legacy one. */
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

/* ---- Memory -------------------------------------------------------------------------------- */

ductile_status dvmm_mem_info(dvmm_driver *d, uint64_t *free_bytes, uint64_t *total_bytes) {
    dvmm_seam_call call;
    ductile_status status = CALL(d, mem_info, 0, 0, (d->ctx, free_bytes, total_bytes));
    if (status != DUCTILE_OK) {
        *free_bytes = 0;
        *total_bytes = 0;
    }
    return status;
}

/* Address ranges have no memory behind them. The driver says "out of memory" for them too, but the
 * caller must not answer by freeing memory. */
ductile_status dvmm_address_reserve(dvmm_driver *d, uint64_t size, ductile_addr *out) {
    dvmm_seam_call call;
    DTI_ASSERT(is_granules(d, size));
    ductile_status status = CALL(d, address_reserve, 0, size, (d->ctx, size, 0, 0, out));
    if (status != DUCTILE_OK) {
        *out = 0;
        return status == DUCTILE_ERR_OUT_OF_MEMORY ? DUCTILE_ERR_OUT_OF_ADDRESSES : status;
    }
    DTI_ASSERT(is_span(d, *out, size));
    return DUCTILE_OK;
}

WRAP(address_free, (dvmm_driver * d, ductile_addr addr, uint64_t size), is_span(d, addr, size),
     addr, size, (d->ctx, addr, size))
WRAP_OUT(phys_create,
         (dvmm_driver * d, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out),
         is_granules(d, size), 0, size, (d->ctx, size, props, out), 0, *out != 0)
WRAP(phys_release, (dvmm_driver * d, dvmm_phys phys), phys != 0, phys, 0, (d->ctx, phys))
WRAP(map, (dvmm_driver * d, ductile_addr addr, uint64_t size, dvmm_phys phys),
     is_span(d, addr, size) && phys != 0, addr, size, (d->ctx, addr, size, 0, phys))
WRAP(unmap, (dvmm_driver * d, ductile_addr addr, uint64_t size), is_span(d, addr, size), addr, size,
     (d->ctx, addr, size))
WRAP(set_access, (dvmm_driver * d, ductile_addr addr, uint64_t size, dvmm_access access),
     is_span(d, addr, size), addr, size, (d->ctx, addr, size, access))
WRAP_OUT(get_access, (dvmm_driver * d, ductile_addr addr, dvmm_access *out), true, addr, 0,
         (d->ctx, addr, out), DVMM_ACCESS_NONE, true)

/* ---- Other devices, other processes -------------------------------------------------------- */

ductile_status dvmm_can_access_peer(dvmm_driver *d, int device, bool *out) {
    dvmm_seam_call call;
    int can = 0;
    *out = false;
    ductile_status status = CALL(d, can_access_peer, (uint64_t)device, 0, (d->ctx, device, &can));
    if (status == DUCTILE_OK) {
        *out = can != 0;
    }
    return status;
}

WRAP(set_access_for,
     (dvmm_driver * d, ductile_addr addr, uint64_t size, dvmm_access access, const int *devices,
      size_t n_devices),
     is_span(d, addr, size) && n_devices > 0 && n_devices <= DVMM_MAX_DEVICES, addr, size,
     (d->ctx, addr, size, access, devices, n_devices))

/* After a failure no descriptor is returned: whatever number the driver left cannot be trusted. */
ductile_status dvmm_phys_export(dvmm_driver *d, dvmm_phys phys, dvmm_share_type type,
                                dvmm_shared *out) {
    dvmm_seam_call call;
    DTI_ASSERT(phys != 0);
    *out = (dvmm_shared){.type = type, .fd = -1};
    ductile_status status = CALL(d, phys_export, phys, 0, (d->ctx, phys, type, out));
    if (status != DUCTILE_OK) {
        *out = (dvmm_shared){.type = type, .fd = -1};
    }
    return status;
}

void dvmm_shared_drop(dvmm_shared *shared) {
    if (shared->type == DVMM_SHARE_FD && shared->fd >= 0) {
        (void)close(shared->fd);
    }
    shared->fd = -1;
}

WRAP_OUT(phys_import, (dvmm_driver * d, const dvmm_shared *shared, dvmm_phys *out), true, 0, 0,
         (d->ctx, shared, out), 0, *out != 0)

/* ---- Streams ------------------------------------------------------------------------------- */

WRAP_OUT(stream_create, (dvmm_driver * d, ductile_stream *out), true, 0, 0, (d->ctx, out), NULL,
         true)
WRAP(stream_destroy, (dvmm_driver * d, ductile_stream stream), true, dvmm_word(stream), 0,
     (d->ctx, stream))

WRAP(stream_sync, (dvmm_driver * d, ductile_stream stream), true, dvmm_word(stream), 0,
     (d->ctx, stream))

/* Each wrapper makes our context current, so their default streams are its own. */
static bool is_default_stream(ductile_stream stream) {
    return dvmm_word(stream) <= PER_THREAD_STREAM;
}

/* A wrong "yes" frees memory in use, a wrong "no" only delays. */
bool dvmm_stream_is_ours(dvmm_driver *d, ductile_stream stream) {
    dvmm_seam_call call;
    int is_ours = 0;
    if (is_default_stream(stream)) {
        return true;
    }
    ductile_status status =
        CALL(d, stream_is_ours, dvmm_word(stream), 0, (d->ctx, stream, &is_ours));
    return status == DUCTILE_OK && is_ours != 0;
}

WRAP(stream_wait_event, (dvmm_driver * d, ductile_stream stream, dvmm_event event), event != NULL,
     dvmm_word(stream), dvmm_word(event), (d->ctx, stream, event))

WRAP(context_sync, (dvmm_driver * d), true, 0, 0, (d->ctx))
WRAP(context_record, (dvmm_driver * d, dvmm_event event), event != NULL, dvmm_word(event), 0,
     (d->ctx, event))

/* ---- Capture ------------------------------------------------------------------------------- */

/* Without an answer the stream counts as captured: a wrong "no" invalidates a capture, a wrong
 * "yes" only delays. */
ductile_status dvmm_capture_status_of(dvmm_driver *d, ductile_stream stream,
                                      dvmm_capture_status *out) {
    dvmm_seam_call call;
    ductile_status status = CALL(d, capture_status, dvmm_word(stream), 0, (d->ctx, stream, out));
    if (status != DUCTILE_OK) {
        *out = DVMM_CAPTURE_BROKEN;
    }
    return status;
}

/* Both in and out, so a failure leaves *mode as it was. */
ductile_status dvmm_capture_exchange_mode(dvmm_driver *d, dvmm_capture_mode *mode) {
    dvmm_seam_call call;
    dvmm_capture_mode swapped = *mode;
    ductile_status status = CALL(d, capture_exchange_mode, 0, 0, (d->ctx, &swapped));
    if (status == DUCTILE_OK) {
        *mode = swapped;
    }
    return status;
}

/* ---- Events -------------------------------------------------------------------------------- */

WRAP_OUT(event_create, (dvmm_driver * d, dvmm_event *out), true, 0, 0, (d->ctx, out), NULL,
         *out != NULL)
WRAP(event_destroy, (dvmm_driver * d, dvmm_event event), event != NULL, dvmm_word(event), 0,
     (d->ctx, event))
WRAP(event_record, (dvmm_driver * d, dvmm_event event, ductile_stream stream), event != NULL,
     dvmm_word(event), dvmm_word(stream), (d->ctx, event, stream))
WRAP(event_query, (dvmm_driver * d, dvmm_event event), event != NULL, dvmm_word(event), 0,
     (d->ctx, event))
WRAP(event_sync, (dvmm_driver * d, dvmm_event event), event != NULL, dvmm_word(event), 0,
     (d->ctx, event))

/* ---- Host memory and contents -------------------------------------------------------------- */

WRAP(host_register, (dvmm_driver * d, void *memory, uint64_t size), memory != NULL && size != 0,
     dvmm_word(memory), size, (d->ctx, memory, size))
WRAP(host_unregister, (dvmm_driver * d, void *memory), true, dvmm_word(memory), 0, (d->ctx, memory))
WRAP(fill,
     (dvmm_driver * d, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream),
     true, addr, size, (d->ctx, addr, value, size, stream))
WRAP(upload,
     (dvmm_driver * d, ductile_addr to, const void *from, uint64_t size, ductile_stream stream),
     true, to, size, (d->ctx, to, from, size, stream))
WRAP(download, (dvmm_driver * d, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
     true, from, size, (d->ctx, to, from, size, stream))
WRAP(copy_batch, (dvmm_driver * d, dvmm_batch *batch, ductile_stream stream),
     batch->n > 0 && batch->n <= DVMM_BATCH_COPIES && dvmm_word(stream) > LEGACY_STREAM,
     batch->device[0], batch->bytes, (d->ctx, batch, stream))
