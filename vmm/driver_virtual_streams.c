/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and host memory of the virtual GPU.
 *
 * Streams made here wait for no other, so the legacy default stream is one more queue: that it
 * waits for blocking streams is not modelled, as there are none but the per-thread defaults.
 */
#include "vmm/driver_virtual.h"

#include "vmm/base/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- Handles ------------------------------------------------------------------------------- */

/* Handles look like pointers but lead nowhere. As on hardware, a destroyed one's value serves the
 * next that is created; unlike there, a stale one is an error instead of a crash. */
enum { HANDLE_STEP = 64, LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

static void *handle_of(const dvmm_slot *slot) {
    return (void *)((uintptr_t)slot->number * HANDLE_STEP);
}

static void *find_handle(const dvmm_slots *slots, const void *handle) {
    uintptr_t value = (uintptr_t)handle;
    return value % HANDLE_STEP == 0 ? dvmm_slots_find(slots, value / HANDLE_STEP) : NULL;
}

static vgpu_event *find_event(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event = find_handle(&gpu->work.events, handle);
    if (event == NULL) {
        dvmm_vgpu_violation(gpu, "use of event %p, which does not exist", (void *)handle);
    }
    return event;
}

/* ---- Streams ------------------------------------------------------------------------------- */

static int have_queue(vgpu *gpu, vgpu_queue **queue) {
    if (*queue == NULL) {
        *queue = dvmm_vgpu_queue_new(gpu);
    }
    return *queue != NULL ? DVMM_SUCCESS : DVMM_OUT_OF_MEMORY;
}

static vgpu_thread_stream *thread_stream(vgpu *gpu) {
    uint64_t thread = dvmm_vgpu_this_thread();
    vgpu_thread_stream *stream = gpu->work.thread_streams;
    while (stream != NULL && stream->thread != thread) {
        stream = stream->next;
    }
    if (stream == NULL && (stream = calloc(1, sizeof(*stream))) != NULL) {
        stream->thread = thread;
        stream->next = gpu->work.thread_streams;
        gpu->work.thread_streams = stream;
    }
    return stream;
}

static int per_thread_queue(vgpu *gpu, vgpu_queue **out) {
    vgpu_thread_stream *stream = thread_stream(gpu);
    if (stream == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    int code = have_queue(gpu, &stream->queue);
    *out = stream->queue;
    return code;
}

static int legacy_queue(vgpu *gpu, vgpu_queue **out) {
    int code = have_queue(gpu, &gpu->work.legacy);
    *out = gpu->work.legacy;
    return code;
}

int dvmm_vgpu_find_queue(vgpu *gpu, ductile_stream stream, vgpu_queue **out) {
    if (stream == NULL || (uintptr_t)stream == LEGACY_STREAM) {
        return legacy_queue(gpu, out);
    }
    if ((uintptr_t)stream == PER_THREAD_STREAM) {
        return per_thread_queue(gpu, out);
    }
    vgpu_stream *found = find_handle(&gpu->work.streams, stream);
    if (found == NULL) {
        dvmm_vgpu_violation(gpu, "use of stream %p, which does not exist", (void *)stream);
        return DVMM_INVALID_HANDLE;
    }
    *out = found->queue;
    return DVMM_SUCCESS;
}

int dvmm_vgpu_stream_create(vgpu *gpu, ductile_stream *out) {
    vgpu_queue *queue = dvmm_vgpu_queue_new(gpu);
    vgpu_stream *stream = queue != NULL ? dvmm_slots_take(&gpu->work.streams) : NULL;
    if (stream == NULL) {
        free(queue);
        return DVMM_OUT_OF_MEMORY;
    }
    stream->queue = queue;
    *out = handle_of(&stream->slot);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream handle) {
    vgpu_stream *stream = find_handle(&gpu->work.streams, handle);
    if (stream == NULL) {
        dvmm_vgpu_violation(gpu, "stream_destroy of %p, which does not exist", (void *)handle);
        return DVMM_INVALID_HANDLE;
    }
    dvmm_vgpu_capture_lost_stream(gpu, stream->queue);
    dvmm_vgpu_queue_orphan(stream->queue);
    dvmm_slots_give(&gpu->work.streams, stream);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_stream_id(vgpu *gpu, ductile_stream stream, uint64_t *out) {
    vgpu_queue *queue;
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (code == DVMM_SUCCESS) {
        *out = queue->id;
    }
    return code;
}

/* The queue of a stream that may be waited for or asked about now. */
static int queue_to_watch(vgpu *gpu, ductile_stream stream, vgpu_queue **out) {
    int code = dvmm_vgpu_find_queue(gpu, stream, out);
    return code == DVMM_SUCCESS ? dvmm_vgpu_check_prohibited_on(gpu, *out) : code;
}

/* Work that was only waiting for what just completed completes too. */
static int settle(vgpu *gpu, int code) {
    dvmm_vgpu_progress(gpu, false);
    return code == DVMM_SUCCESS ? gpu->poison : code;
}

int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream) {
    vgpu_queue *queue;
    int code = queue_to_watch(gpu, stream, &queue);
    return code == DVMM_SUCCESS ? settle(gpu, dvmm_vgpu_force_queue(gpu, queue)) : code;
}

int dvmm_vgpu_stream_query(vgpu *gpu, ductile_stream stream) {
    vgpu_queue *queue;
    int code = queue_to_watch(gpu, stream, &queue);
    if (code != DVMM_SUCCESS) {
        return code;
    }
    dvmm_vgpu_progress(gpu, true);
    return queue->first == NULL || gpu->poison != 0 ? gpu->poison : DVMM_NOT_READY;
}

int dvmm_vgpu_context_sync(vgpu *gpu) {
    int code = dvmm_vgpu_check_prohibited(gpu);
    return code == DVMM_SUCCESS ? settle(gpu, dvmm_vgpu_force_all(gpu)) : code;
}

/* ---- Issuing ------------------------------------------------------------------------------- */

/* Takes `op` over, also when it fails; NULL stands for a host without memory. */
static int issue(vgpu *gpu, vgpu_queue *queue, vgpu_op *op) {
    if (op == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    if (queue->capture != NULL) {
        dvmm_vgpu_op_free(op);
        return dvmm_vgpu_record_captured(queue);
    }
    dvmm_vgpu_issue(gpu, queue, op);
    return gpu->poison;
}

static int issue_on(vgpu *gpu, ductile_stream stream, vgpu_op *op) {
    vgpu_queue *queue;
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (code == DVMM_SUCCESS) {
        return issue(gpu, queue, op);
    }
    if (op != NULL) {
        dvmm_vgpu_op_free(op);
    }
    return code;
}

/* An operation that holds one more reference to the marker. */
static vgpu_op *marker_op(vgpu_op_kind kind, vgpu_marker *marker) {
    vgpu_op *op = dvmm_vgpu_op_new(kind, 0);
    if (op != NULL) {
        op->marker = marker;
        marker->n_refs++;
    }
    return op;
}

/* ---- Events -------------------------------------------------------------------------------- */

int dvmm_vgpu_event_create(vgpu *gpu, dvmm_event *out) {
    vgpu_event *event = dvmm_slots_take(&gpu->work.events);
    if (event == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    *out = handle_of(&event->slot);
    return DVMM_SUCCESS;
}

/* Legal before the recorded work completes. */
int dvmm_vgpu_event_destroy(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event = find_event(gpu, handle);
    if (event == NULL) {
        return DVMM_INVALID_HANDLE;
    }
    dvmm_vgpu_marker_drop(event->marker);
    dvmm_slots_give(&gpu->work.events, event);
    return DVMM_SUCCESS;
}

static void set_marker(vgpu_event *event, vgpu_marker *marker, uint64_t capture_id) {
    dvmm_vgpu_marker_drop(event->marker);
    event->marker = marker;
    event->capture_id = capture_id;
}

static int record_captured(vgpu_queue *queue, vgpu_event *event) {
    int code = dvmm_vgpu_record_captured(queue);
    if (code == DVMM_SUCCESS) {
        set_marker(event, NULL, queue->capture->id);
    }
    return code;
}

static int record(vgpu *gpu, vgpu_queue *queue, vgpu_event *event) {
    vgpu_marker *marker = dvmm_vgpu_marker_new(queue);
    vgpu_op *op = marker != NULL ? marker_op(VGPU_OP_RECORD, marker) : NULL;
    if (op == NULL) {
        dvmm_vgpu_marker_drop(marker);
        return DVMM_OUT_OF_MEMORY;
    }
    set_marker(event, marker, 0);
    return issue(gpu, queue, op);
}

int dvmm_vgpu_event_record(vgpu *gpu, dvmm_event handle, ductile_stream stream) {
    vgpu_queue *queue;
    vgpu_event *event = find_event(gpu, handle);
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (event == NULL || code != DVMM_SUCCESS) {
        return event == NULL ? DVMM_INVALID_HANDLE : code;
    }
    return queue->capture != NULL ? record_captured(queue, event) : record(gpu, queue, event);
}

/* An event recorded in a capture stands for a place in a graph: no capture mode makes it one in
 * time. */
static int event_to_watch(vgpu *gpu, dvmm_event handle, vgpu_event **out) {
    *out = find_event(gpu, handle);
    if (*out == NULL) {
        return DVMM_INVALID_HANDLE;
    }
    return (*out)->capture_id != 0 ? DVMM_CAPTURED_EVENT : dvmm_vgpu_check_prohibited(gpu);
}

/* The hardware answers "done" for an event that was never recorded. Who asks has lost a record,
 * and takes memory in use for free. */
int dvmm_vgpu_event_query(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event;
    int code = event_to_watch(gpu, handle, &event);
    if (code != DVMM_SUCCESS) {
        return code;
    }
    dvmm_vgpu_progress(gpu, true);
    if (event->marker == NULL) {
        dvmm_vgpu_violation(gpu, "event_query of %p, which was never recorded", (void *)handle);
        return gpu->poison;
    }
    return event->marker->is_done || gpu->poison != 0 ? gpu->poison : DVMM_NOT_READY;
}

int dvmm_vgpu_event_sync(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event;
    int code = event_to_watch(gpu, handle, &event);
    if (code != DVMM_SUCCESS || event->marker == NULL) {
        return code;
    }
    return settle(gpu, dvmm_vgpu_force_marker(gpu, event->marker));
}

/* ---- Waits on the device ------------------------------------------------------------------- */

int dvmm_vgpu_stream_wait_event(vgpu *gpu, ductile_stream stream, dvmm_event handle) {
    vgpu_queue *queue;
    vgpu_event *event = find_event(gpu, handle);
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (event == NULL || code != DVMM_SUCCESS) {
        return event == NULL ? DVMM_INVALID_HANDLE : code;
    }
    if (queue->capture != NULL || event->capture_id != 0) {
        return dvmm_vgpu_wait_captured(gpu, queue, event);
    }
    return event->marker == NULL ? DVMM_SUCCESS
                                 : issue(gpu, queue, marker_op(VGPU_OP_WAIT, event->marker));
}

static bool is_host_word(const vgpu *gpu, const uint64_t *word) {
    const vgpu_host_block *block = gpu->work.host_blocks;
    for (; block != NULL; block = block->next) {
        uintptr_t distance = (uintptr_t)word - (uintptr_t)block->memory;
        if (distance < block->size && block->size - distance >= sizeof(*word)) {
            return (uintptr_t)word % sizeof(*word) == 0;
        }
    }
    return false;
}

int dvmm_vgpu_stream_wait_value(vgpu *gpu, ductile_stream stream, const uint64_t *word,
                                uint64_t value) {
    if (!is_host_word(gpu, word)) {
        return DVMM_INVALID_VALUE;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_WAIT_VALUE, 0);
    if (op != NULL) {
        op->word = word;
        op->value = value;
    }
    return issue_on(gpu, stream, op);
}

int dvmm_vgpu_stream_wait_stream(vgpu *gpu, ductile_stream stream, ductile_stream on) {
    dvmm_event event;
    int code = dvmm_vgpu_event_create(gpu, &event);
    if (code != DVMM_SUCCESS) {
        return code;
    }
    code = dvmm_vgpu_event_record(gpu, event, on);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_stream_wait_event(gpu, stream, event);
    }
    (void)dvmm_vgpu_event_destroy(gpu, event);
    return code;
}

/* ---- Work with memory ---------------------------------------------------------------------- */

static ductile_virtual_use use_of(ductile_addr address, uint64_t size, bool writes) {
    return (ductile_virtual_use){.address = address, .size = size, .writes = writes};
}

/* A kernel's pointers are nobody's business until it runs. */
int dvmm_vgpu_launch(vgpu *gpu, ductile_stream stream, const ductile_virtual_use *uses,
                     size_t n_uses) {
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_USE, n_uses);
    if (op != NULL && n_uses != 0) {
        memcpy(op->uses, uses, n_uses * sizeof(*uses));
    }
    return issue_on(gpu, stream, op);
}

int dvmm_vgpu_fill(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size,
                   ductile_stream stream) {
    if (!dvmm_vgpu_is_accessible(gpu, to, size, DVMM_ACCESS_RW)) {
        return DVMM_INVALID_VALUE;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_FILL, 1);
    if (op != NULL) {
        op->uses[0] = use_of(to, size, true);
        op->value = value;
    }
    return issue_on(gpu, stream, op);
}

int dvmm_vgpu_copy(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size,
                   ductile_stream stream) {
    if (!dvmm_vgpu_is_accessible(gpu, to, size, DVMM_ACCESS_RW) ||
        !dvmm_vgpu_is_accessible(gpu, from, size, DVMM_ACCESS_READ)) {
        return DVMM_INVALID_VALUE;
    }
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_COPY, 2);
    if (op != NULL) {
        op->uses[0] = use_of(to, size, true);
        op->uses[1] = use_of(from, size, false);
    }
    return issue_on(gpu, stream, op);
}

static vgpu_op *upload_op(ductile_addr to, const void *from, uint64_t size) {
    vgpu_op *op = dvmm_vgpu_op_new(VGPU_OP_UPLOAD, 1);
    if (op == NULL) {
        return NULL;
    }
    op->uses[0] = use_of(to, size, true);
    op->bytes = malloc(size != 0 ? size : 1);
    if (op->bytes == NULL) {
        dvmm_vgpu_op_free(op);
        return NULL;
    }
    memcpy(op->bytes, from, size);
    return op;
}

int dvmm_vgpu_upload(vgpu *gpu, ductile_addr to, const void *from, uint64_t size,
                     ductile_stream stream) {
    if (!dvmm_vgpu_is_accessible(gpu, to, size, DVMM_ACCESS_RW)) {
        return DVMM_INVALID_VALUE;
    }
    return issue_on(gpu, stream, upload_op(to, from, size));
}

int dvmm_vgpu_read_back(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                        ductile_stream stream) {
    if (!dvmm_vgpu_is_accessible(gpu, from, size, DVMM_ACCESS_READ)) {
        return DVMM_INVALID_VALUE;
    }
    int code = dvmm_vgpu_stream_sync(gpu, stream);
    if (code == DVMM_SUCCESS) {
        dvmm_vgpu_read_bytes(gpu, to, from, size);
    }
    return code;
}

/* ---- Host memory --------------------------------------------------------------------------- */

int dvmm_vgpu_host_alloc(vgpu *gpu, uint64_t size, void **out) {
    vgpu_host_block *block = calloc(1, sizeof(*block));
    void *memory = size != 0 ? calloc(1, size) : NULL;
    if (block == NULL || memory == NULL) {
        free(block);
        free(memory);
        return size == 0 ? DVMM_INVALID_VALUE : DVMM_OUT_OF_MEMORY;
    }
    *block = (vgpu_host_block){gpu->work.host_blocks, memory, size};
    gpu->work.host_blocks = block;
    *out = memory;
    return DVMM_SUCCESS;
}

int dvmm_vgpu_host_free(vgpu *gpu, void *memory) {
    vgpu_host_block **link = &gpu->work.host_blocks;
    while (*link != NULL && (*link)->memory != memory) {
        link = &(*link)->next;
    }
    vgpu_host_block *block = *link;
    if (block == NULL) {
        return DVMM_INVALID_VALUE;
    }
    dvmm_vgpu_forget_words(gpu, block);
    *link = block->next;
    free(block->memory);
    free(block);
    return DVMM_SUCCESS;
}

/* ---- Life ---------------------------------------------------------------------------------- */

void dvmm_vgpu_streams_init(vgpu *gpu) {
    vgpu_work *work = &gpu->work;
    work->schedule = gpu->options.schedule;
    work->lag = gpu->options.lag;
    work->dice = gpu->options.seed * 2 + 1; /* anything but 0 */
    dvmm_slots_init(&work->streams, sizeof(vgpu_stream));
    dvmm_slots_init(&work->events, sizeof(vgpu_event));
}

static void free_streams(vgpu_work *work) {
    vgpu_stream *stream = dvmm_slots_next(&work->streams, 1);
    for (; stream != NULL; stream = dvmm_slots_next(&work->streams, stream->slot.number + 1)) {
        dvmm_vgpu_queue_orphan(stream->queue);
    }
    dvmm_slots_fini(&work->streams);
}

static void free_default_streams(vgpu_work *work) {
    if (work->legacy != NULL) {
        dvmm_vgpu_queue_orphan(work->legacy);
    }
    while (work->thread_streams != NULL) {
        vgpu_thread_stream *stream = work->thread_streams;
        work->thread_streams = stream->next;
        if (stream->queue != NULL) {
            dvmm_vgpu_queue_orphan(stream->queue);
        }
        free(stream);
    }
}

static void free_events(vgpu_work *work) {
    vgpu_event *event = dvmm_slots_next(&work->events, 1);
    for (; event != NULL; event = dvmm_slots_next(&work->events, event->slot.number + 1)) {
        dvmm_vgpu_marker_drop(event->marker);
    }
    dvmm_slots_fini(&work->events);
}

void dvmm_vgpu_streams_fini(vgpu *gpu) {
    free_streams(&gpu->work);
    free_default_streams(&gpu->work);
    free_events(&gpu->work);
    while (gpu->work.host_blocks != NULL) {
        (void)dvmm_vgpu_host_free(gpu, gpu->work.host_blocks->memory);
    }
}
