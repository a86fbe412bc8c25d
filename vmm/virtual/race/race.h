/* SPDX-License-Identifier: Apache-2.0 */
/* Which work touched which bytes, and whether two touches have an order. */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_RACE_H
#define DUCTILE_VMM_VIRTUAL_RACE_RACE_H

#include "vmm/virtual/state.h"

/* Before the operation joins the queue. */
void dvmm_vgpu_race_issue(vgpu *gpu, struct vgpu_queue *queue, const struct vgpu_op *op);
/* The host reads the bytes now. */
void dvmm_vgpu_race_read(vgpu *gpu, ductile_addr from, uint64_t size);
/* The mapping is about to go, or to allow less. */
void dvmm_vgpu_race_unmap(vgpu *gpu, const struct vgpu_mapping *mapping);
void dvmm_vgpu_race_close(vgpu *gpu, const struct vgpu_mapping *mapping);
/* The handle is about to get an address. */
void dvmm_vgpu_race_map(vgpu *gpu, const struct vgpu_phys *phys, ductile_addr addr);
void dvmm_vgpu_shadow_fini(vgpu_shadow *shadow);
void dvmm_vgpu_users_fini(vgpu_users *users);

#endif
