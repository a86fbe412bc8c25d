/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the descriptors of a tag without a device: while one is open, the memory stays alive. */
#include "pool/services/sharing/tag_wire.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

struct ductile_held_tag {
    dpool_tag_head head;
    dpool_tag_table table;
    uint32_t n; /* handles received so far */
    uint64_t *bytes;
    dvmm_shared *shared; /* owned */
};

/* ---- Receiving ----------------------------------------------------------------------------- */

static ductile_status check_head(const dpool_wire_head *h) {
    return h->granule_bytes != 0 ? dpool_wire_check_head(h, h->granule_bytes)
                                 : DUCTILE_ERR_BAD_MESSAGE;
}

/* Each handle takes one descriptor for as long as the tag is held. */
static ductile_status open_held(ductile_held_tag *t) {
    const dpool_wire_head *h = &t->head.handles;
    DTI_TRY(check_head(h));
    if (h->type == DVMM_SHARE_FD) {
        DTI_TRY(dpool_wire_need_descriptors(h->n_handles));
    }
    t->bytes = calloc(h->n_handles, sizeof *t->bytes);
    t->shared = calloc(h->n_handles, sizeof *t->shared);
    return t->bytes != NULL && t->shared != NULL ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

static void keep_batch(ductile_held_tag *t, const dpool_wire_batch *batch,
                       const dvmm_shared *shared) {
    for (uint32_t i = 0; i < batch->count; i++) {
        t->bytes[t->n] = batch->handles[i].bytes;
        t->shared[t->n++] = shared[i];
    }
}

static ductile_status receive_batch(ductile_held_tag *t, int socket, uint64_t *rest) {
    const dpool_wire_head *h = &t->head.handles;
    dpool_wire_batch batch;
    dvmm_shared shared[DPOOL_WIRE_BATCH];
    DTI_TRY(dpool_wire_receive_batch(socket, h, &batch, shared));
    ductile_status status = batch.count <= h->n_handles - t->n
                                ? dpool_wire_check_handles(h, batch.handles, batch.count, rest)
                                : DUCTILE_ERR_BAD_MESSAGE;
    bool is_short = t->n + batch.count == h->n_handles && *rest != 0;
    status = status == DUCTILE_OK && is_short ? DUCTILE_ERR_BAD_MESSAGE : status;
    if (status == DUCTILE_OK) {
        keep_batch(t, &batch, shared);
    } else {
        for (uint32_t i = 0; i < batch.count; i++) {
            dvmm_shared_drop(&shared[i]);
        }
    }
    return dpool_wire_answer(socket, status);
}

static ductile_status receive(ductile_held_tag *t, int socket, uint64_t layout) {
    DTI_TRY(dpool_tag_receive_head(socket, layout, &t->head));
    DTI_TRY(dpool_wire_answer(socket, open_held(t)));
    ductile_status status = dpool_tag_receive_table(socket, &t->head, &t->table);
    uint64_t rest = t->head.handles.total_bytes;
    while (status == DUCTILE_OK && t->n < t->head.handles.n_handles) {
        status = receive_batch(t, socket, &rest);
    }
    return status;
}

ductile_status ductile_hold_tag(int socket, uint64_t layout, ductile_held_tag **out) {
    if (out == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *out = NULL;
    ductile_held_tag *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = receive(t, socket, layout);
    if (status != DUCTILE_OK) {
        ductile_drop_held_tag(t);
        return status;
    }
    *out = t;
    return DUCTILE_OK;
}

/* ---- Sending ------------------------------------------------------------------------------- */

static ductile_status pass_batch(const ductile_held_tag *t, uint32_t first, int socket) {
    dpool_wire_batch batch = {.count = (uint32_t)dti_min(t->n - first, DPOOL_WIRE_BATCH)};
    for (uint32_t i = 0; i < batch.count; i++) {
        const dvmm_shared *shared = &t->shared[first + i];
        batch.handles[i].bytes = t->bytes[first + i];
        memcpy(batch.handles[i].fabric, shared->fabric, sizeof shared->fabric);
    }
    DTI_TRY(dpool_wire_send_batch(socket, &batch, t->shared + first));
    return dpool_wire_receive_ack(socket);
}

ductile_status ductile_pass_held_tag(const ductile_held_tag *t, int socket) {
    if (t == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dpool_tag_send(socket, &t->head, &t->table);
    for (uint32_t i = 0; status == DUCTILE_OK && i < t->n; i += DPOOL_WIRE_BATCH) {
        status = pass_batch(t, i, socket);
    }
    return status;
}

/* ---- What is held -------------------------------------------------------------------------- */

ductile_status ductile_held_describe(const ductile_held_tag *t, ductile_held_info *out) {
    if (t == NULL || out == NULL || out->struct_size < sizeof out->struct_size) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    size_t size = dti_min(out->struct_size, sizeof *out);
    ductile_held_info info = {.struct_size = out->struct_size,
                              .size = t->head.handles.total_bytes,
                              .layout = t->head.layout,
                              .n_handles = t->n,
                              .n_blocks = t->head.n_blocks,
                              .n_names = t->head.n_names};
    memcpy(info.tag, t->head.tag, sizeof info.tag);
    memcpy(out, &info, size);
    return DUCTILE_OK;
}

void ductile_drop_held_tag(ductile_held_tag *t) {
    if (t == NULL) {
        return;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        dvmm_shared_drop(&t->shared[i]);
    }
    dpool_tag_table_free(&t->table);
    free(t->bytes);
    free(t->shared);
    free(t);
}
