/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of work, and when it runs. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_WORK_H
#define DUCTILE_VMM_VIRTUAL_WORK_WORK_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_work_fini(vgpu *gpu);
vgpu_queue *dvmm_vgpu_queue_new(vgpu *gpu);
/* The queue of a stream or of a default stream, which is created when it is first used. */
int dvmm_vgpu_find_queue(vgpu *gpu, ductile_stream stream, vgpu_queue **out);
/* Called when the handle of the stream is gone: the queue is freed once it has run. */
void dvmm_vgpu_queue_orphan(vgpu *gpu, vgpu_queue *queue);
/* Makes the queue and the legacy stream wait for each other from now on. */
int dvmm_vgpu_queue_block(vgpu *gpu, vgpu_queue *queue);
/* Makes later work of the queue wait as the rules of the legacy stream demand. */
int dvmm_vgpu_barrier(vgpu *gpu, vgpu_queue *queue);
/* NULL when the host has no memory. */
vgpu_op *dvmm_vgpu_op_new(vgpu_op_kind kind, size_t n_uses);
void dvmm_vgpu_op_free(vgpu_op *op);
/* Takes ownership of the operation. Pre: the queue is in no capture. */
void dvmm_vgpu_enqueue(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* An operation that holds one more reference to the marker; NULL: the host has no memory. */
vgpu_op *dvmm_vgpu_marker_op(vgpu_op_kind kind, vgpu_marker *marker);
vgpu_marker *dvmm_vgpu_marker_new(vgpu_queue *queue);
void dvmm_vgpu_marker_drop(vgpu_marker *marker);
/* The queue of events behind all work of the context: a marker recorded in it has to get
 * its parts first. */
int dvmm_vgpu_context_queue(vgpu *gpu, vgpu_queue **out);
/* Records a part of the marker in each queue of the context that has work. False: the host has no
 * memory. */
bool dvmm_vgpu_add_parts(vgpu *gpu, vgpu_marker *marker);
/* Runs all work that may run. `roll`: throws the dice of the random schedule first. */
void dvmm_vgpu_progress(vgpu *gpu, bool roll);
/* Run all that has to run first, and it. UNKNOWN: it waits for a host word that is freed. */
int dvmm_vgpu_force_queue(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_force_marker(vgpu *gpu, vgpu_marker *marker);
int dvmm_vgpu_force_context(vgpu *gpu);
/* Ends the wait of operations that wait for a word in that memory. */
void dvmm_vgpu_forget_words(vgpu *gpu, const vgpu_host_block *block);

#endif
