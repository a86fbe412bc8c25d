/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of the virtual GPU: their handles, their default kinds, waiting for them.
 *
 * Work on the legacy default stream waits for the earlier work of all blocking streams, which are
 * the per-thread defaults and those created as such, and their later work waits for it. Streams of
 * the driver seam are not blocking.
 *
 * Streams of another context, on this device or on another one of the machine: their work reaches
 * the memory that is open to their device, they record and wait for events like others
 * (vmm/cuda/foreign.c), and a wait for all work of the context does not wait for theirs. How a
 * capture of theirs affects that wait has not been measured: here it is refused. A green context
 * counts as ours, as measured: its streams are like any others here.
 */
#include "vmm/virtual/work/streams.h"

#include "vmm/base/check.h"
#include "vmm/virtual/race/order.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>

/* ---- Streams ------------------------------------------------------------------------------- */

int dvmm_vgpu_stream_create(vgpu *gpu, ductile_stream *out) {
    vgpu_queue *queue = dvmm_vgpu_queue_new(gpu);
    vgpu_stream *stream = queue != NULL ? dvmm_slots_take(&gpu->work.streams) : NULL;
    if (stream == NULL) {
        free(queue);
        return DVMM_OUT_OF_MEMORY;
    }
    stream->queue = queue;
    *out = dvmm_slots_handle(stream);
    queue->handle = *out;
    return DVMM_SUCCESS;
}

int dvmm_vgpu_stream_create_blocking(vgpu *gpu, ductile_stream *out) {
    DTI_TRY(dvmm_vgpu_stream_create(gpu, out));
    vgpu_stream *stream = dvmm_slots_find_handle(&gpu->work.streams, *out);
    int code = dvmm_vgpu_queue_block(gpu, stream->queue);
    if (code != DVMM_SUCCESS) {
        (void)dvmm_vgpu_stream_destroy(gpu, *out);
        *out = NULL;
    }
    return code;
}

int dvmm_vgpu_stream_create_foreign(vgpu *gpu, int device, ductile_stream *out) {
    int code = dvmm_vgpu_stream_create(gpu, out);
    if (code == DVMM_SUCCESS) {
        vgpu_stream *stream = dvmm_slots_find_handle(&gpu->work.streams, *out);
        stream->queue->device = device;
        stream->queue->is_foreign = true;
        gpu->work.n_foreign++;
    }
    return code;
}

int dvmm_vgpu_stream_create_on(vgpu *gpu, int device, ductile_stream *out) {
    if (device < 0 || (uint32_t)device >= gpu->options.n_devices) {
        return DVMM_INVALID_DEVICE;
    }
    return device == 0 ? dvmm_vgpu_stream_create(gpu, out)
                       : dvmm_vgpu_stream_create_foreign(gpu, device, out);
}

int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream handle) {
    vgpu_stream *stream = dvmm_slots_find_handle(&gpu->work.streams, handle);
    if (stream == NULL) {
        dvmm_vgpu_violation(gpu, "stream_destroy of %p, which does not exist", (void *)handle);
        return DVMM_INVALID_HANDLE;
    }
    dvmm_vgpu_capture_lost_stream(gpu, stream->queue);
    dvmm_vgpu_queue_orphan(gpu, stream->queue);
    dvmm_slots_give(&gpu->work.streams, stream);
    return DVMM_SUCCESS;
}

/* The queue of a stream that may be waited for or asked about now. The legacy stream stands for
 * the blocking ones too. */
static int queue_to_watch(vgpu *gpu, ductile_stream stream, vgpu_queue **out) {
    int code = dvmm_vgpu_find_queue(gpu, stream, out);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_check_prohibited_on(gpu, *out);
    }
    if (code == DVMM_SUCCESS && *out == gpu->work.legacy) {
        code = dvmm_vgpu_check_implicit(gpu, *out);
        code = code == DVMM_SUCCESS ? dvmm_vgpu_barrier(gpu, *out) : code;
    }
    return code;
}

int dvmm_vgpu_finish_wait(vgpu *gpu, int code) {
    dvmm_vgpu_progress(gpu, false);
    return code == DVMM_SUCCESS ? gpu->poison : code;
}

int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream) {
    vgpu_queue *queue;
    int code = queue_to_watch(gpu, stream, &queue);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_finish_wait(gpu, dvmm_vgpu_force_queue(gpu, queue));
    }
    if (code == DVMM_SUCCESS) {
        dvmm_vgpu_learn_queue(gpu, queue);
    }
    return code;
}

int dvmm_vgpu_stream_query(vgpu *gpu, ductile_stream stream) {
    vgpu_queue *queue;
    DTI_TRY(queue_to_watch(gpu, stream, &queue));
    dvmm_vgpu_progress(gpu, true);
    if (queue->first != NULL && gpu->poison == 0) {
        return DVMM_NOT_READY;
    }
    dvmm_vgpu_learn_queue(gpu, queue);
    return gpu->poison;
}

int dvmm_vgpu_stream_is_ours(vgpu *gpu, ductile_stream stream, int *out) {
    vgpu_queue *queue;
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    *out = code == DVMM_SUCCESS && !queue->is_foreign;
    return code;
}

int dvmm_vgpu_drain(vgpu *gpu) {
    int code = dvmm_vgpu_finish_wait(gpu, dvmm_vgpu_force_context(gpu));
    if (code == DVMM_SUCCESS) {
        dvmm_vgpu_learn_context_work(gpu);
    }
    return code;
}

int dvmm_vgpu_context_sync(vgpu *gpu) {
    DTI_TRY(dvmm_vgpu_check_no_capture(gpu));
    return dvmm_vgpu_drain(gpu);
}

/* ---- Issuing ------------------------------------------------------------------------------- */

int dvmm_vgpu_issue_in(vgpu *gpu, vgpu_queue *queue, vgpu_op *op) {
    if (op == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    if (queue->capture != NULL) {
        return dvmm_vgpu_record_captured(gpu, queue, op);
    }
    int code = dvmm_vgpu_check_implicit(gpu, queue);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_barrier(gpu, queue);
    }
    if (code != DVMM_SUCCESS) {
        dvmm_vgpu_op_free(op);
        return code;
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
    dvmm_vgpu_op_free(op);
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

static void free_streams(vgpu *gpu) {
    vgpu_work *work = &gpu->work;
    vgpu_stream *stream = dvmm_slots_next(&work->streams, 1);
    for (; stream != NULL; stream = dvmm_slots_next(&work->streams, stream->slot.number + 1)) {
        dvmm_vgpu_queue_orphan(gpu, stream->queue);
    }
    dvmm_slots_fini(&work->streams);
}

static void free_default_streams(vgpu *gpu) {
    vgpu_work *work = &gpu->work;
    vgpu_queue *legacy = work->legacy;
    work->legacy = NULL;
    if (legacy != NULL) {
        dvmm_vgpu_queue_orphan(gpu, legacy);
    }
    if (work->context != NULL) {
        dvmm_vgpu_queue_orphan(gpu, work->context);
    }
    while (work->thread_streams != NULL) {
        vgpu_thread_stream *stream = work->thread_streams;
        work->thread_streams = stream->next;
        if (stream->queue != NULL) {
            dvmm_vgpu_queue_orphan(gpu, stream->queue);
        }
        free(stream);
    }
}

void dvmm_vgpu_streams_fini(vgpu *gpu) {
    free_streams(gpu);
    free_default_streams(gpu);
}
