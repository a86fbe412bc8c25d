/* SPDX-License-Identifier: Apache-2.0 */
/* No lock is held while a socket is used, and none is needed: pinned handles stay what and where
 * they are. */
#include "pool/services/sharing/outgoing.h"

#include "pool/base/guards.h"
#include "pool/base/log.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

/* ---- What is sent -------------------------------------------------------------------------- */

ductile_status dpool_may_export(const ductile_allocator *a) {
    DTI_TRY(dpool_may_change(a));
    bool is_shareable = a->store.props.handle_types != DVMM_SHARE_NONE;
    return is_shareable ? DUCTILE_OK : DUCTILE_ERR_UNSUPPORTED;
}

static uint32_t count_handles(const dpool_outgoing_span *s) {
    uint32_t n = 0;
    for (uint32_t g = s->first; g < s->end; n++) {
        g += dseg_handle_at(s->seg, g)->n_granules;
    }
    return n;
}

static void list_handles(ductile_allocator *a, dpool_outgoing *r, const dpool_outgoing_span *s) {
    for (uint32_t g = s->first; g < s->end;) {
        const dvmm_handle *h = dseg_handle_at(s->seg, g);
        uint32_t i = r->head.n_handles++;
        r->phys[i] = h->phys;
        r->bytes[i] = dvmm_handle_bytes(&a->store, h);
        r->head.total_bytes += r->bytes[i];
        g += h->n_granules;
    }
}

ductile_status dpool_outgoing_list(ductile_allocator *a, const dpool_outgoing_span *spans,
                                   size_t n_spans, dpool_outgoing *out) {
    uint64_t n = 0;
    for (size_t i = 0; i < n_spans; i++) {
        n += count_handles(&spans[i]);
    }
    *out = (dpool_outgoing){.head = dpool_wire_new_head()};
    out->head.type = (uint16_t)a->store.props.handle_types;
    out->head.granule_bytes = dvmm_get_caps(a->driver)->granule_bytes;
    out->phys = n <= UINT32_MAX ? calloc(n, sizeof *out->phys) : NULL;
    out->bytes = n <= UINT32_MAX ? calloc(n, sizeof *out->bytes) : NULL;
    if (out->phys == NULL || out->bytes == NULL) {
        dpool_outgoing_free(out);
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    for (size_t i = 0; i < n_spans; i++) {
        list_handles(a, out, &spans[i]);
    }
    return DUCTILE_OK;
}

void dpool_outgoing_free(dpool_outgoing *r) {
    free(r->phys);
    free(r->bytes);
    r->phys = NULL;
    r->bytes = NULL;
}

/* The message about handle number i, which travels with its descriptor. */
static dpool_wire_handle handle_on_the_wire(const dpool_outgoing *r, uint32_t i,
                                            const dvmm_shared *shared) {
    dpool_wire_handle h = {.bytes = r->bytes[i]};
    if (shared->type == DVMM_SHARE_FABRIC) {
        memcpy(h.fabric, shared->fabric, sizeof h.fabric);
    }
    return h;
}

ductile_status dpool_outgoing_need_descriptors(ductile_allocator *a, const dpool_outgoing *r) {
    if (r->head.type != DVMM_SHARE_FD) {
        return DUCTILE_OK;
    }
    uint64_t n = dti_min(r->head.n_handles, DPOOL_WIRE_BATCH);
    ductile_status status = dpool_wire_need_descriptors(n);
    if (status != DUCTILE_OK) {
        dpool_log(a, DUCTILE_LOG_ERROR,
                  "an export needs %llu more file descriptors than this process may open: raise "
                  "the limit (ulimit -n), or use larger handles (sizes:64M)",
                  (unsigned long long)n);
    }
    return status;
}

/* ---- Over a socket ------------------------------------------------------------------------- */

/* Exports the handles of one batch, sends them and waits for the answer. */
static ductile_status send_batch(ductile_allocator *a, const dpool_outgoing *r, uint32_t first,
                                 int socket) {
    dpool_wire_batch batch = {.count = 0};
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    uint32_t n = (uint32_t)dti_min(r->head.n_handles - first, DPOOL_WIRE_BATCH);
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && batch.count < n) {
        dvmm_shared *next = &shared[batch.count];
        status = dvmm_share_out(&a->store, r->phys[first + batch.count], next);
        if (status == DUCTILE_OK) {
            batch.handles[batch.count] = handle_on_the_wire(r, first + batch.count, next);
            batch.count++;
        }
    }
    if (status == DUCTILE_OK) {
        status = dpool_wire_send_batch(socket, &batch, shared);
    } else {
        dpool_wire_give_up(socket);
    }
    for (uint32_t i = 0; i < batch.count; i++) {
        dvmm_shared_drop(&shared[i]);
    }
    return status == DUCTILE_OK ? dpool_wire_receive_ack(socket) : status;
}

ductile_status dpool_outgoing_send(ductile_allocator *a, const dpool_outgoing *r, int socket) {
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; status == DUCTILE_OK && i < r->head.n_handles; i += DPOOL_WIRE_BATCH) {
        status = send_batch(a, r, i, socket);
    }
    return status;
}
