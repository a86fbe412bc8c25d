/* SPDX-License-Identifier: Apache-2.0 */
/* The order of work, and the work that the host knows to be complete. */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_ORDER_H
#define DUCTILE_VMM_VIRTUAL_RACE_ORDER_H

#include "vmm/virtual/state/state.h"

/* Ends detection because the host has no memory. */
void dvmm_vgpu_stop_detecting(vgpu *gpu);
/* Is detection on? False also after it has ended. */
bool dvmm_vgpu_detects(const vgpu *gpu);
/* Counts the next piece of work of the queue. False: detection has ended. */
bool dvmm_vgpu_next_tick(vgpu *gpu, struct vgpu_queue *queue, vgpu_tick *out);
bool dvmm_vgpu_comes_after(const vgpu *gpu, const struct vgpu_queue *queue, vgpu_tick tick);
/* Orders later work of `queue` after the work of `on` so far, or after that of the marker. */
void dvmm_vgpu_order_after_queue(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_queue *on);
void dvmm_vgpu_order_after_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* Makes the marker stand for the work of the queue so far. */
void dvmm_vgpu_order_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* Records that the host knows that work to be complete. */
void dvmm_vgpu_learn_marker(vgpu *gpu, const struct vgpu_marker *marker);
void dvmm_vgpu_learn_queue(vgpu *gpu, const struct vgpu_queue *queue);
/* Records as complete all work of the context, and the work that it waited for. */
void dvmm_vgpu_learn_context_work(vgpu *gpu);
void dvmm_vgpu_order_fini_queue(vgpu *gpu, struct vgpu_queue *queue);

#endif
