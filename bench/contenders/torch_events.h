/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses of blocks by other streams, as PyTorch tracks them: record_stream adds a use; at free an
 * event is recorded for each, queued by stream; later allocations ask the oldest event of every
 * queue. A block is free again when all its events were seen done.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_TORCH_EVENTS_H
#define DUCTILE_BENCH_CONTENDERS_TORCH_EVENTS_H

#include "bench/contenders/torch_blocks.h"
#include "vmm/driver/driver.h"

typedef struct torch_queue torch_queue;

/* Owned by its block's list while the block is live, then by its stream's queue. */
struct torch_use {
    torch_use *next;
    torch_block *block;
    torch_queue *queue;
    dvmm_event event; /* NULL until the free */
};

/* Events recorded on one stream and not yet seen done, oldest first. */
struct torch_queue {
    ductile_stream stream;
    torch_use *head;
    torch_use *last; /* valid while head is not NULL */
    torch_queue *next;
};

/* Called for a block whose last event was seen done. */
typedef void (*torch_done_fn)(void *user, torch_block *block);

typedef struct torch_events {
    dvmm_driver *driver;
    torch_done_fn done;
    void *user;
    torch_queue *queues;
    torch_use *spare_uses;
    dvmm_event *spare_events; /* recycled: creating one is slow */
    size_t n_spare_events;
    size_t n_events; /* in existence; spare_events has room for all */
} torch_events;

void torch_events_init(torch_events *events, dvmm_driver *driver, torch_done_fn done, void *user);
/* Blocks still pending, after an error of the driver, are abandoned.
 * Pre: no live block has a use. */
void torch_events_fini(torch_events *events);

/* Adds a use of a live block, once per stream. The block's own stream does nothing. */
ductile_status torch_events_add_use(torch_events *events, torch_block *block,
                                    ductile_stream stream);
/* Records an event for every use of the block and queues them: the block is pending. On error
 * nothing has changed. */
ductile_status torch_events_record(torch_events *events, torch_block *block);
/* Forgets the uses of a live block. */
void torch_events_drop_uses(torch_events *events, torch_block *block);

/* Asks each queue's oldest event until one is not done. */
ductile_status torch_events_poll(torch_events *events);
/* Waits for every event. */
ductile_status torch_events_wait(torch_events *events);

#endif
