/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the virtual GPU: their handles, their default kinds, waiting for them.
 *
 * Streams made here wait for no other, so the legacy default stream is one more queue: that it
 * waits for blocking streams is not modelled, as there are none but the per-thread defaults.
 */
#include "vmm/driver_virtual.h"

#include "vmm/base/check.h"

#include <stdlib.h>

/* ---- Streams ------------------------------------------------------------------------------- */

enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

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
    vgpu_stream *found = dvmm_slots_find_handle(&gpu->work.streams, stream);
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
    *out = dvmm_slots_handle(stream);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream handle) {
    vgpu_stream *stream = dvmm_slots_find_handle(&gpu->work.streams, handle);
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
        code = dvmm_vgpu_check_not_captured(queue);
        *out = queue->id;
    }
    return code;
}

/* The queue of a stream that may be waited for or asked about now. */
static int queue_to_watch(vgpu *gpu, ductile_stream stream, vgpu_queue **out) {
    int code = dvmm_vgpu_find_queue(gpu, stream, out);
    return code == DVMM_SUCCESS ? dvmm_vgpu_check_prohibited_on(gpu, *out) : code;
}

int dvmm_vgpu_settle(vgpu *gpu, int code) {
    dvmm_vgpu_progress(gpu, false);
    return code == DVMM_SUCCESS ? gpu->poison : code;
}

int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream) {
    vgpu_queue *queue;
    int code = queue_to_watch(gpu, stream, &queue);
    return code == DVMM_SUCCESS ? dvmm_vgpu_settle(gpu, dvmm_vgpu_force_queue(gpu, queue)) : code;
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

int dvmm_vgpu_drain(vgpu *gpu) {
    return dvmm_vgpu_settle(gpu, dvmm_vgpu_force_all(gpu));
}

int dvmm_vgpu_context_sync(vgpu *gpu) {
    int code = dvmm_vgpu_check_no_capture(gpu);
    return code == DVMM_SUCCESS ? dvmm_vgpu_drain(gpu) : code;
}

/* ---- Issuing ------------------------------------------------------------------------------- */

int dvmm_vgpu_issue_in(vgpu *gpu, vgpu_queue *queue, vgpu_op *op) {
    if (op == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    if (queue->capture != NULL) {
        dvmm_vgpu_op_free(op);
        return dvmm_vgpu_record_captured(queue);
    }
    dvmm_vgpu_enqueue(gpu, queue, op);
    return gpu->poison;
}

int dvmm_vgpu_issue_on(vgpu *gpu, ductile_stream stream, vgpu_op *op) {
    vgpu_queue *queue;
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (code == DVMM_SUCCESS) {
        return dvmm_vgpu_issue_in(gpu, queue, op);
    }
    if (op != NULL) {
        dvmm_vgpu_op_free(op);
    }
    return code;
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

void dvmm_vgpu_streams_fini(vgpu *gpu) {
    free_streams(&gpu->work);
    free_default_streams(&gpu->work);
}
