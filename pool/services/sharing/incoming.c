/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that arrives is checked before it is used. */
#include "pool/services/sharing/incoming.h"

#include "pool/base/callback_list.h"
#include "pool/base/guards.h"
#include "pool/base/stream_id.h"

#include "vmm/base/align.h"

ductile_status dpool_may_import(const ductile_allocator *a, ductile_stream stream) {
    if (a == NULL || dpool_thread_of(stream) != 0) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return dpool_is_inside_callback(DPOOL_CALLBACK_MAP) ? DUCTILE_ERR_BUSY : dpool_may_change(a);
}

static ductile_status reserve(dpool_incoming *r) {
    ductile_allocator *a = r->a;
    DTI_TRY(dpool_wire_check_head(&r->head, dvmm_get_caps(a->driver)->granule_bytes));
    r->rest_bytes = r->head.total_bytes;
    r->rest = r->head.n_handles;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    (void)dpool_imports_poll(a);
    ductile_status status = dseg_foreign_open(&a->store, r->head.total_bytes,
                                              a->options.address_budget_bytes, r->access, &r->in);
    dpool_grow_unlock(a, mode);
    return status;
}

/* Maps the handles of one batch. Closes their descriptors, also on failure. */
static ductile_status take_handles(dpool_incoming *r, const dpool_wire_handle *handles,
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
static ductile_status finish_mapping(dpool_incoming *r) {
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
void dpool_incoming_undo(dpool_incoming *r) {
    if (r->in.range.size == 0) {
        return;
    }
    dvmm_capture_mode mode = dpool_grow_lock(r->a);
    (void)dseg_foreign_undo(&r->a->store, &r->in);
    dpool_grow_unlock(r->a, mode);
}

/* ---- Over a socket ------------------------------------------------------------------------- */

ductile_status dpool_incoming_open(dpool_incoming *r) {
    ductile_status status = reserve(r);
    if (status == DUCTILE_OK && r->head.type == DVMM_SHARE_FD) {
        status = dpool_wire_need_descriptors(dti_min(r->rest, DPOOL_WIRE_BATCH));
    }
    return status;
}

/* The last batch is answered only when everything is in place. */
static ductile_status receive_next(dpool_incoming *r, int socket) {
    dpool_wire_batch batch;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    DTI_TRY(dpool_wire_receive_batch(socket, &r->head, &batch, shared));
    ductile_status status = take_handles(r, batch.handles, shared, batch.count);
    if (status == DUCTILE_OK && r->rest == 0) {
        status = finish_mapping(r);
    }
    ductile_status answered = dpool_wire_answer(socket, status);
    return r->rest > 0 ? answered : status; /* whether the last one arrives does not matter here */
}

ductile_status dpool_incoming_receive(dpool_incoming *r, int socket) {
    while (r->rest > 0) {
        DTI_TRY(receive_next(r, socket));
    }
    return DUCTILE_OK;
}
