/* SPDX-License-Identifier: Apache-2.0 */
/* Imports whole tags from other processes. */
#include "pool/base/stream_id.h"
#include "pool/services/sharing/incoming.h"
#include "pool/services/sharing/tag_wire.h"

#include <ductile_share.h>

#include <stdlib.h>
#include <string.h>

/* What the caller gets; the lists and texts go with it. */
typedef struct imported {
    ductile_imported_tag view; /* first */
    dpool_tag_table table;
    ductile_tag_part parts[]; /* blocks, then names */
} imported;

/* ---- Arguments ----------------------------------------------------------------------------- */

static ductile_status check_arguments(const ductile_allocator *a, ductile_stream stream,
                                      ductile_import_access access, ductile_imported_tag **out) {
    if (out != NULL) {
        *out = NULL;
    }
    bool is_access = access == DUCTILE_IMPORT_READ || access == DUCTILE_IMPORT_READ_WRITE;
    return out != NULL && is_access ? dpool_may_import(a, stream) : DUCTILE_ERR_INVALID_ARGUMENT;
}

/* ---- What the caller sees ------------------------------------------------------------------ */

static void list_parts(imported *t, const dpool_tag_head *head) {
    ductile_tag_part *part = t->parts;
    for (uint64_t i = 0; i < head->n_blocks; i++) {
        const dpool_tag_span *b = &t->table.blocks[i];
        *part++ = (ductile_tag_part){b->offset, b->size, ""};
    }
    for (uint64_t i = 0; i < head->n_names; i++) {
        const dpool_tag_label *label = &t->table.labels[i];
        *part++ =
            (ductile_tag_part){label->span.offset, label->span.size, t->table.texts + label->text};
    }
}

/* Takes the table over. NULL: no host memory. */
static imported *describe(const dpool_tag_head *head, dpool_tag_table *table,
                          ductile_import_access access) {
    uint64_t n = head->n_blocks + head->n_names;
    imported *t = calloc(1, sizeof *t + n * sizeof *t->parts);
    if (t == NULL) {
        return NULL;
    }
    t->table = *table;
    *table = (dpool_tag_table){.bytes = NULL};
    t->view = (ductile_imported_tag){.struct_size = sizeof t->view,
                                     .size = head->handles.total_bytes,
                                     .layout = head->layout,
                                     .access = access,
                                     .n_blocks = head->n_blocks,
                                     .blocks = t->parts,
                                     .n_names = head->n_names,
                                     .names = t->parts + head->n_blocks};
    memcpy(t->view.tag, head->tag, sizeof t->view.tag);
    list_parts(t, head);
    return t;
}

static void free_imported(imported *t) {
    if (t != NULL) {
        dpool_tag_table_free(&t->table);
        free(t);
    }
}

/* ---- Over a socket ------------------------------------------------------------------------- */

/* Head and table. The range is reserved before the head is answered. */
static ductile_status receive_start(dpool_incoming *r, int socket, uint64_t layout,
                                    ductile_import_access access, imported **out) {
    dpool_tag_head head;
    DTI_TRY(dpool_tag_receive_head(socket, layout, &head));
    r->head = head.handles;
    DTI_TRY(dpool_wire_answer(socket, dpool_incoming_open(r)));
    dpool_tag_table table = {.bytes = NULL};
    DTI_TRY(dpool_tag_receive_table(socket, &head, &table));
    *out = describe(&head, &table, access);
    dpool_tag_table_free(&table);
    return *out != NULL ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

ductile_status ductile_import_tag(ductile_allocator *a, int socket, ductile_stream stream,
                                  ductile_import_access access, uint64_t layout,
                                  ductile_imported_tag **out) {
    DTI_TRY(check_arguments(a, stream, access, out));
    dpool_incoming r = {
        .a = a, .stream = dpool_canonical_stream(stream), .access = (dvmm_access)access};
    imported *t = NULL;
    ductile_status status = receive_start(&r, socket, layout, access, &t);
    if (status == DUCTILE_OK) {
        status = dpool_incoming_receive(&r, socket);
    }
    if (status != DUCTILE_OK) {
        dpool_incoming_undo(&r);
        free_imported(t);
        return status;
    }
    dpool_announce_import(a, DUCTILE_MAP_MAPPED, &r.in, r.stream);
    t->view.address = r.in.range.addr;
    *out = &t->view;
    return DUCTILE_OK;
}

/* Where the import has left and the call fails all the same, its address goes: the next call has
 * only the struct to free. */
ductile_status ductile_import_release(ductile_allocator *a, ductile_imported_tag *tag) {
    if (a == NULL || tag == NULL) {
        return a != NULL ? DUCTILE_OK : DUCTILE_ERR_INVALID_ARGUMENT;
    }
    bool has_left = false;
    ductile_status status = dpool_import_close(a, tag->address, &has_left);
    if (status == DUCTILE_OK || status == DUCTILE_ERR_DEVICE_LOST) {
        free_imported((imported *)tag);
    } else if (has_left) {
        tag->address = 0;
    }
    return status;
}
