/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/sharing/tag_wire.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = 0x31544C44, /* "DLT1" */
    VERSION = 1,
    PAGE_BYTES = 16 << 10 /* so much of the table goes in one message */
};

static const uint64_t MOST_PARTS = UINT64_C(1) << 22;  /* blocks, and names */
static const uint64_t MOST_TEXT = UINT64_C(256) << 20; /* bytes             */

/* ---- The table ----------------------------------------------------------------------------- */

dpool_tag_head dpool_tag_new_head(const char *tag, uint64_t n_blocks, uint64_t n_names,
                                  uint64_t text_bytes) {
    dpool_tag_head head = {.magic = MAGIC,
                           .version = VERSION,
                           .n_blocks = n_blocks,
                           .n_names = n_names,
                           .text_bytes = text_bytes};
    (void)strncpy(head.tag, tag, sizeof head.tag - 1);
    return head;
}

static void place_parts(const dpool_tag_head *head, dpool_tag_table *table) {
    table->blocks = (dpool_tag_span *)(void *)table->bytes;
    table->labels = (dpool_tag_label *)(void *)(table->blocks + head->n_blocks);
    table->texts = (char *)(table->labels + head->n_names);
}

static bool is_bounded(const dpool_tag_head *head) {
    return head->n_blocks <= MOST_PARTS && head->n_names <= MOST_PARTS &&
           head->text_bytes <= MOST_TEXT;
}

ductile_status dpool_tag_table_make(const dpool_tag_head *head, dpool_tag_table *out) {
    *out = (dpool_tag_table){.size = head->n_blocks * sizeof(dpool_tag_span) +
                                     head->n_names * sizeof(dpool_tag_label) + head->text_bytes};
    out->bytes = is_bounded(head) ? calloc(1, out->size) : NULL;
    if (out->bytes == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    place_parts(head, out);
    return DUCTILE_OK;
}

void dpool_tag_table_free(dpool_tag_table *table) {
    free(table->bytes);
    *table = (dpool_tag_table){.bytes = NULL};
}

/* FNV-1a, which mistakes do not hit by chance. It is no seal. */
static uint64_t add_to_hash(uint64_t hash, const void *bytes, uint64_t size) {
    const unsigned char *at = bytes;
    for (uint64_t i = 0; i < size; i++) {
        hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

uint64_t dpool_tag_layout(const dpool_tag_head *head, const dpool_tag_table *table) {
    const uint64_t counts[] = {head->handles.total_bytes, head->n_blocks, head->n_names};
    uint64_t hash = add_to_hash(UINT64_C(0xCBF29CE484222325), counts, sizeof counts);
    hash = add_to_hash(hash, table->bytes, table->size);
    return hash != 0 ? hash : 1;
}

/* ---- Checking ------------------------------------------------------------------------------ */

static bool is_inside(dpool_tag_span span, uint64_t total) {
    return span.size != 0 && span.size <= total && span.offset <= total - span.size;
}

static bool are_blocks(const dpool_tag_head *head, const dpool_tag_table *table) {
    uint64_t end = 0;
    bool are = true;
    for (uint64_t i = 0; i < head->n_blocks && are; i++) {
        const dpool_tag_span *b = &table->blocks[i];
        are = is_inside(*b, head->handles.total_bytes) && b->offset >= end;
        end = b->offset + b->size;
    }
    return are;
}

/* Every text ends, since the last byte of all is a zero. */
static bool are_labels(const dpool_tag_head *head, const dpool_tag_table *table) {
    bool are =
        head->n_names == 0 || (head->text_bytes > 0 && table->texts[head->text_bytes - 1] == '\0');
    for (uint64_t i = 0; i < head->n_names && are; i++) {
        const dpool_tag_label *label = &table->labels[i];
        are = is_inside(label->span, head->handles.total_bytes) && label->text < head->text_bytes;
    }
    return are;
}

static bool is_head(const dpool_tag_head *head) {
    return head->magic == MAGIC && head->version == VERSION && head->layout != 0 &&
           head->n_blocks != 0 && is_bounded(head) && head->tag[0] != '\0' &&
           memchr(head->tag, '\0', sizeof head->tag) != NULL && head->handles.offset == 0 &&
           head->handles.size == head->handles.total_bytes;
}

/* ---- Over a socket ------------------------------------------------------------------------- */

/* Pages of equal size on both sides, for sockets that keep messages apart. */
static ductile_status send_table(int socket, const dpool_tag_table *table) {
    ductile_status status = DUCTILE_OK;
    for (uint64_t at = 0; at < table->size && status == DUCTILE_OK; at += PAGE_BYTES) {
        uint64_t n = dti_min(table->size - at, PAGE_BYTES);
        status = dpool_wire_send_bytes(socket, table->bytes + at, n);
    }
    return status;
}

static ductile_status receive_table(int socket, const dpool_tag_table *table) {
    ductile_status status = DUCTILE_OK;
    for (uint64_t at = 0; at < table->size && status == DUCTILE_OK; at += PAGE_BYTES) {
        uint64_t n = dti_min(table->size - at, PAGE_BYTES);
        status = dpool_wire_receive_bytes(socket, table->bytes + at, n);
    }
    return status;
}

ductile_status dpool_tag_send(int socket, const dpool_tag_head *head,
                              const dpool_tag_table *table) {
    DTI_TRY(dpool_wire_send_bytes(socket, head, sizeof *head));
    DTI_TRY(dpool_wire_receive_ack(socket));
    DTI_TRY(send_table(socket, table));
    return dpool_wire_receive_ack(socket);
}

ductile_status dpool_tag_receive_head(int socket, uint64_t layout, dpool_tag_head *head) {
    ductile_status status = dpool_wire_receive_bytes(socket, head, sizeof *head);
    if (status == DUCTILE_OK && !is_head(head)) {
        status = DUCTILE_ERR_BAD_MESSAGE;
    }
    if (status == DUCTILE_OK && layout != 0 && layout != head->layout) {
        dpool_wire_refuse_layout(socket);
        status = DUCTILE_ERR_LAYOUT;
    }
    return status;
}

ductile_status dpool_tag_receive_table(int socket, const dpool_tag_head *head,
                                       dpool_tag_table *out) {
    ductile_status status = dpool_tag_table_make(head, out);
    if (status == DUCTILE_OK) {
        status = receive_table(socket, out);
    }
    bool is_whole = status == DUCTILE_OK && are_blocks(head, out) && are_labels(head, out) &&
                    dpool_tag_layout(head, out) == head->layout;
    if (status == DUCTILE_OK && !is_whole) {
        status = DUCTILE_ERR_BAD_MESSAGE;
    }
    status = dpool_wire_answer(socket, status);
    if (status != DUCTILE_OK) {
        dpool_tag_table_free(out);
    }
    return status;
}
