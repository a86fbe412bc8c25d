/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses of blocks by other streams, as PyTorch tracks them: record_stream adds a use; at free an
 * event is recorded for each, queued by stream; later allocations ask the oldest event of every
 * queue. A block is free again when all its events were seen done.
 */
#ifndef DUCTILE_BENCH_CONTENDERS_RIVAL_EVENTS_H
#define DUCTILE_BENCH_CONTENDERS_RIVAL_EVENTS_H

#include "bench/contenders/rival_blocks.h"
#include "vmm/driver/driver.h"

typedef struct rival_queue rival_queue;

/* Owned by its block's list while the block is live, then by its stream's queue. */
struct rival_use {
    rival_use *next;
    rival_block *block;
    rival_queue *queue;
    dvmm_event event; /* NULL until the free */
};

/* Events recorded on one stream and not yet seen done, oldest first. */
struct rival_queue {
    ductile_stream stream;
    rival_use *head;
    rival_use *last; /* valid while head is not NULL */
    rival_queue *next;
};

/* Called for a block whose last event was seen done. */
typedef void (*rival_done_fn)(void *user, rival_block *block);

typedef struct rival_events {
    dvmm_driver *driver;
    rival_done_fn done;
    void *user;
    rival_queue *queues;
    rival_use *spare_uses;
    dvmm_event *spare_events; /* recycled: creating one is slow */
    size_t n_spare_events;
    size_t n_events; /* in existence; spare_events has room for all */
} rival_events;

void rival_events_init(rival_events *events, dvmm_driver *driver, rival_done_fn done, void *user);
/* Blocks still pending, after an error of the driver, are abandoned.
 * Pre: no live block has a use. */
void rival_events_fini(rival_events *events);

/* Adds a use of a live block, once per stream. The block's own stream does nothing. */
ductile_status rival_events_add_use(rival_events *events, rival_block *block,
                                    ductile_stream stream);
/* Records an event for every use of the block and queues them: the block is pending. On error
 * nothing has changed. */
ductile_status rival_events_record(rival_events *events, rival_block *block);
/* Forgets the uses of a live block. */
void rival_events_drop_uses(rival_events *events, rival_block *block);

/* Asks each queue's oldest event until one is not done. */
ductile_status rival_events_poll(rival_events *events);
/* Waits for every event. */
ductile_status rival_events_wait(rival_events *events);

#endif
