/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wrapper per driver call: what goes in is checked, the call is made between dvmm_begin_call
 * and dvmm_end_call, what came back is checked, and a failure leaves zero in every output.
 */
#include "vmm/driver/seam.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"

#include <unistd.h>

/* The status of `d->ops->name args`, or of the refusal to call it. */
#define CALL(d, name, address, size, args)                                                         \
    (dvmm_begin_call(&call, (d), DVMM_CALL_##name, (address), (size))                              \
         ? dvmm_end_call(&call, (d)->ops->name args)                                               \
         : call.refusal)

#define ASSERT_GRANULES(d, n) DTI_ASSERT((n) != 0 && dti_is_aligned((n), (d)->caps.granule_bytes))

#define ASSERT_SPAN(d, addr, size)                                                                 \
    do {                                                                                           \
        ASSERT_GRANULES(d, addr);                                                                  \
        ASSERT_GRANULES(d, size);                                                                  \
    } while (0)

/* The last of the default streams; 0 and 1 are the legacy one. */
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

static uint64_t word(const void *handle) {
    return (uint64_t)(uintptr_t)handle;
}

/* ---- Memory -------------------------------------------------------------------------------- */

ductile_status dvmm_mem_info(dvmm_driver *d, uint64_t *free_bytes, uint64_t *total_bytes) {
    seam_call call;
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
    seam_call call;
    ASSERT_GRANULES(d, size);
    ductile_status status = CALL(d, address_reserve, 0, size, (d->ctx, size, 0, 0, out));
    if (status != DUCTILE_OK) {
        *out = 0;
        return status == DUCTILE_ERR_OUT_OF_MEMORY ? DUCTILE_ERR_OUT_OF_ADDRESSES : status;
    }
    ASSERT_SPAN(d, *out, size);
    return DUCTILE_OK;
}

ductile_status dvmm_address_free(dvmm_driver *d, ductile_addr addr, uint64_t size) {
    seam_call call;
    ASSERT_SPAN(d, addr, size);
    return CALL(d, address_free, addr, size, (d->ctx, addr, size));
}

ductile_status dvmm_phys_create(dvmm_driver *d, uint64_t size, const dvmm_phys_props *props,
                                dvmm_phys *out) {
    seam_call call;
    ASSERT_GRANULES(d, size);
    ductile_status status = CALL(d, phys_create, 0, size, (d->ctx, size, props, out));
    if (status != DUCTILE_OK) {
        *out = 0;
        return status;
    }
    DTI_ASSERT(*out != 0);
    return DUCTILE_OK;
}

ductile_status dvmm_phys_release(dvmm_driver *d, dvmm_phys phys) {
    seam_call call;
    DTI_ASSERT(phys != 0);
    return CALL(d, phys_release, phys, 0, (d->ctx, phys));
}

ductile_status dvmm_map(dvmm_driver *d, ductile_addr addr, uint64_t size, dvmm_phys phys) {
    seam_call call;
    ASSERT_SPAN(d, addr, size);
    DTI_ASSERT(phys != 0);
    return CALL(d, map, addr, size, (d->ctx, addr, size, 0, phys));
}

ductile_status dvmm_unmap(dvmm_driver *d, ductile_addr addr, uint64_t size) {
    seam_call call;
    ASSERT_SPAN(d, addr, size);
    return CALL(d, unmap, addr, size, (d->ctx, addr, size));
}

ductile_status dvmm_set_access(dvmm_driver *d, ductile_addr addr, uint64_t size,
                               dvmm_access access) {
    seam_call call;
    ASSERT_SPAN(d, addr, size);
    return CALL(d, set_access, addr, size, (d->ctx, addr, size, access));
}

ductile_status dvmm_get_access(dvmm_driver *d, ductile_addr addr, dvmm_access *out) {
    seam_call call;
    ductile_status status = CALL(d, get_access, addr, 0, (d->ctx, addr, out));
    if (status != DUCTILE_OK) {
        *out = DVMM_ACCESS_NONE;
    }
    return status;
}

/* ---- Other devices, other processes -------------------------------------------------------- */

ductile_status dvmm_can_access_peer(dvmm_driver *d, int device, bool *out) {
    seam_call call;
    int can = 0;
    *out = false;
    ductile_status status = CALL(d, can_access_peer, (uint64_t)device, 0, (d->ctx, device, &can));
    if (status == DUCTILE_OK) {
        *out = can != 0;
    }
    return status;
}

ductile_status dvmm_set_access_for(dvmm_driver *d, ductile_addr addr, uint64_t size,
                                   dvmm_access access, const int *devices, size_t n_devices) {
    seam_call call;
    ASSERT_SPAN(d, addr, size);
    DTI_ASSERT(n_devices > 0 && n_devices <= DVMM_MAX_DEVICES);
    return CALL(d, set_access_for, addr, size, (d->ctx, addr, size, access, devices, n_devices));
}

ductile_status dvmm_get_access_for(dvmm_driver *d, ductile_addr addr, int device,
                                   dvmm_access *out) {
    seam_call call;
    ductile_status status = CALL(d, get_access_for, addr, 0, (d->ctx, addr, device, out));
    if (status != DUCTILE_OK) {
        *out = DVMM_ACCESS_NONE;
    }
    return status;
}

/* After a failure no descriptor is returned: whatever number the driver left cannot be trusted. */
ductile_status dvmm_phys_export(dvmm_driver *d, dvmm_phys phys, dvmm_share_type type,
                                dvmm_shared *out) {
    seam_call call;
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

ductile_status dvmm_phys_import(dvmm_driver *d, const dvmm_shared *shared, dvmm_phys *out) {
    seam_call call;
    ductile_status status = CALL(d, phys_import, 0, 0, (d->ctx, shared, out));
    if (status != DUCTILE_OK) {
        *out = 0;
        return status;
    }
    DTI_ASSERT(*out != 0);
    return DUCTILE_OK;
}

/* ---- What rivals use ----------------------------------------------------------------------- */

static ductile_status allocated(ductile_status status, ductile_addr *out) {
    if (status != DUCTILE_OK) {
        *out = 0;
        return status;
    }
    DTI_ASSERT(*out != 0);
    return DUCTILE_OK;
}

ductile_status dvmm_mem_alloc(dvmm_driver *d, uint64_t size, ductile_addr *out) {
    seam_call call;
    DTI_ASSERT(size != 0);
    return allocated(CALL(d, mem_alloc, 0, size, (d->ctx, size, out)), out);
}

ductile_status dvmm_mem_free(dvmm_driver *d, ductile_addr addr) {
    seam_call call;
    DTI_ASSERT(addr != 0);
    return CALL(d, mem_free, addr, 0, (d->ctx, addr));
}

ductile_status dvmm_mem_alloc_async(dvmm_driver *d, uint64_t size, ductile_stream stream,
                                    ductile_addr *out) {
    seam_call call;
    DTI_ASSERT(size != 0);
    return allocated(CALL(d, mem_alloc_async, 0, size, (d->ctx, size, stream, out)), out);
}

ductile_status dvmm_mem_free_async(dvmm_driver *d, ductile_addr addr, ductile_stream stream) {
    seam_call call;
    DTI_ASSERT(addr != 0);
    return CALL(d, mem_free_async, addr, 0, (d->ctx, addr, stream));
}

ductile_status dvmm_async_pool_info(dvmm_driver *d, uint64_t *reserved, uint64_t *reserved_peak) {
    seam_call call;
    ductile_status status = CALL(d, async_pool_info, 0, 0, (d->ctx, reserved, reserved_peak));
    if (status != DUCTILE_OK) {
        *reserved = 0;
        *reserved_peak = 0;
    }
    return status;
}

ductile_status dvmm_async_pool_trim(dvmm_driver *d, uint64_t keep_bytes) {
    seam_call call;
    return CALL(d, async_pool_trim, 0, keep_bytes, (d->ctx, keep_bytes));
}

/* ---- Streams ------------------------------------------------------------------------------- */

ductile_status dvmm_stream_create(dvmm_driver *d, ductile_stream *out) {
    seam_call call;
    ductile_status status = CALL(d, stream_create, 0, 0, (d->ctx, out));
    if (status != DUCTILE_OK) {
        *out = NULL;
    }
    return status;
}

ductile_status dvmm_stream_destroy(dvmm_driver *d, ductile_stream stream) {
    seam_call call;
    return CALL(d, stream_destroy, word(stream), 0, (d->ctx, stream));
}

ductile_status dvmm_stream_sync(dvmm_driver *d, ductile_stream stream) {
    seam_call call;
    dvmm_section_begin(d, "wait for a stream", 0);
    ductile_status status = CALL(d, stream_sync, word(stream), 0, (d->ctx, stream));
    dvmm_section_end(d);
    return status;
}

ductile_status dvmm_stream_query(dvmm_driver *d, ductile_stream stream) {
    seam_call call;
    return CALL(d, stream_query, word(stream), 0, (d->ctx, stream));
}

/* Each wrapper makes our context current, so their default streams are its own. */
static bool is_default_stream(ductile_stream stream) {
    return word(stream) <= PER_THREAD_STREAM;
}

/* A wrong "yes" frees memory in use, a wrong "no" only delays. */
bool dvmm_stream_is_ours(dvmm_driver *d, ductile_stream stream) {
    seam_call call;
    int is_ours = 0;
    if (is_default_stream(stream)) {
        return true;
    }
    ductile_status status = CALL(d, stream_is_ours, word(stream), 0, (d->ctx, stream, &is_ours));
    return status == DUCTILE_OK && is_ours != 0;
}

ductile_status dvmm_stream_wait_event(dvmm_driver *d, ductile_stream stream, dvmm_event event) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    return CALL(d, stream_wait_event, word(stream), word(event), (d->ctx, stream, event));
}

ductile_status dvmm_stream_wait_value(dvmm_driver *d, ductile_stream stream, uint64_t *host_word,
                                      uint64_t value) {
    seam_call call;
    DTI_ASSERT(host_word != NULL);
    return CALL(d, stream_wait_value, word(stream), value, (d->ctx, stream, host_word, value));
}

ductile_status dvmm_context_sync(dvmm_driver *d) {
    seam_call call;
    dvmm_section_begin(d, "wait for the device", 0);
    ductile_status status = CALL(d, context_sync, 0, 0, (d->ctx));
    dvmm_section_end(d);
    return status;
}

ductile_status dvmm_context_record(dvmm_driver *d, dvmm_event event) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    return CALL(d, context_record, word(event), 0, (d->ctx, event));
}

/* ---- Capture ------------------------------------------------------------------------------- */

/* Without an answer the stream counts as captured: a wrong "no" invalidates a capture, a wrong
 * "yes" only delays. */
ductile_status dvmm_capture_status_of(dvmm_driver *d, ductile_stream stream,
                                      dvmm_capture_status *out) {
    seam_call call;
    ductile_status status = CALL(d, capture_status, word(stream), 0, (d->ctx, stream, out));
    if (status != DUCTILE_OK) {
        *out = DVMM_CAPTURE_BROKEN;
    }
    return status;
}

ductile_status dvmm_capture_begin(dvmm_driver *d, ductile_stream stream, dvmm_capture_mode mode) {
    seam_call call;
    return CALL(d, capture_begin, word(stream), 0, (d->ctx, stream, mode));
}

ductile_status dvmm_capture_end(dvmm_driver *d, ductile_stream stream) {
    seam_call call;
    return CALL(d, capture_end, word(stream), 0, (d->ctx, stream));
}

/* Both in and out, so a failure leaves *mode as it was. */
ductile_status dvmm_capture_exchange_mode(dvmm_driver *d, dvmm_capture_mode *mode) {
    seam_call call;
    dvmm_capture_mode swapped = *mode;
    ductile_status status = CALL(d, capture_exchange_mode, 0, 0, (d->ctx, &swapped));
    if (status == DUCTILE_OK) {
        *mode = swapped;
    }
    return status;
}

/* ---- Events -------------------------------------------------------------------------------- */

ductile_status dvmm_event_create(dvmm_driver *d, dvmm_event *out) {
    seam_call call;
    ductile_status status = CALL(d, event_create, 0, 0, (d->ctx, out));
    if (status != DUCTILE_OK) {
        *out = NULL;
        return status;
    }
    DTI_ASSERT(*out != NULL);
    return DUCTILE_OK;
}

ductile_status dvmm_event_destroy(dvmm_driver *d, dvmm_event event) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    return CALL(d, event_destroy, word(event), 0, (d->ctx, event));
}

ductile_status dvmm_event_record(dvmm_driver *d, dvmm_event event, ductile_stream stream) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    return CALL(d, event_record, word(event), word(stream), (d->ctx, event, stream));
}

ductile_status dvmm_event_query(dvmm_driver *d, dvmm_event event) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    return CALL(d, event_query, word(event), 0, (d->ctx, event));
}

ductile_status dvmm_event_sync(dvmm_driver *d, dvmm_event event) {
    seam_call call;
    DTI_ASSERT(event != NULL);
    dvmm_section_begin(d, "wait for a marker", 0);
    ductile_status status = CALL(d, event_sync, word(event), 0, (d->ctx, event));
    dvmm_section_end(d);
    return status;
}

/* ---- Host memory and contents -------------------------------------------------------------- */

ductile_status dvmm_host_alloc(dvmm_driver *d, uint64_t size, void **out) {
    seam_call call;
    DTI_ASSERT(size != 0);
    ductile_status status = CALL(d, host_alloc, 0, size, (d->ctx, size, out));
    if (status != DUCTILE_OK) {
        *out = NULL;
        return status;
    }
    DTI_ASSERT(*out != NULL);
    return DUCTILE_OK;
}

ductile_status dvmm_host_free(dvmm_driver *d, void *memory) {
    seam_call call;
    return CALL(d, host_free, word(memory), 0, (d->ctx, memory));
}

ductile_status dvmm_host_register(dvmm_driver *d, void *memory, uint64_t size) {
    seam_call call;
    DTI_ASSERT(memory != NULL && size != 0);
    return CALL(d, host_register, word(memory), size, (d->ctx, memory, size));
}

ductile_status dvmm_host_unregister(dvmm_driver *d, void *memory) {
    seam_call call;
    return CALL(d, host_unregister, word(memory), 0, (d->ctx, memory));
}

ductile_status dvmm_fill(dvmm_driver *d, ductile_addr addr, uint8_t value, uint64_t size,
                         ductile_stream stream) {
    seam_call call;
    return CALL(d, fill, addr, size, (d->ctx, addr, value, size, stream));
}

ductile_status dvmm_copy(dvmm_driver *d, ductile_addr to, ductile_addr from, uint64_t size,
                         ductile_stream stream) {
    seam_call call;
    return CALL(d, copy, to, size, (d->ctx, to, from, size, stream));
}

ductile_status dvmm_upload(dvmm_driver *d, ductile_addr to, const void *from, uint64_t size,
                           ductile_stream stream) {
    seam_call call;
    return CALL(d, upload, to, size, (d->ctx, to, from, size, stream));
}

ductile_status dvmm_download(dvmm_driver *d, void *to, ductile_addr from, uint64_t size,
                             ductile_stream stream) {
    seam_call call;
    return CALL(d, download, from, size, (d->ctx, to, from, size, stream));
}

ductile_status dvmm_copy_batch(dvmm_driver *d, dvmm_batch *batch, ductile_stream stream) {
    seam_call call;
    DTI_ASSERT(batch->n > 0 && batch->n <= DVMM_BATCH_COPIES && word(stream) > LEGACY_STREAM);
    return CALL(d, copy_batch, batch->device[0], batch->bytes, (d->ctx, batch, stream));
}

ductile_status dvmm_read_back(dvmm_driver *d, void *to, ductile_addr from, uint64_t size,
                              ductile_stream stream) {
    seam_call call;
    return CALL(d, read_back, from, size, (d->ctx, to, from, size, stream));
}
