/* SPDX-License-Identifier: Apache-2.0 */
/* Events, and waits for them. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_EVENTS_H
#define DUCTILE_VMM_VIRTUAL_WORK_EVENTS_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_events_fini(vgpu_work *work);
int dvmm_vgpu_event_create(vgpu *gpu, dvmm_event *out);
int dvmm_vgpu_event_destroy(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_record(vgpu *gpu, dvmm_event event, ductile_stream stream);
/* Behind all work of the context. */
int dvmm_vgpu_context_record(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_query(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_sync(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_stream_wait_event(vgpu *gpu, ductile_stream stream, dvmm_event event);
int dvmm_vgpu_stream_wait_stream(vgpu *gpu, ductile_stream stream, ductile_stream on);
/* Pre: the queue is in no capture. */
int dvmm_vgpu_wait_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker *marker);
int dvmm_vgpu_record_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker **out);

#endif
