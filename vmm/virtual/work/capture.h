/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_CAPTURE_H
#define DUCTILE_VMM_VIRTUAL_WORK_CAPTURE_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_capture_fini(vgpu *gpu);
/* SUCCESS when this thread may make a call that a capture prohibits; otherwise CAPTURE_UNSUPPORTED,
 * and the captures that prohibit it are broken, as on hardware. */
int dvmm_vgpu_check_prohibited(vgpu *gpu);
/* SUCCESS when a call may wait for the queue or query it. Prohibited while the queue is captured,
 * in any mode: CAPTURE_UNSUPPORTED, and the capture is broken. */
int dvmm_vgpu_check_prohibited_on(vgpu *gpu, const vgpu_queue *queue);
/* SUCCESS when no capture of any mode is under way; otherwise CAPTURE_UNSUPPORTED, and the captures
 * are broken. */
int dvmm_vgpu_check_no_capture(vgpu *gpu);
/* SUCCESS when no stream of the context is captured, in whatever mode; otherwise
 * CAPTURE_UNSUPPORTED, and those captures are broken. */
int dvmm_vgpu_check_context_capture(vgpu *gpu);
/* SUCCESS when the capture that the queue is in still records. */
int dvmm_vgpu_check_recording(const vgpu_queue *queue);
/* Adds an operation of a captured queue to its capture. Takes ownership of it, also on failure. */
int dvmm_vgpu_record_captured(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* The code for a wait for, or a query of, an event of a capture; breaks the capture. */
int dvmm_vgpu_watch_captured(vgpu *gpu, const vgpu_event *event);
/* A stream's wait for the event, where the queue or the event is captured: joins, or refuses. */
int dvmm_vgpu_wait_captured(vgpu *gpu, vgpu_queue *queue, const vgpu_event *event);
/* Called when the handle of the stream is gone. */
void dvmm_vgpu_capture_lost_stream(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_capture_status_of(vgpu *gpu, ductile_stream stream, dvmm_capture_status *out);
int dvmm_vgpu_capture_begin(vgpu *gpu, ductile_stream stream, dvmm_capture_mode mode);
/* graph: NULL drops what was captured. */
int dvmm_vgpu_capture_end(vgpu *gpu, ductile_stream stream, ductile_virtual_graph **graph);
int dvmm_vgpu_capture_exchange_mode(vgpu *gpu, dvmm_capture_mode *mode);
/* Work with the legacy stream while a blocking one is captured would be captured with it. */
int dvmm_vgpu_check_implicit(vgpu *gpu, const vgpu_queue *queue);

#endif
