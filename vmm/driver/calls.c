/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One wrapper per driver call: what goes in is checked, the call is made between begin_call
 * and end_call, what came back is checked, and a failure leaves zero in every output.
 */
#include "vmm/driver/driver.h"

#include "vmm/base/align.h"
#include "vmm/base/check.h"
#include "vmm/base/lock.h"

#include <limits.h>
#include <unistd.h>

/* ---- Before and after a call --------------------------------------------------------------- */

/* One call under way, on the stack of its wrapper. */
typedef struct seam_call {
    dvmm_driver *driver;
    dvmm_call call;
    uint64_t address; /* operands, for the trace only */
    uint64_t size;
    bool is_timed;
    uint64_t driver_start_ns; /* both valid when it is timed */
    uint64_t host_start_ns;
    ductile_status refusal; /* valid when begin_call returned false */
} seam_call;

static _Thread_local int last_code;

int dvmm_last_code(void) {
    return last_code;
}

static void add(_Atomic uint64_t *counter, uint64_t n) {
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* NOT_READY answers a query; from any other call it is an error. */
static bool is_answer(dvmm_call call, int code) {
    return code == DVMM_SUCCESS || (code == DVMM_NOT_READY && (call == DVMM_CALL_event_query ||
                                                               call == DVMM_CALL_stream_query));
}

static void report_to(dvmm_trace_fn trace, const seam_call *c, int code) {
    if (__builtin_expect(trace != NULL, 0)) {
        trace(c->driver->trace_user, c->call, code, c->address, c->size);
    }
}

/* Keeps the first sticky code: later ones are its consequence. No process becomes UINT_MAX forks
 * old. */
static void poison_if_sticky(dvmm_driver *d, int code) {
    int healthy = 0;
    if (dvmm_code_is_sticky(code)) {
        (void)atomic_compare_exchange_strong(&d->poison, &healthy, code);
        atomic_store_explicit(&d->usable_at, UINT_MAX, memory_order_release);
    }
}

/* The code that the driver would have returned. */
static int code_of_refusal(const dvmm_driver *d, ductile_status refusal) {
    switch ((int)refusal) {
    case DUCTILE_ERR_EXITING:
        return DVMM_DEINITIALIZED;
    case DUCTILE_ERR_FORKED:
        return DVMM_NOT_INITIALIZED;
    default:
        return atomic_load_explicit(&d->poison, memory_order_relaxed);
    }
}

static __attribute__((noinline)) bool refuse_call(seam_call *c, const dvmm_driver *d) {
    c->refusal = dvmm_usable(d);
    last_code = code_of_refusal(d, c->refusal);
    return false;
}

/* False: the call must not be made, and c->refusal says why. The clock is read last. One of it for
 * all wrappers: inlined, they are half as long again. */
static __attribute__((noinline)) bool begin_call(seam_call *c, dvmm_driver *d, dvmm_call call,
                                                 uint64_t address, uint64_t size) {
    DTI_ASSERT_MAY_CALL_DRIVER();
    if (__builtin_expect(!dvmm_is_usable(d), 0)) {
        return refuse_call(c, d);
    }
    c->driver = d;
    c->call = call;
    c->address = address;
    c->size = size;
    c->is_timed = atomic_load_explicit(&d->times_calls, memory_order_acquire);
    if (c->is_timed) {
        c->driver_start_ns = d->ops->clock_ns != NULL ? d->ops->clock_ns(d->ctx) : 0;
        c->host_start_ns = dvmm_host_clock_ns();
    }
    return true;
}

/* A device without a clock of its own takes as long as the host sees. Of the two readings one lies
 * between them; the other, and the addition, are added: timing is not the caller's time. */
static void add_times(const seam_call *c) {
    dvmm_driver *d = c->driver;
    uint64_t timing_ns = atomic_load_explicit(&d->timing_ns, memory_order_relaxed);
    add(&d->host_time_ns, dvmm_host_clock_ns() - c->host_start_ns + timing_ns);
    if (d->ops->clock_ns != NULL) {
        add(&d->driver_time_ns, d->ops->clock_ns(d->ctx) - c->driver_start_ns);
    }
}

static __attribute__((noinline)) ductile_status count_failure(const seam_call *c, int code) {
    add(&c->driver->failures[c->call], 1);
    poison_if_sticky(c->driver, code);
    report_to(atomic_load_explicit(&c->driver->trace_failure, memory_order_acquire), c, code);
    return dvmm_status_of(code);
}

/* The call just returned `code`: the clock is read first. Returns the code's status. */
static ductile_status end_call(const seam_call *c, int code) {
    dvmm_driver *d = c->driver;
    if (c->is_timed) {
        add_times(c);
    }
    add(&d->calls[c->call], 1);
    last_code = code;
    if (__builtin_expect(!is_answer(c->call, code), 0)) {
        return count_failure(c, code);
    }
    report_to(atomic_load_explicit(&d->trace_answer, memory_order_acquire), c, code);
    return code == DVMM_SUCCESS ? DUCTILE_OK : dvmm_status_of(code);
}

/* ---- Wrappers ------------------------------------------------------------------------------ */

/* The status of `d->ops->name args`, or of the refusal to call it. */
#define CALL(d, name, address, size, args)                                                         \
    (begin_call(&call, (d), DVMM_CALL_##name, (address), (size))                                   \
         ? end_call(&call, (d)->ops->name args)                                                    \
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
        seam_call call;                                                                            \
        DTI_ASSERT(pre);                                                                           \
        return CALL(d, name, address, size, args);                                                 \
    }

/* The same with an output: `none` after a failure, else as `post` says. */
#define WRAP_OUT(name, parameters, pre, address, size, args, none, post)                           \
    ductile_status dvmm_##name parameters {                                                        \
        seam_call call;                                                                            \
        DTI_ASSERT(pre);                                                                           \
        ductile_status status = CALL(d, name, address, size, args);                                \
        *out = status == DUCTILE_OK ? *out : (none);                                               \
        DTI_ASSERT(status != DUCTILE_OK || (post));                                                \
        return status;                                                                             \
    }

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
    seam_call call;
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
WRAP_OUT(get_access_for, (dvmm_driver * d, ductile_addr addr, int device, dvmm_access *out), true,
         addr, 0, (d->ctx, addr, device, out), DVMM_ACCESS_NONE, true)

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

WRAP_OUT(phys_import, (dvmm_driver * d, const dvmm_shared *shared, dvmm_phys *out), true, 0, 0,
         (d->ctx, shared, out), 0, *out != 0)

/* ---- What contenders use ------------------------------------------------------------------- */

WRAP_OUT(mem_alloc, (dvmm_driver * d, uint64_t size, ductile_addr *out), size != 0, 0, size,
         (d->ctx, size, out), 0, *out != 0)
WRAP(mem_free, (dvmm_driver * d, ductile_addr addr), addr != 0, addr, 0, (d->ctx, addr))
WRAP_OUT(mem_alloc_async,
         (dvmm_driver * d, uint64_t size, ductile_stream stream, ductile_addr *out), size != 0, 0,
         size, (d->ctx, size, stream, out), 0, *out != 0)
WRAP(mem_free_async, (dvmm_driver * d, ductile_addr addr, ductile_stream stream), addr != 0, addr,
     0, (d->ctx, addr, stream))

ductile_status dvmm_async_pool_info(dvmm_driver *d, uint64_t *reserved, uint64_t *reserved_peak) {
    seam_call call;
    ductile_status status = CALL(d, async_pool_info, 0, 0, (d->ctx, reserved, reserved_peak));
    if (status != DUCTILE_OK) {
        *reserved = 0;
        *reserved_peak = 0;
    }
    return status;
}

WRAP(async_pool_trim, (dvmm_driver * d, uint64_t keep_bytes), true, 0, keep_bytes,
     (d->ctx, keep_bytes))

/* ---- Streams ------------------------------------------------------------------------------- */

WRAP_OUT(stream_create, (dvmm_driver * d, ductile_stream *out), true, 0, 0, (d->ctx, out), NULL,
         true)
WRAP(stream_destroy, (dvmm_driver * d, ductile_stream stream), true, word(stream), 0,
     (d->ctx, stream))

WRAP(stream_sync, (dvmm_driver * d, ductile_stream stream), true, word(stream), 0, (d->ctx, stream))

WRAP(stream_query, (dvmm_driver * d, ductile_stream stream), true, word(stream), 0,
     (d->ctx, stream))

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

WRAP(stream_wait_event, (dvmm_driver * d, ductile_stream stream, dvmm_event event), event != NULL,
     word(stream), word(event), (d->ctx, stream, event))
WRAP(stream_wait_value,
     (dvmm_driver * d, ductile_stream stream, uint64_t *host_word, uint64_t value),
     host_word != NULL, word(stream), value, (d->ctx, stream, host_word, value))

WRAP(context_sync, (dvmm_driver * d), true, 0, 0, (d->ctx))
WRAP(context_record, (dvmm_driver * d, dvmm_event event), event != NULL, word(event), 0,
     (d->ctx, event))

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

WRAP(capture_begin, (dvmm_driver * d, ductile_stream stream, dvmm_capture_mode mode), true,
     word(stream), 0, (d->ctx, stream, mode))
WRAP(capture_end, (dvmm_driver * d, ductile_stream stream), true, word(stream), 0, (d->ctx, stream))

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

WRAP_OUT(event_create, (dvmm_driver * d, dvmm_event *out), true, 0, 0, (d->ctx, out), NULL,
         *out != NULL)
WRAP(event_destroy, (dvmm_driver * d, dvmm_event event), event != NULL, word(event), 0,
     (d->ctx, event))
WRAP(event_record, (dvmm_driver * d, dvmm_event event, ductile_stream stream), event != NULL,
     word(event), word(stream), (d->ctx, event, stream))
WRAP(event_query, (dvmm_driver * d, dvmm_event event), event != NULL, word(event), 0,
     (d->ctx, event))
WRAP(event_sync, (dvmm_driver * d, dvmm_event event), event != NULL, word(event), 0,
     (d->ctx, event))

/* ---- Host memory and contents -------------------------------------------------------------- */

WRAP_OUT(host_alloc, (dvmm_driver * d, uint64_t size, void **out), size != 0, 0, size,
         (d->ctx, size, out), NULL, *out != NULL)
WRAP(host_free, (dvmm_driver * d, void *memory), true, word(memory), 0, (d->ctx, memory))
WRAP(host_register, (dvmm_driver * d, void *memory, uint64_t size), memory != NULL && size != 0,
     word(memory), size, (d->ctx, memory, size))
WRAP(host_unregister, (dvmm_driver * d, void *memory), true, word(memory), 0, (d->ctx, memory))
WRAP(fill,
     (dvmm_driver * d, ductile_addr addr, uint8_t value, uint64_t size, ductile_stream stream),
     true, addr, size, (d->ctx, addr, value, size, stream))
WRAP(copy,
     (dvmm_driver * d, ductile_addr to, ductile_addr from, uint64_t size, ductile_stream stream),
     true, to, size, (d->ctx, to, from, size, stream))
WRAP(upload,
     (dvmm_driver * d, ductile_addr to, const void *from, uint64_t size, ductile_stream stream),
     true, to, size, (d->ctx, to, from, size, stream))
WRAP(download, (dvmm_driver * d, void *to, ductile_addr from, uint64_t size, ductile_stream stream),
     true, from, size, (d->ctx, to, from, size, stream))
WRAP(copy_batch, (dvmm_driver * d, dvmm_batch *batch, ductile_stream stream),
     batch->n > 0 && batch->n <= DVMM_BATCH_COPIES && word(stream) > LEGACY_STREAM,
     batch->device[0], batch->bytes, (d->ctx, batch, stream))
WRAP(read_back,
     (dvmm_driver * d, void *to, ductile_addr from, uint64_t size, ductile_stream stream), true,
     from, size, (d->ctx, to, from, size, stream))
