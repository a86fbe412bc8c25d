/* SPDX-License-Identifier: Apache-2.0 */
/* Which work comes before which, and what the host knows complete. */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_ORDER_H
#define DUCTILE_VMM_VIRTUAL_RACE_ORDER_H

#include "vmm/virtual/state.h"

/* Detection ends: the host has no memory. */
void dvmm_vgpu_stop_detecting(vgpu *gpu);
/* False when nothing is detected, or no more. */
bool dvmm_vgpu_detects(const vgpu *gpu);
/* The next piece of work of the queue. False: detection has ended. */
bool dvmm_vgpu_next_tick(vgpu *gpu, struct vgpu_queue *queue, vgpu_tick *out);
bool dvmm_vgpu_comes_after(const vgpu *gpu, const struct vgpu_queue *queue, vgpu_tick tick);
/* Later work of `queue` comes after the work of `on` so far, or after that of the marker. */
void dvmm_vgpu_order_after_queue(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_queue *on);
void dvmm_vgpu_order_after_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* The marker stands for the work of the queue so far. */
void dvmm_vgpu_order_marker(vgpu *gpu, struct vgpu_queue *queue, struct vgpu_marker *marker);
/* The host knows that work complete. */
void dvmm_vgpu_learn_marker(vgpu *gpu, const struct vgpu_marker *marker);
void dvmm_vgpu_learn_queue(vgpu *gpu, const struct vgpu_queue *queue);
/* All work of this device, and the work that it waited for. */
void dvmm_vgpu_learn_device_work(vgpu *gpu);
void dvmm_vgpu_order_fini_queue(vgpu *gpu, struct vgpu_queue *queue);

#endif
