/* SPDX-License-Identifier: Apache-2.0 */
/* Imports blocks from other processes. */
#include "pool/base/stream_id.h"
#include "pool/services/sharing/incoming.h"

#include <ductile_share.h>

static ductile_status check_arguments(ductile_allocator *a, ductile_stream stream,
                                      ductile_addr *address, uint64_t *size) {
    if (address != NULL) {
        *address = 0;
    }
    if (size != NULL) {
        *size = 0;
    }
    return address != NULL ? dpool_may_import(a, stream) : DUCTILE_ERR_INVALID_ARGUMENT;
}

static ductile_status finish(dpool_incoming *r, ductile_status status, ductile_addr *address,
                             uint64_t *size) {
    if (status != DUCTILE_OK) {
        dpool_incoming_undo(r);
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

static ductile_status receive(dpool_incoming *r, int socket) {
    DTI_TRY(dpool_wire_receive_bytes(socket, &r->head, sizeof r->head));
    DTI_TRY(dpool_wire_answer(socket, dpool_incoming_open(r)));
    return dpool_incoming_receive(r, socket);
}

ductile_status ductile_import(ductile_allocator *a, int socket, ductile_stream stream,
                              ductile_addr *address, uint64_t *size) {
    DTI_TRY(check_arguments(a, stream, address, size));
    dpool_incoming r = {.a = a, .stream = dpool_canonical_stream(stream), .access = DVMM_ACCESS_RW};
    return finish(&r, receive(&r, socket), address, size);
}

/* ---- Closing ------------------------------------------------------------------------------- */

ductile_status ductile_import_close(ductile_allocator *a, ductile_addr address) {
    bool has_left = false;
    return a != NULL ? dpool_import_close(a, address, &has_left) : DUCTILE_ERR_INVALID_ARGUMENT;
}
