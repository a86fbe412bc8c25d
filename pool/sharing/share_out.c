/* SPDX-License-Identifier: Apache-2.0 */
/* Exports blocks to other processes. No lock is held while a socket is used, and none is needed:
 * pinned handles stay what and where they are. */
#include "pool/base/allocator.h"
#include "pool/base/log.h"
#include "pool/sharing/pin.h"
#include "pool/sharing/share_wire.h"

#include "vmm/base/align.h"
#include "vmm/export.h"

#include <ductile_share.h>

#include <stdlib.h>
#include <string.h>

/* The handles of a block that has just been pinned for an export. Owner: one call. */
typedef struct export_record {
    dpool_wire_head head;
    dpool_pinned what;
    dvmm_phys *phys; /* head.n_handles of them */
    uint64_t *bytes;
} export_record;

/* ---- What is exported ---------------------------------------------------------------------- */

static uint32_t count_handles(const dpool_pinned *what) {
    uint32_t n = 0;
    for (uint32_t g = what->first; g < what->end; n++) {
        g += dseg_handle_at(what->seg, g, NULL)->n_granules;
    }
    return n;
}

/* The grow lock is held. */
static ductile_status list_handles(ductile_allocator *a, export_record *r) {
    uint32_t n = count_handles(&r->what);
    r->phys = calloc(n, sizeof *r->phys);
    r->bytes = calloc(n, sizeof *r->bytes);
    if (r->phys == NULL || r->bytes == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    uint32_t g = r->what.first;
    for (uint32_t i = 0; i < n; i++) {
        const dvmm_handle *h = dseg_handle_at(r->what.seg, g, NULL);
        r->phys[i] = h->phys;
        r->bytes[i] = dvmm_handle_bytes(&a->store, h);
        r->head.total_bytes += r->bytes[i];
        g += h->n_granules;
    }
    r->head.n_handles = n;
    return DUCTILE_OK;
}

static void fill_head(const ductile_allocator *a, export_record *r) {
    r->head = dpool_wire_new_head();
    r->head.type = (uint16_t)a->store.props.handle_types;
    r->head.granule_bytes = dvmm_get_caps(a->driver)->granule_bytes;
    r->head.offset = r->what.addr - dseg_addr(r->what.seg, r->what.first);
    r->head.size = r->what.size;
}

/* The pin stays. */
static void free_record(export_record *r) {
    free(r->phys);
    free(r->bytes);
}

/* Pins the block as exported, once, and lists its handles. The errors of dpool_pin_add. */
static ductile_status begin_export(ductile_allocator *a, ductile_addr addr, export_record *out) {
    *out = (export_record){.phys = NULL};
    dti_lock_acquire(&a->grow_lock);
    ductile_status status = dpool_pin_add(a, addr, DPOOL_PIN_EXPORT, &out->what);
    if (status == DUCTILE_OK) {
        fill_head(a, out);
        status = list_handles(a, out);
        if (status != DUCTILE_OK) {
            (void)dpool_pin_drop(a, addr, DPOOL_PIN_EXPORT);
        }
    }
    dti_lock_release(&a->grow_lock);
    if (status != DUCTILE_OK) {
        free_record(out);
    }
    return status;
}

static void cancel_export(ductile_allocator *a, export_record *r) {
    dti_lock_acquire(&a->grow_lock);
    (void)dpool_pin_drop(a, r->what.addr, DPOOL_PIN_EXPORT);
    dti_lock_release(&a->grow_lock);
    free_record(r);
}

/* The message about handle number i, which travels with its descriptor. */
static dpool_wire_handle handle_on_the_wire(const export_record *r, uint32_t i,
                                            const dvmm_shared *shared) {
    dpool_wire_handle h = {.bytes = r->bytes[i]};
    if (shared->type == DVMM_SHARE_FABRIC) {
        memcpy(h.fabric, shared->fabric, sizeof h.fabric);
    }
    return h;
}

static ductile_status need_descriptors(ductile_allocator *a, const export_record *r) {
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

static ductile_status usable_for_export(const ductile_allocator *a) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    bool is_shareable = status != DUCTILE_OK || a->store.props.handle_types != DVMM_SHARE_NONE;
    return is_shareable ? status : DUCTILE_ERR_UNSUPPORTED;
}

/* ---- Over a socket ------------------------------------------------------------------------- */

/* Exports the handles of one batch, sends them and waits for the answer. */
static ductile_status send_batch(ductile_allocator *a, const export_record *r, uint32_t first,
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

static ductile_status send_record(ductile_allocator *a, const export_record *r, int socket) {
    ductile_status status = need_descriptors(a, r);
    if (status == DUCTILE_OK) {
        status = dpool_wire_send_head(socket, &r->head);
    }
    if (status == DUCTILE_OK) {
        status = dpool_wire_receive_ack(socket);
    }
    for (uint32_t i = 0; status == DUCTILE_OK && i < r->head.n_handles; i += DPOOL_WIRE_BATCH) {
        status = send_batch(a, r, i, socket);
    }
    return status;
}

ductile_status ductile_export(ductile_allocator *a, ductile_addr address, int socket) {
    ductile_status status = usable_for_export(a);
    export_record record;
    if (status == DUCTILE_OK) {
        status = begin_export(a, address, &record);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = send_record(a, &record, socket);
    if (status != DUCTILE_OK) {
        cancel_export(a, &record);
    } else {
        free_record(&record);
    }
    return status;
}

ductile_status ductile_unexport(ductile_allocator *a, ductile_addr address) {
    return dpool_pin_end(a, address, DPOOL_PIN_EXPORT);
}
