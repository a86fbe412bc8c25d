/* SPDX-License-Identifier: Apache-2.0 */
/* Passing blocks to other processes. No lock is held while a socket is used, and none is needed:
 * pinned handles stay what and where they are. */
#include "pool/sharing/parcel.h"

#include "pool/base/log.h"
#include "pool/sharing/pin.h"

#include "vmm/base/align.h"

#include <ductile_share.h>

#include <stdlib.h>
#include <string.h>

/* ---- Parcels ------------------------------------------------------------------------------- */

static uint32_t count_handles(const dpool_pinned *what) {
    uint32_t n = 0;
    for (uint32_t g = what->first; g < what->end; n++) {
        g += dseg_handle_at(what->seg, g, NULL)->n_granules;
    }
    return n;
}

/* The grow lock is held. */
static ductile_status list_handles(ductile_allocator *a, dpool_parcel *p) {
    uint32_t n = count_handles(&p->what);
    p->phys = calloc(n, sizeof *p->phys);
    p->bytes = calloc(n, sizeof *p->bytes);
    if (p->phys == NULL || p->bytes == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    uint32_t g = p->what.first;
    for (uint32_t i = 0; i < n; i++) {
        const dvmm_handle *h = dseg_handle_at(p->what.seg, g, NULL);
        p->phys[i] = h->phys;
        p->bytes[i] = dvmm_handle_bytes(&a->store, h);
        p->head.total_bytes += p->bytes[i];
        g += h->n_granules;
    }
    p->head.n_handles = n;
    return DUCTILE_OK;
}

static void fill_head(const ductile_allocator *a, dpool_parcel *p) {
    p->head = wire_new_head();
    p->head.type = (uint16_t)a->store.props.handle_types;
    p->head.granule_bytes = dvmm_get_caps(a->driver)->granule_bytes;
    p->head.offset = p->what.addr - dseg_addr(p->what.seg, p->what.first);
    p->head.size = p->what.size;
}

ductile_status dpool_parcel_make(ductile_allocator *a, ductile_addr addr, dpool_parcel *out) {
    *out = (dpool_parcel){.phys = NULL};
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
        dpool_parcel_free(out);
    }
    return status;
}

void dpool_parcel_free(dpool_parcel *p) {
    free(p->phys);
    free(p->bytes);
}

void dpool_parcel_cancel(ductile_allocator *a, dpool_parcel *p) {
    dti_lock_acquire(&a->grow_lock);
    (void)dpool_pin_drop(a, p->what.addr, DPOOL_PIN_EXPORT);
    dti_lock_release(&a->grow_lock);
    dpool_parcel_free(p);
}

wire_handle dpool_parcel_handle(const dpool_parcel *p, uint32_t i, const dvmm_shared *shared) {
    wire_handle h = {.bytes = p->bytes[i], .fd = -1};
    if (shared->type == DVMM_SHARE_FABRIC) {
        memcpy(h.fabric, shared->fabric, sizeof h.fabric);
    }
    return h;
}

ductile_status dpool_parcel_share(ductile_allocator *a, const dpool_parcel *p, uint32_t i,
                                  dvmm_shared *out) {
    return dvmm_share_out(&a->store, p->phys[i], out);
}

static ductile_status need_descriptors(ductile_allocator *a, const dpool_parcel *p, uint64_t most) {
    if (p->head.type != DVMM_SHARE_FD) {
        return DUCTILE_OK;
    }
    uint64_t n = dti_min(p->head.n_handles, most);
    ductile_status status = wire_need_descriptors(n);
    if (status != DUCTILE_OK) {
        dpool_log(a, DUCTILE_LOG_ERROR,
                  "an export needs %llu more file descriptors than this process may open: raise "
                  "the limit (ulimit -n), or use larger handles (max_handle_bytes)",
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
static ductile_status send_batch(ductile_allocator *a, const dpool_parcel *p, uint32_t first,
                                 int socket) {
    wire_batch batch = {.count = 0};
    dvmm_shared shared[WIRE_BATCH];
    uint32_t n = (uint32_t)dti_min(p->head.n_handles - first, WIRE_BATCH);
    ductile_status status = DUCTILE_OK;
    while (status == DUCTILE_OK && batch.count < n) {
        dvmm_shared *next = &shared[batch.count];
        status = dpool_parcel_share(a, p, first + batch.count, next);
        if (status == DUCTILE_OK) {
            batch.handles[batch.count] = dpool_parcel_handle(p, first + batch.count, next);
            batch.count++;
        }
    }
    if (status == DUCTILE_OK) {
        status = wire_send_batch(socket, &batch, shared);
    } else {
        wire_give_up(socket);
    }
    for (uint32_t i = 0; i < batch.count; i++) {
        dvmm_shared_drop(&shared[i]);
    }
    return status == DUCTILE_OK ? wire_receive_ack(socket) : status;
}

static ductile_status send_parcel(ductile_allocator *a, const dpool_parcel *p, int socket) {
    ductile_status status = need_descriptors(a, p, WIRE_BATCH);
    if (status == DUCTILE_OK) {
        status = wire_send_head(socket, &p->head);
    }
    if (status == DUCTILE_OK) {
        status = wire_receive_ack(socket);
    }
    for (uint32_t i = 0; status == DUCTILE_OK && i < p->head.n_handles; i += WIRE_BATCH) {
        status = send_batch(a, p, i, socket);
    }
    return status;
}

ductile_status ductile_export(ductile_allocator *a, ductile_addr address, int socket) {
    ductile_status status = usable_for_export(a);
    dpool_parcel parcel;
    if (status == DUCTILE_OK) {
        status = dpool_parcel_make(a, address, &parcel);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = send_parcel(a, &parcel, socket);
    if (status != DUCTILE_OK) {
        dpool_parcel_cancel(a, &parcel);
    } else {
        dpool_parcel_free(&parcel);
    }
    return status;
}

/* ---- As bytes ------------------------------------------------------------------------------ */

static void drop_kept(dpool_kept *kept) {
    for (uint32_t i = 0; i < kept->n_shared; i++) {
        dvmm_shared_drop(&kept->shared[i]);
    }
    free(kept);
}

static ductile_status make_kept(ductile_allocator *a, const dpool_parcel *p, dpool_kept **out) {
    uint32_t n = p->head.n_handles;
    ductile_status status = need_descriptors(a, p, UINT32_MAX);
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_kept *kept = calloc(1, sizeof *kept + n * sizeof(dvmm_shared));
    if (kept == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    kept->first = p->what.first;
    kept->n_granules = p->what.end - p->what.first;
    while (status == DUCTILE_OK && kept->n_shared < n) {
        status = dpool_parcel_share(a, p, kept->n_shared, &kept->shared[kept->n_shared]);
        kept->n_shared += status == DUCTILE_OK;
    }
    if (status != DUCTILE_OK) {
        drop_kept(kept);
        return status;
    }
    *out = kept;
    return DUCTILE_OK;
}

/* Descriptors that an earlier export of the same block keeps open serve again. */
static ductile_status find_kept(ductile_allocator *a, const dpool_parcel *p,
                                const dpool_kept **out) {
    dti_lock_acquire(&a->grow_lock);
    *out = dpool_pin_kept(a, &p->what);
    dti_lock_release(&a->grow_lock);
    if (*out != NULL) {
        return DUCTILE_OK;
    }
    dpool_kept *made = NULL;
    ductile_status status = make_kept(a, p, &made);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->grow_lock);
        dpool_pin_keep(a, &p->what, made);
        dti_lock_release(&a->grow_lock);
        *out = made;
    }
    return status;
}

/* They stay open as long as this call's own export does. */
static void write_parcel(const dpool_parcel *p, const dpool_kept *kept, char *to) {
    memcpy(to, &p->head, sizeof p->head);
    to += sizeof p->head;
    for (uint32_t i = 0; i < p->head.n_handles; i++) {
        wire_handle h = dpool_parcel_handle(p, i, &kept->shared[i]);
        h.fd = kept->shared[i].fd;
        memcpy(to, &h, sizeof h);
        to += sizeof h;
    }
}

static ductile_status write_bytes(ductile_allocator *a, const dpool_parcel *p, void *buffer,
                                  size_t size, size_t needed) {
    const dpool_kept *kept = NULL;
    ductile_status status = size < needed ? DUCTILE_ERR_INVALID_ARGUMENT : find_kept(a, p, &kept);
    if (status == DUCTILE_OK) {
        write_parcel(p, kept, buffer);
    }
    return status;
}

ductile_status ductile_export_bytes(ductile_allocator *a, ductile_addr address, void *buffer,
                                    size_t size, size_t *needed) {
    ductile_status status = needed != NULL ? usable_for_export(a) : DUCTILE_ERR_INVALID_ARGUMENT;
    dpool_parcel parcel;
    if (status == DUCTILE_OK) {
        status = dpool_parcel_make(a, address, &parcel);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    *needed = sizeof parcel.head + parcel.head.n_handles * sizeof(wire_handle);
    if (buffer != NULL) {
        status = write_bytes(a, &parcel, buffer, size, *needed);
    }
    if (buffer == NULL || status != DUCTILE_OK) {
        dpool_parcel_cancel(a, &parcel);
    } else {
        dpool_parcel_free(&parcel);
    }
    return status;
}

ductile_status ductile_unexport(ductile_allocator *a, ductile_addr address) {
    return dpool_pin_end(a, address, DPOOL_PIN_EXPORT);
}
