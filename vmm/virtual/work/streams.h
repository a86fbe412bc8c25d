/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, and waiting for them. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_STREAMS_H
#define DUCTILE_VMM_VIRTUAL_WORK_STREAMS_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_streams_init(vgpu *gpu);
void dvmm_vgpu_streams_fini(vgpu *gpu);
int dvmm_vgpu_stream_create(vgpu *gpu, ductile_stream *out);
int dvmm_vgpu_stream_create_blocking(vgpu *gpu, ductile_stream *out);
int dvmm_vgpu_stream_create_on(vgpu *gpu, int device, ductile_stream *out);
/* Of another context on that device, which exists. */
int dvmm_vgpu_stream_create_foreign(vgpu *gpu, int device, ductile_stream *out);
int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_stream_query(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_stream_is_ours(vgpu *gpu, ductile_stream stream, int *out);
int dvmm_vgpu_context_sync(vgpu *gpu);
/* Runs all work of the context, and all work that it waits for. */
int dvmm_vgpu_drain(vgpu *gpu);
/* Appends work to a stream, or to the capture that it is in. Takes ownership of `op`, also on
 * failure; NULL means that the host had no memory for it. */
int dvmm_vgpu_issue_on(vgpu *gpu, ductile_stream stream, vgpu_op *op);
int dvmm_vgpu_issue_in(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* After a wait: runs the work that only waited for what has completed. Returns `code`, or the
 * poison. */
int dvmm_vgpu_finish_wait(vgpu *gpu, int code);

#endif
