/* SPDX-License-Identifier: Apache-2.0 */
/* Taking blocks from other processes. Nothing that arrives is believed before it is checked. */
#include "pool/sharing/import.h"
#include "pool/sharing/parcel.h"

#include "pool/base/callback_list.h"
#include "pool/base/log.h"
#include "pool/base/stream_id.h"

#include "vmm/base/align.h"

#include <ductile_share.h>

#include <string.h>

/* An import under way, on the stack. */
typedef struct arrival {
    ductile_allocator *a;
    ductile_stream stream; /* that will use it */
    wire_head head;
    dseg_foreign in;
    uint64_t rest_bytes; /* of handles still to come */
    uint32_t rest;
} arrival;

static ductile_status open_range(arrival *r) {
    ductile_allocator *a = r->a;
    ductile_status status = wire_check_head(&r->head, dvmm_get_caps(a->driver)->granule_bytes);
    if (status != DUCTILE_OK) {
        return status;
    }
    r->rest_bytes = r->head.total_bytes;
    r->rest = r->head.n_handles;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    (void)dpool_imports_poll(a);
    status =
        dseg_foreign_open(&a->store, r->head.total_bytes, a->options.address_budget_bytes, &r->in);
    dpool_grow_unlock(a, mode);
    return status;
}

/* Maps some handles. Their descriptors are closed, whatever comes of it. */
static ductile_status take_handles(arrival *r, const wire_handle *handles, dvmm_shared *shared,
                                   uint32_t n) {
    ductile_allocator *a = r->a;
    ductile_status status = n <= r->rest ? wire_check_handles(&r->head, handles, n, &r->rest_bytes)
                                         : DUCTILE_ERR_BAD_MESSAGE;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    for (uint32_t i = 0; i < n && status == DUCTILE_OK; i++) {
        status = dseg_foreign_add(&a->store, &r->in, handles[i].bytes, &shared[i]);
    }
    dpool_grow_unlock(a, mode);
    for (uint32_t i = 0; i < n; i++) {
        dvmm_shared_drop(&shared[i]);
    }
    r->rest -= status == DUCTILE_OK ? n : 0;
    return status;
}

/* All is there: opens it to the devices, of which none may come or go meanwhile. */
static ductile_status settle(arrival *r) {
    if (r->rest_bytes != 0) {
        return DUCTILE_ERR_BAD_MESSAGE;
    }
    ductile_allocator *a = r->a;
    const dpool_import import = {
        .in = r->in,
        .addr = r->in.range.addr + r->head.offset,
        .size = r->head.size,
        .stream = r->stream,
    };
    dvmm_capture_mode mode = dpool_grow_lock(a);
    ductile_status status = dseg_foreign_grant(&a->store, &r->in);
    if (status == DUCTILE_OK) {
        status = dpool_import_register(a, &import);
    }
    dpool_grow_unlock(a, mode);
    return status;
}

/* No work has seen the addresses yet. */
static void undo(arrival *r) {
    if (r->in.range.size == 0) {
        return;
    }
    dvmm_capture_mode mode = dpool_grow_lock(r->a);
    (void)dseg_foreign_undo(&r->a->store, &r->in);
    dpool_grow_unlock(r->a, mode);
}

static ductile_status check_arguments(ductile_allocator *a, ductile_stream stream,
                                      ductile_addr *address, uint64_t *size) {
    if (address != NULL) {
        *address = 0;
    }
    if (size != NULL) {
        *size = 0;
    }
    if (a == NULL || address == NULL || dpool_thread_of(stream) != 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        return DUCTILE_ERR_BUSY; /* an import is announced, too */
    }
    return dvmm_usable(a->driver);
}

static ductile_status finish(arrival *r, ductile_status status, ductile_addr *address,
                             uint64_t *size) {
    if (status != DUCTILE_OK) {
        undo(r);
        return status;
    }
    dpool_announce_import(r->a, DUCTILE_MAP_MAPPED, &r->in, r->stream);
    *address = r->in.range.addr + r->head.offset;
    if (size != NULL) {
        *size = r->head.size;
    }
    return DUCTILE_OK;
}

/* ---- Over a socket ------------------------------------------------------------------------- */

static ductile_status receive_start(arrival *r, int socket) {
    ductile_status status = wire_receive_head(socket, &r->head);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = open_range(r);
    if (status == DUCTILE_OK && r->head.type == DVMM_SHARE_FD) {
        status = wire_need_descriptors(dti_min(r->rest, WIRE_BATCH));
    }
    ductile_status answered = wire_send_ack(socket, status == DUCTILE_OK);
    return status == DUCTILE_OK ? answered : status;
}

/* The answer to the last batch waits until everything is in place. */
static ductile_status receive_next(arrival *r, int socket) {
    wire_batch batch;
    dvmm_shared shared[WIRE_BATCH];
    ductile_status status = wire_receive_batch(socket, &r->head, &batch, shared);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = take_handles(r, batch.handles, shared, batch.count);
    if (status == DUCTILE_OK && r->rest == 0) {
        status = settle(r);
    }
    if (status != DUCTILE_OK || r->rest > 0) {
        ductile_status answered = wire_send_ack(socket, status == DUCTILE_OK);
        return status == DUCTILE_OK ? answered : status;
    }
    (void)wire_send_ack(socket, true); /* whether it arrives changes nothing here */
    return DUCTILE_OK;
}

ductile_status ductile_import(ductile_allocator *a, int socket, ductile_stream stream,
                              ductile_addr *address, uint64_t *size) {
    ductile_status status = check_arguments(a, stream, address, size);
    if (status != DUCTILE_OK) {
        return status;
    }
    arrival r = {.a = a, .stream = dpool_canonical_stream(stream)};
    status = receive_start(&r, socket);
    while (status == DUCTILE_OK && r.rest > 0) {
        status = receive_next(&r, socket);
    }
    return finish(&r, status, address, size);
}

/* ---- From bytes ---------------------------------------------------------------------------- */

static ductile_status fetch(arrival *r, const wire_handle *h, dvmm_shared *out) {
    *out = (dvmm_shared){.type = (dvmm_share_type)r->head.type, .fd = -1};
    memcpy(out->fabric, h->fabric, sizeof out->fabric);
    if (out->type == DVMM_SHARE_FABRIC) {
        return DUCTILE_OK;
    }
    ductile_status status = wire_fetch(r->head.pid, h->fd, &out->fd);
    if (status == DUCTILE_ERR_UNSUPPORTED) {
        dpool_log(r->a, DUCTILE_LOG_ERROR,
                  "the system does not let this process fetch descriptors of process %d: allow "
                  "tracing (kernel.yama.ptrace_scope, PR_SET_PTRACER) or use ductile_export",
                  (int)r->head.pid);
    }
    return status;
}

static ductile_status take_bytes(arrival *r, const char *bytes, size_t length) {
    if (length < sizeof r->head) {
        return DUCTILE_ERR_BAD_MESSAGE;
    }
    memcpy(&r->head, bytes, sizeof r->head);
    size_t wanted = sizeof r->head + r->head.n_handles * sizeof(wire_handle);
    ductile_status status = length == wanted ? open_range(r) : DUCTILE_ERR_BAD_MESSAGE;
    const char *at = bytes + sizeof r->head;
    for (; status == DUCTILE_OK && r->rest > 0; at += sizeof(wire_handle)) {
        wire_handle h;
        dvmm_shared shared;
        memcpy(&h, at, sizeof h);
        status = fetch(r, &h, &shared);
        if (status == DUCTILE_OK) {
            status = take_handles(r, &h, &shared, 1);
        }
    }
    return status == DUCTILE_OK ? settle(r) : status;
}

ductile_status ductile_import_bytes(ductile_allocator *a, const void *bytes, size_t length,
                                    ductile_stream stream, ductile_addr *address, uint64_t *size) {
    ductile_status status = check_arguments(a, stream, address, size);
    if (status == DUCTILE_OK && bytes == NULL) {
        status = DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    arrival r = {.a = a, .stream = dpool_canonical_stream(stream)};
    status = take_bytes(&r, bytes, length);
    return finish(&r, status, address, size);
}

/* ---- Closing ------------------------------------------------------------------------------- */

ductile_status ductile_import_close(ductile_allocator *a, ductile_addr address) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK || address == 0) {
        return status;
    }
    status = dpool_import_leave(a, address);
    if (status != DUCTILE_OK) {
        return status;
    }
    dvmm_capture_mode mode = dpool_grow_lock(a);
    status = dpool_imports_poll(a);
    dpool_grow_unlock(a, mode);
    return status;
}
