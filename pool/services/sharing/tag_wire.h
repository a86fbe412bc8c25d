/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The message of a whole tag:
 *
 *     exporter: HEAD     importer: ACK, or LAYOUT REFUSED
 *               TABLE              ACK
 *               BATCHES            ACK each, as for a block (share_wire.h)
 *
 * The table says where blocks and names lie in the handles, which follow one behind the other:
 *
 *     n_blocks x (offset, size), n_names x (offset, size, place of the text), the texts
 *
 * The layout is a hash of the table, so the receiver can tell that all of it arrived as it was.
 */
#ifndef DUCTILE_POOL_SERVICES_SHARING_TAG_WIRE_H
#define DUCTILE_POOL_SERVICES_SHARING_TAG_WIRE_H

#include "pool/services/sharing/share_wire.h"

#include <ductile_handover.h>

typedef struct dpool_tag_head {
    uint32_t magic;
    uint16_t version;
    uint16_t unused;
    uint64_t layout;
    uint64_t n_blocks;
    uint64_t n_names;
    uint64_t text_bytes;
    char tag[DUCTILE_TAG_BYTES];
    dpool_wire_head handles; /* offset 0, size total_bytes */
} dpool_tag_head;

typedef struct dpool_tag_span {
    uint64_t offset;
    uint64_t size;
} dpool_tag_span;

typedef struct dpool_tag_label {
    dpool_tag_span span;
    uint64_t text; /* its place among the texts */
} dpool_tag_label;

/* The three parts lie in one piece of memory, in this order. */
typedef struct dpool_tag_table {
    unsigned char *bytes; /* owned */
    uint64_t size;
    dpool_tag_span *blocks;
    dpool_tag_label *labels;
    char *texts;
} dpool_tag_table;

/* A head with its numbers set, but for `handles`. */
dpool_tag_head dpool_tag_new_head(const char *tag, uint64_t n_blocks, uint64_t n_names,
                                  uint64_t text_bytes);

/* Makes room for what the head announces. ERR_OUT_OF_HOST_MEMORY. */
ductile_status dpool_tag_table_make(const dpool_tag_head *head, dpool_tag_table *out);
void dpool_tag_table_free(dpool_tag_table *table);

/* Never 0. */
uint64_t dpool_tag_layout(const dpool_tag_head *head, const dpool_tag_table *table);

/* Sends head and table, each answered. ERR_LAYOUT when the other side refuses it. */
ductile_status dpool_tag_send(int socket, const dpool_tag_head *head, const dpool_tag_table *table);

/* Receives and checks a head, but not the part `handles`. ERR_LAYOUT, which it has answered, unless
 * `layout` is 0 or the head's; any other head is left to answer. */
ductile_status dpool_tag_receive_head(int socket, uint64_t layout, dpool_tag_head *head);

/* Receives, checks and answers the table. */
ductile_status dpool_tag_receive_table(int socket, const dpool_tag_head *head,
                                       dpool_tag_table *out);

#endif
