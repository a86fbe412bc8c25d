/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/torch_events.h"
#include "vmm/base/status.h"

#include <stdlib.h>

/* ---- Events -------------------------------------------------------------------------------- */

static ductile_status create_event(torch_events *events, dvmm_event *out) {
    size_t bytes = (events->n_events + 1) * sizeof(dvmm_event);
    dvmm_event *room = realloc(events->spare_events, bytes);
    if (room == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    events->spare_events = room;
    ductile_status status = dvmm_event_create(events->driver, out);
    if (status == DUCTILE_OK) {
        events->n_events++;
    }
    return status;
}

static ductile_status take_event(torch_events *events, dvmm_event *out) {
    if (events->n_spare_events == 0) {
        return create_event(events, out);
    }
    *out = events->spare_events[--events->n_spare_events];
    return DUCTILE_OK;
}

static void put_event(torch_events *events, dvmm_event event) {
    events->spare_events[events->n_spare_events++] = event;
}

/* ---- Uses ---------------------------------------------------------------------------------- */

static torch_queue *get_queue(torch_events *events, ductile_stream stream) {
    for (torch_queue *queue = events->queues; queue != NULL; queue = queue->next) {
        if (queue->stream == stream) {
            return queue;
        }
    }
    torch_queue *queue = calloc(1, sizeof(*queue));
    if (queue != NULL) {
        queue->stream = stream;
        queue->next = events->queues;
        events->queues = queue;
    }
    return queue;
}

static torch_use *take_use(torch_events *events) {
    torch_use *use = events->spare_uses;
    if (use == NULL) {
        return malloc(sizeof(*use));
    }
    events->spare_uses = use->next;
    return use;
}

static void put_use(torch_events *events, torch_use *use) {
    use->next = events->spare_uses;
    events->spare_uses = use;
}

static bool has_use(const torch_block *block, ductile_stream stream) {
    for (const torch_use *use = block->uses; use != NULL; use = use->next) {
        if (use->queue->stream == stream) {
            return true;
        }
    }
    return false;
}

ductile_status torch_events_add_use(torch_events *events, torch_block *block,
                                    ductile_stream stream) {
    if (stream == block->arena->stream || has_use(block, stream)) {
        return DUCTILE_OK;
    }
    torch_queue *queue = get_queue(events, stream);
    torch_use *use = queue != NULL ? take_use(events) : NULL;
    if (use == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *use = (torch_use){.next = block->uses, .block = block, .queue = queue};
    block->uses = use;
    return DUCTILE_OK;
}

void torch_events_drop_uses(torch_events *events, torch_block *block) {
    while (block->uses != NULL) {
        torch_use *use = block->uses;
        block->uses = use->next;
        put_use(events, use);
    }
}

/* ---- Life cycle ---------------------------------------------------------------------------- */

void torch_events_init(torch_events *events, dvmm_driver *driver, torch_done_fn done, void *user) {
    *events = (torch_events){.driver = driver, .done = done, .user = user};
}

static void abandon_queue(torch_events *events, torch_queue *queue) {
    while (queue->head != NULL) {
        torch_use *use = queue->head;
        queue->head = use->next;
        put_event(events, use->event);
        put_use(events, use);
    }
}

void torch_events_fini(torch_events *events) {
    for (torch_queue *queue = events->queues; queue != NULL; queue = queue->next) {
        abandon_queue(events, queue);
    }
    for (size_t i = 0; i < events->n_spare_events; i++) {
        (void)dvmm_event_destroy(events->driver, events->spare_events[i]);
    }
    free(events->spare_events);
    while (events->spare_uses != NULL) {
        torch_use *use = events->spare_uses;
        events->spare_uses = use->next;
        free(use);
    }
    while (events->queues != NULL) {
        torch_queue *queue = events->queues;
        events->queues = queue->next;
        free(queue);
    }
}

/* ---- From the free to the end of the work -------------------------------------------------- */

static ductile_status record_use(torch_events *events, torch_use *use) {
    DTI_TRY(take_event(events, &use->event));
    ductile_status status = dvmm_event_record(events->driver, use->event, use->queue->stream);
    if (status != DUCTILE_OK) {
        put_event(events, use->event);
        use->event = NULL;
    }
    return status;
}

static void forget_records(torch_events *events, torch_block *block) {
    for (torch_use *use = block->uses; use != NULL && use->event != NULL; use = use->next) {
        put_event(events, use->event);
        use->event = NULL;
    }
}

static void enqueue(torch_use *use) {
    torch_queue *queue = use->queue;
    use->next = NULL;
    if (queue->head == NULL) {
        queue->head = use;
    } else {
        queue->last->next = use;
    }
    queue->last = use;
    use->block->n_pending++;
}

ductile_status torch_events_record(torch_events *events, torch_block *block) {
    for (torch_use *use = block->uses; use != NULL; use = use->next) {
        ductile_status status = record_use(events, use);
        if (status != DUCTILE_OK) {
            forget_records(events, block);
            return status;
        }
    }
    /* Nothing below can fail. */
    while (block->uses != NULL) {
        torch_use *use = block->uses;
        block->uses = use->next;
        enqueue(use);
    }
    return DUCTILE_OK;
}

static void finish_head(torch_events *events, torch_queue *queue) {
    torch_use *use = queue->head;
    torch_block *block = use->block;
    queue->head = use->next;
    put_event(events, use->event);
    put_use(events, use);
    if (--block->n_pending == 0) {
        events->done(events->user, block);
    }
}

ductile_status torch_events_poll(torch_events *events) {
    for (torch_queue *queue = events->queues; queue != NULL; queue = queue->next) {
        while (queue->head != NULL) {
            ductile_status status = dvmm_event_query(events->driver, queue->head->event);
            if (status == DUCTILE_ERR_NOT_READY) {
                break;
            }
            if (status != DUCTILE_OK) {
                return status;
            }
            finish_head(events, queue);
        }
    }
    return DUCTILE_OK;
}

ductile_status torch_events_wait(torch_events *events) {
    for (torch_queue *queue = events->queues; queue != NULL; queue = queue->next) {
        while (queue->head != NULL) {
            DTI_TRY(dvmm_event_sync(events->driver, queue->head->event));
            finish_head(events, queue);
        }
    }
    return DUCTILE_OK;
}
