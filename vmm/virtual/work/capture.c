/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: which calls it prohibits, in which mode, and which captures such a call breaks.
 * The work that it records goes to a graph (graph.c), or is dropped.
 *
 * Work of a stream that joined has to be joined back before the end. Only one step of that is
 * checked: some member has to wait for it. Whether that member is joined in turn is not checked.
 */
#include "vmm/virtual/work/capture.h"

#include "vmm/base/array.h"
#include "vmm/base/lock.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"
#include "vmm/virtual/work/script.h"
#include "vmm/virtual/work/work.h"

#include <stdlib.h>

static _Thread_local dvmm_capture_mode thread_mode = DVMM_CAPTURE_GLOBAL;

static bool is_mode(dvmm_capture_mode mode) {
    return mode == DVMM_CAPTURE_GLOBAL || mode == DVMM_CAPTURE_THREAD_LOCAL ||
           mode == DVMM_CAPTURE_RELAXED;
}

/* The hardware accepts a mode that does not exist, with unknown effect: here it has none. */
int dvmm_vgpu_capture_exchange_mode(vgpu *gpu, dvmm_capture_mode *mode) {
    dvmm_capture_mode before = thread_mode;
    if (is_mode(*mode)) {
        thread_mode = *mode;
    } else {
        dvmm_vgpu_violation(gpu, "exchange to capture mode %d, which does not exist", (int)*mode);
    }
    *mode = before;
    return DVMM_SUCCESS;
}

/* ---- Prohibited calls ---------------------------------------------------------------------- */

/* Whether the capture keeps this thread from making calls that capture prohibits. */
static bool bars_this_thread(const vgpu_capture *capture) {
    if (thread_mode == DVMM_CAPTURE_RELAXED || capture->is_broken) {
        return false;
    }
    bool is_mine = capture->thread == dti_thread_number();
    bool bars_me = is_mine && capture->mode != DVMM_CAPTURE_RELAXED;
    bool bars_all = capture->mode == DVMM_CAPTURE_GLOBAL && thread_mode == DVMM_CAPTURE_GLOBAL;
    return bars_me || bars_all;
}

/* A call that those captures forbid breaks them. */
static int break_captures(vgpu *gpu, bool (*forbids)(const vgpu_capture *capture)) {
    int code = DVMM_SUCCESS;
    for (vgpu_capture *capture = gpu->work.captures; capture != NULL; capture = capture->next) {
        if (forbids(capture)) {
            capture->is_broken = true;
            code = DVMM_CAPTURE_UNSUPPORTED;
        }
    }
    return code;
}

int dvmm_vgpu_check_prohibited(vgpu *gpu) {
    return break_captures(gpu, bars_this_thread);
}

static bool is_any(const vgpu_capture *capture) {
    return capture != NULL;
}

int dvmm_vgpu_check_no_capture(vgpu *gpu) {
    return break_captures(gpu, is_any);
}

static bool has_stream_here(const vgpu_capture *capture) {
    const vgpu_queue *queue = capture->members;
    while (queue != NULL && queue->is_foreign) {
        queue = queue->next_captured;
    }
    return queue != NULL;
}

int dvmm_vgpu_check_context_capture(vgpu *gpu) {
    return break_captures(gpu, has_stream_here);
}

static int refuse(vgpu_capture *capture, int code) {
    if (capture != NULL) {
        capture->is_broken = true;
    }
    return code;
}

static int check_not_captured(const vgpu_queue *queue) {
    return queue->capture != NULL ? refuse(queue->capture, DVMM_CAPTURE_UNSUPPORTED) : DVMM_SUCCESS;
}

int dvmm_vgpu_check_prohibited_on(vgpu *gpu, const vgpu_queue *queue) {
    DTI_TRY(check_not_captured(queue));
    return dvmm_vgpu_check_prohibited(gpu);
}

int dvmm_vgpu_check_recording(const vgpu_queue *queue) {
    return queue->capture->is_broken ? DVMM_CAPTURE_INVALIDATED : DVMM_SUCCESS;
}

int dvmm_vgpu_record_captured(vgpu *gpu, vgpu_queue *queue, vgpu_op *op) {
    queue->loose_step = ++queue->capture->n_steps;
    int code = dvmm_vgpu_check_recording(queue);
    if (code != DVMM_SUCCESS) {
        dvmm_vgpu_op_free(op);
        return code;
    }
    return dvmm_vgpu_script_add(gpu, &queue->capture->script, op);
}

int dvmm_vgpu_check_implicit(vgpu *gpu, const vgpu_queue *queue) {
    const vgpu_queue *other = queue == gpu->work.legacy ? gpu->work.blocking : NULL;
    int code = DVMM_SUCCESS;
    for (; other != NULL; other = other->next_blocking) {
        if (other->capture != NULL) {
            code = refuse(other->capture, DVMM_CAPTURE_IMPLICIT);
        }
    }
    return code;
}

/* ---- Begin, join, end ---------------------------------------------------------------------- */

static void add_member(vgpu_capture *capture, vgpu_queue *queue) {
    queue->capture = capture;
    queue->loose_step = 0;
    queue->next_captured = capture->members;
    capture->members = queue;
}

static vgpu_capture *find_capture(const vgpu *gpu, uint64_t id) {
    vgpu_capture *capture = gpu->work.captures;
    while (capture != NULL && capture->id != id) {
        capture = capture->next;
    }
    return capture;
}

/* An event of a capture stands for a place in a graph: no mode makes it one in time. Once the
 * graph is gone it stands for nothing. */
int dvmm_vgpu_watch_captured(vgpu *gpu, const vgpu_event *event) {
    vgpu_capture *capture = find_capture(gpu, event->capture_id);
    return capture != NULL ? refuse(capture, DVMM_CAPTURED_EVENT) : DVMM_INVALID_VALUE;
}

/* Some member waits for the event, so what its queue had recorded until then is joined. */
static void join_work(const vgpu_capture *capture, const vgpu_queue *waiter,
                      const vgpu_event *event) {
    for (vgpu_queue *queue = capture->members; queue != NULL; queue = queue->next_captured) {
        if (queue->id == event->captured_queue && queue != waiter &&
            queue->loose_step <= event->captured_step) {
            queue->loose_step = 0;
        }
    }
}

static bool has_loose_work(const vgpu_capture *capture) {
    const vgpu_queue *queue = capture->members;
    while (queue != NULL && (queue == capture->origin || queue->loose_step == 0)) {
        queue = queue->next_captured;
    }
    return queue != NULL;
}

/* A queue that waits for an event of a capture joins it. A captured queue cannot wait for what
 * happens outside, nor for another capture. */
int dvmm_vgpu_wait_captured(vgpu *gpu, vgpu_queue *queue, const vgpu_event *event) {
    if (queue->capture != NULL && queue->capture->is_broken) {
        return DVMM_CAPTURE_INVALIDATED;
    }
    if (event->capture_id == 0) {
        bool never_recorded = event->marker == NULL;
        return never_recorded ? DVMM_SUCCESS : refuse(queue->capture, DVMM_CAPTURE_ISOLATION);
    }
    vgpu_capture *capture = find_capture(gpu, event->capture_id);
    if (capture == NULL) {
        return refuse(queue->capture, DVMM_INVALID_VALUE);
    }
    if (queue->capture != NULL && queue->capture != capture) {
        return refuse(queue->capture, refuse(capture, DVMM_CAPTURE_MERGE));
    }
    if (queue == gpu->work.legacy) {
        return refuse(capture, DVMM_CAPTURE_IMPLICIT);
    }
    if (queue->capture == NULL) {
        add_member(capture, queue);
    }
    join_work(capture, queue, event);
    return DVMM_SUCCESS;
}

int dvmm_vgpu_capture_begin(vgpu *gpu, ductile_stream stream, dvmm_capture_mode mode) {
    vgpu_queue *queue;
    int code = dvmm_vgpu_find_queue(gpu, stream, &queue);
    if (code != DVMM_SUCCESS || !is_mode(mode)) {
        return code != DVMM_SUCCESS ? code : DVMM_INVALID_VALUE;
    }
    if (queue == gpu->work.legacy || queue->capture != NULL) {
        return queue->capture != NULL ? DVMM_ILLEGAL_STATE : DVMM_CAPTURE_UNSUPPORTED;
    }
    vgpu_capture *capture = calloc(1, sizeof(*capture));
    if (capture == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    capture->id = ++gpu->work.next_id;
    capture->thread = dti_thread_number();
    capture->mode = mode;
    capture->origin = queue;
    capture->next = gpu->work.captures;
    gpu->work.captures = capture;
    add_member(capture, queue);
    return DVMM_SUCCESS;
}

static void end(vgpu *gpu, vgpu_capture *capture) {
    while (capture->members != NULL) {
        vgpu_queue *queue = capture->members;
        capture->members = queue->next_captured;
        queue->capture = NULL;
    }
    DTI_UNLINK(gpu->work.captures, capture, next);
    dvmm_vgpu_script_fini(gpu, &capture->script);
    free(capture);
}

/* Whatever it is, the capture is over. */
static int code_at_end(const vgpu_capture *capture) {
    if (capture->mode != DVMM_CAPTURE_RELAXED && capture->thread != dti_thread_number()) {
        return DVMM_CAPTURE_WRONG_THREAD;
    }
    if (capture->is_broken) {
        return DVMM_CAPTURE_INVALIDATED;
    }
    return has_loose_work(capture) ? DVMM_CAPTURE_UNJOINED : DVMM_SUCCESS;
}

int dvmm_vgpu_capture_end(vgpu *gpu, ductile_stream stream, ductile_virtual_graph **graph) {
    vgpu_queue *queue;
    DTI_TRY(dvmm_vgpu_find_queue(gpu, stream, &queue));
    vgpu_capture *capture = queue->capture;
    if (capture == NULL) {
        return DVMM_ILLEGAL_STATE;
    }
    if (capture->origin != queue) {
        return refuse(capture, DVMM_CAPTURE_UNMATCHED);
    }
    int code = code_at_end(capture);
    if (code == DVMM_SUCCESS && graph != NULL) {
        code = dvmm_vgpu_graph_new(gpu, &capture->script, graph);
    }
    end(gpu, capture);
    return code;
}

/* A capture cannot end without its origin. */
void dvmm_vgpu_capture_lost_stream(vgpu *gpu, vgpu_queue *queue) {
    vgpu_capture *capture = queue->capture;
    if (capture == NULL) {
        return;
    }
    if (capture->origin == queue) {
        end(gpu, capture);
        return;
    }
    DTI_UNLINK(capture->members, queue, next_captured);
    capture->is_broken = true;
}

/* ---- Status -------------------------------------------------------------------------------- */

/* The legacy stream waits for the blocking ones: while one of them is captured, it cannot even be
 * asked. */
static bool captures_a_blocking_stream(const vgpu *gpu) {
    const vgpu_queue *queue = gpu->work.blocking;
    while (queue != NULL && queue->capture == NULL) {
        queue = queue->next_blocking;
    }
    return queue != NULL;
}

int dvmm_vgpu_capture_status_of(vgpu *gpu, ductile_stream stream, dvmm_capture_status *out) {
    vgpu_queue *queue;
    DTI_TRY(dvmm_vgpu_find_queue(gpu, stream, &queue));
    if (queue == gpu->work.legacy && captures_a_blocking_stream(gpu)) {
        return DVMM_CAPTURE_IMPLICIT;
    }
    *out = DVMM_CAPTURE_NONE;
    if (queue->capture != NULL) {
        *out = queue->capture->is_broken ? DVMM_CAPTURE_BROKEN : DVMM_CAPTURE_ACTIVE;
    }
    return DVMM_SUCCESS;
}

void dvmm_vgpu_capture_fini(vgpu *gpu) {
    while (gpu->work.captures != NULL) {
        end(gpu, gpu->work.captures);
    }
}
