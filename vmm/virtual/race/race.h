/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of conflicting uses of memory. */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_RACE_H
#define DUCTILE_VMM_VIRTUAL_RACE_RACE_H

#include "vmm/virtual/state/state.h"

/* Called before the operation joins the queue. */
void dvmm_vgpu_race_issue(vgpu *gpu, struct vgpu_queue *queue, const struct vgpu_op *op);
/* Called when the host reads the bytes. */
void dvmm_vgpu_race_read(vgpu *gpu, ductile_addr from, uint64_t size);
/* Called before the mapping goes, or allows one device less access. */
void dvmm_vgpu_race_unmap(vgpu *gpu, const struct vgpu_mapping *mapping);
void dvmm_vgpu_race_close(vgpu *gpu, const struct vgpu_mapping *mapping, int device);
/* Called before the handle gets an address. */
void dvmm_vgpu_race_map(vgpu *gpu, const struct vgpu_phys *phys, ductile_addr addr);
void dvmm_vgpu_shadow_fini(vgpu_shadow *shadow);
void dvmm_vgpu_users_fini(vgpu_users *users);

#endif
