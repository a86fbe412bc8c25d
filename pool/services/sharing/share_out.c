/* SPDX-License-Identifier: Apache-2.0 */
/* Exports blocks to other processes. */
#include "pool/services/sharing/outgoing.h"
#include "pool/sharing/pin.h"

#include <ductile_share.h>

/* A block that has just been pinned for an export. */
typedef struct export_record {
    dpool_outgoing out;
    dpool_pinned what;
} export_record;

static ductile_status list(ductile_allocator *a, export_record *r) {
    const dpool_pinned *what = &r->what;
    const dpool_outgoing_span span = {what->seg, what->first, what->end};
    ductile_status status = dpool_outgoing_list(a, &span, 1, &r->out);
    r->out.head.offset = what->addr - dseg_addr(what->seg, what->first);
    r->out.head.size = what->size;
    return status;
}

/* Pins the block as exported, once, and lists its handles. The errors of dpool_pin_add. */
static ductile_status begin_export(ductile_allocator *a, ductile_addr addr, export_record *r) {
    dti_lock_acquire(&a->grow_lock);
    ductile_status status = dpool_pin_add(a, addr, DPOOL_PIN_EXPORT, &r->what);
    if (status == DUCTILE_OK) {
        status = list(a, r);
        if (status != DUCTILE_OK) {
            (void)dpool_pin_drop(a, addr, DPOOL_PIN_EXPORT);
        }
    }
    dti_lock_release(&a->grow_lock);
    return status;
}

static void cancel_export(ductile_allocator *a, const export_record *r) {
    dti_lock_acquire(&a->grow_lock);
    (void)dpool_pin_drop(a, r->what.addr, DPOOL_PIN_EXPORT);
    dti_lock_release(&a->grow_lock);
}

static ductile_status send_record(ductile_allocator *a, const dpool_outgoing *out, int socket) {
    DTI_TRY(dpool_outgoing_need_descriptors(a, out));
    DTI_TRY(dpool_wire_send_bytes(socket, &out->head, sizeof out->head));
    DTI_TRY(dpool_wire_receive_ack(socket));
    return dpool_outgoing_send(a, out, socket);
}

ductile_status ductile_export(ductile_allocator *a, ductile_addr address, int socket) {
    ductile_status status = dpool_may_export(a);
    export_record record;
    if (status == DUCTILE_OK) {
        status = begin_export(a, address, &record);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = send_record(a, &record.out, socket);
    if (status != DUCTILE_OK) {
        cancel_export(a, &record);
    }
    dpool_outgoing_free(&record.out);
    return status;
}

ductile_status ductile_unexport(ductile_allocator *a, ductile_addr address) {
    return dpool_pin_end(a, address, DPOOL_PIN_EXPORT);
}
