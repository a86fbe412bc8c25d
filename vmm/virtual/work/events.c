/* SPDX-License-Identifier: Apache-2.0 */
/* Events of the virtual GPU, and waits of streams for them. */
#include "vmm/virtual/work/events.h"

#include "vmm/virtual/race/order.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/capture.h"
#include "vmm/virtual/work/streams.h"
#include "vmm/virtual/work/work.h"

static vgpu_event *find_event(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event = dvmm_slots_find_handle(&gpu->work.events, handle);
    if (event == NULL) {
        dvmm_vgpu_violation(gpu, "use of event %p, which does not exist", (void *)handle);
    }
    return event;
}

static int find_both(vgpu *gpu, dvmm_event handle, ductile_stream stream, vgpu_event **event,
                     vgpu_queue **queue) {
    *event = find_event(gpu, handle);
    int code = dvmm_vgpu_find_queue(gpu, stream, queue);
    return *event == NULL ? DVMM_INVALID_HANDLE : code;
}

/* ---- Events -------------------------------------------------------------------------------- */

int dvmm_vgpu_event_create(vgpu *gpu, dvmm_event *out) {
    vgpu_event *event = dvmm_slots_take(&gpu->work.events);
    if (event == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    *out = dvmm_slots_handle(event);
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
    int code = dvmm_vgpu_check_recording(queue);
    if (code == DVMM_SUCCESS) {
        set_marker(event, NULL, queue->capture->id);
        event->captured_queue = queue->id;
        event->captured_step = queue->capture->n_steps;
    }
    return code;
}

static bool have_parts(vgpu *gpu, const vgpu_queue *queue, vgpu_marker *marker) {
    return queue != gpu->work.context || dvmm_vgpu_add_parts(gpu, marker);
}

int dvmm_vgpu_record_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker **out) {
    vgpu_marker *marker = dvmm_vgpu_marker_new(queue);
    bool is_ready = marker != NULL && have_parts(gpu, queue, marker);
    vgpu_op *op = is_ready ? dvmm_vgpu_marker_op(VGPU_OP_RECORD, marker) : NULL;
    if (op == NULL) {
        dvmm_vgpu_marker_drop(marker);
        return DVMM_OUT_OF_MEMORY;
    }
    int code = dvmm_vgpu_issue_in(gpu, queue, op);
    bool is_issued = code == DVMM_SUCCESS || code == gpu->poison;
    if (!is_issued) {
        dvmm_vgpu_marker_drop(marker);
    }
    *out = is_issued ? marker : NULL;
    return code;
}

static int record(vgpu *gpu, vgpu_queue *queue, vgpu_event *event) {
    vgpu_marker *marker = NULL;
    int code = dvmm_vgpu_record_in(gpu, queue, &marker);
    if (marker != NULL) {
        set_marker(event, marker, 0);
    }
    return code;
}

int dvmm_vgpu_event_record(vgpu *gpu, dvmm_event handle, ductile_stream stream) {
    vgpu_queue *queue;
    vgpu_event *event;
    DTI_TRY(find_both(gpu, handle, stream, &event, &queue));
    return queue->capture != NULL ? record_captured(queue, event) : record(gpu, queue, event);
}

/* The event has a queue of its own, so that the schedule holds it back where no stream has work. */
int dvmm_vgpu_context_record(vgpu *gpu, dvmm_event handle) {
    vgpu_queue *queue;
    if (gpu->options.no_context_events != 0) {
        return DVMM_NOT_SUPPORTED;
    }
    vgpu_event *event = find_event(gpu, handle);
    int code = event != NULL ? dvmm_vgpu_check_context_capture(gpu) : DVMM_INVALID_HANDLE;
    code = code == DVMM_SUCCESS ? dvmm_vgpu_context_queue(gpu, &queue) : code;
    return code == DVMM_SUCCESS ? record(gpu, queue, event) : code;
}

static int event_to_watch(vgpu *gpu, dvmm_event handle, vgpu_event **out) {
    *out = find_event(gpu, handle);
    if (*out == NULL) {
        return DVMM_INVALID_HANDLE;
    }
    return (*out)->capture_id != 0 ? dvmm_vgpu_watch_captured(gpu, *out)
                                   : dvmm_vgpu_check_prohibited(gpu);
}

/* The hardware answers "done" for an event that was never recorded. A caller that asks has lost a
 * record, and takes memory in use for free. */
int dvmm_vgpu_event_query(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event;
    DTI_TRY(event_to_watch(gpu, handle, &event));
    dvmm_vgpu_progress(gpu, true);
    if (event->marker == NULL) {
        dvmm_vgpu_violation(gpu, "event_query of %p, which was never recorded", (void *)handle);
        return gpu->poison;
    }
    if (!event->marker->is_done && gpu->poison == 0) {
        return DVMM_NOT_READY;
    }
    dvmm_vgpu_learn_marker(gpu, event->marker);
    return gpu->poison;
}

int dvmm_vgpu_event_sync(vgpu *gpu, dvmm_event handle) {
    vgpu_event *event;
    int code = event_to_watch(gpu, handle, &event);
    if (code != DVMM_SUCCESS || event->marker == NULL) {
        return code;
    }
    code = dvmm_vgpu_force_marker(gpu, event->marker);
    if (code == DVMM_SUCCESS) {
        dvmm_vgpu_learn_marker(gpu, event->marker);
    }
    return dvmm_vgpu_finish_wait(gpu, code);
}

/* ---- Waits on the device ------------------------------------------------------------------- */

int dvmm_vgpu_wait_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker *marker) {
    return dvmm_vgpu_issue_in(gpu, queue, dvmm_vgpu_marker_op(VGPU_OP_WAIT, marker));
}

int dvmm_vgpu_stream_wait_event(vgpu *gpu, ductile_stream stream, dvmm_event handle) {
    vgpu_queue *queue;
    vgpu_event *event;
    DTI_TRY(find_both(gpu, handle, stream, &event, &queue));
    if (queue->capture != NULL || event->capture_id != 0) {
        return dvmm_vgpu_wait_captured(gpu, queue, event);
    }
    return event->marker == NULL ? DVMM_SUCCESS : dvmm_vgpu_wait_in(gpu, queue, event->marker);
}

int dvmm_vgpu_stream_wait_stream(vgpu *gpu, ductile_stream stream, ductile_stream on) {
    dvmm_event event;
    DTI_TRY(dvmm_vgpu_event_create(gpu, &event));
    int code = dvmm_vgpu_event_record(gpu, event, on);
    if (code == DVMM_SUCCESS) {
        code = dvmm_vgpu_stream_wait_event(gpu, stream, event);
    }
    (void)dvmm_vgpu_event_destroy(gpu, event);
    return code;
}

/* ---- The end ------------------------------------------------------------------------------- */

void dvmm_vgpu_events_fini(vgpu_work *work) {
    vgpu_event *event = dvmm_slots_next(&work->events, 1);
    for (; event != NULL; event = dvmm_slots_next(&work->events, event->slot.number + 1)) {
        dvmm_vgpu_marker_drop(event->marker);
    }
    dvmm_slots_fini(&work->events);
}
