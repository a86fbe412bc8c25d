/* SPDX-License-Identifier: Apache-2.0 */
/* Imports blocks from other processes. Everything that arrives is checked before it is used. */
#include "pool/base/allocator.h"
#include "pool/base/callback_list.h"
#include "pool/base/stream_id.h"
#include "pool/sharing/import.h"
#include "pool/sharing/share_wire.h"

#include "vmm/base/align.h"
#include "vmm/export.h"

#include <ductile_share.h>

/* An import under way, on the stack. */
typedef struct import_request {
    ductile_allocator *a;
    ductile_stream stream; /* that will use it */
    dpool_wire_head head;
    dseg_foreign in;
    uint64_t rest_bytes; /* of handles still to come */
    uint32_t rest;
} import_request;

static ductile_status open_range(import_request *r) {
    ductile_allocator *a = r->a;
    ductile_status status =
        dpool_wire_check_head(&r->head, dvmm_get_caps(a->driver)->granule_bytes);
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

/* Maps the handles of one batch. Closes their descriptors, also on failure. */
static ductile_status take_handles(import_request *r, const dpool_wire_handle *handles,
                                   dvmm_shared *shared, uint32_t n) {
    ductile_allocator *a = r->a;
    ductile_status status = n <= r->rest
                                ? dpool_wire_check_handles(&r->head, handles, n, &r->rest_bytes)
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

/* All handles are mapped: gives the devices access, while no device may be added or removed. */
static ductile_status finish_mapping(import_request *r) {
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
static void undo(import_request *r) {
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

static ductile_status finish(import_request *r, ductile_status status, ductile_addr *address,
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

static ductile_status receive_start(import_request *r, int socket) {
    ductile_status status = dpool_wire_receive_head(socket, &r->head);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = open_range(r);
    if (status == DUCTILE_OK && r->head.type == DVMM_SHARE_FD) {
        status = dpool_wire_need_descriptors(dti_min(r->rest, DPOOL_WIRE_BATCH));
    }
    ductile_status answered = dpool_wire_send_ack(socket, status == DUCTILE_OK);
    return status == DUCTILE_OK ? answered : status;
}

/* The last batch is answered only when everything is in place. */
static ductile_status receive_next(import_request *r, int socket) {
    dpool_wire_batch batch;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    ductile_status status = dpool_wire_receive_batch(socket, &r->head, &batch, shared);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = take_handles(r, batch.handles, shared, batch.count);
    if (status == DUCTILE_OK && r->rest == 0) {
        status = finish_mapping(r);
    }
    if (status != DUCTILE_OK || r->rest > 0) {
        ductile_status answered = dpool_wire_send_ack(socket, status == DUCTILE_OK);
        return status == DUCTILE_OK ? answered : status;
    }
    (void)dpool_wire_send_ack(socket, true); /* whether it arrives does not matter here */
    return DUCTILE_OK;
}

ductile_status ductile_import(ductile_allocator *a, int socket, ductile_stream stream,
                              ductile_addr *address, uint64_t *size) {
    ductile_status status = check_arguments(a, stream, address, size);
    if (status != DUCTILE_OK) {
        return status;
    }
    import_request r = {.a = a, .stream = dpool_canonical_stream(stream)};
    status = receive_start(&r, socket);
    while (status == DUCTILE_OK && r.rest > 0) {
        status = receive_next(&r, socket);
    }
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
