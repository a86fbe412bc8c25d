/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of two processes over a socket:
 *
 *     exporter: HEAD               importer: ACK
 *               BATCH of handles             ACK      at most DPOOL_WIRE_BATCH in each
 *               ...                          ...
 *               BATCH                        ACK      the last one: all is mapped
 *
 * Either side may send GIVE_UP instead of its next word. An answer to each word bounds how many
 * descriptors are in flight, which the kernel counts against the sender.
 * The receiver trusts nothing: it checks every number before it uses it, and closes every
 * descriptor that was not announced.
 */
#ifndef DUCTILE_POOL_SERVICES_SHARING_SHARE_WIRE_H
#define DUCTILE_POOL_SERVICES_SHARING_SHARE_WIRE_H

#include "vmm/driver/driver.h"

enum { DPOOL_WIRE_BATCH = 64 };

/* A block and the handles it lies in. */
typedef struct dpool_wire_head {
    uint32_t magic;
    uint16_t version;
    uint16_t type;          /* dvmm_share_type */
    uint64_t granule_bytes; /* the exporter's: all sizes are multiples */
    uint64_t total_bytes;   /* of all handles                          */
    uint64_t offset;        /* of the block in them                    */
    uint64_t size;          /* of the block                            */
    uint32_t n_handles;
    uint32_t unused;
} dpool_wire_head;

/* One handle. In a batch the descriptors travel beside it, in the order of their handles. */
typedef struct dpool_wire_handle {
    uint64_t bytes;
    uint8_t fabric[DVMM_FABRIC_BYTES];
} dpool_wire_handle;

typedef struct dpool_wire_batch {
    uint32_t magic;
    uint32_t count; /* 0: the sender gives up */
    dpool_wire_handle handles[DPOOL_WIRE_BATCH];
} dpool_wire_batch;

/* A head with the fields that every head of this version has. */
dpool_wire_head dpool_wire_new_head(void);

/* ERR_BAD_MESSAGE unless all numbers of the head agree with each other and with our granule. */
ductile_status dpool_wire_check_head(const dpool_wire_head *head, uint64_t granule_bytes);

/* ERR_BAD_MESSAGE unless the handles of a batch agree with the head. *rest: the bytes still to
 * come, lowered by those of the batch. */
ductile_status dpool_wire_check_handles(const dpool_wire_head *head,
                                        const dpool_wire_handle *handles, uint32_t n_handles,
                                        uint64_t *rest);

/* Each function sends or receives one word. ERR_BAD_MESSAGE when the other side hung up, timed out
 * or gave up; ERR_NO_DESCRIPTORS; ERR_INVALID_ARGUMENT when the descriptor is no socket. */

/* A word without descriptors. */
ductile_status dpool_wire_send_bytes(int socket, const void *bytes, size_t size);
ductile_status dpool_wire_receive_bytes(int socket, void *bytes, size_t size);

/* shared: as many as the batch counts. Their descriptors stay the caller's. */
ductile_status dpool_wire_send_batch(int socket, const dpool_wire_batch *batch,
                                     const dvmm_shared *shared);

/* shared: room for DPOOL_WIRE_BATCH entries. On success the caller owns batch->count of them. */
ductile_status dpool_wire_receive_batch(int socket, const dpool_wire_head *head,
                                        dpool_wire_batch *batch, dvmm_shared *shared);

/* Answers a word: whether all is well, and returns why not, here or on the way. */
ductile_status dpool_wire_answer(int socket, ductile_status status);
ductile_status dpool_wire_receive_ack(int socket);

/* The answer to a layout that is not the expected one: ERR_LAYOUT for the one that receives it. */
void dpool_wire_refuse_layout(int socket);

/* The exporter's last word when it cannot go on. */
void dpool_wire_give_up(int socket);

/* ERR_NO_DESCRIPTORS when this process cannot open n more. */
ductile_status dpool_wire_need_descriptors(uint64_t n);

#endif
