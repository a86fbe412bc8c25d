/* SPDX-License-Identifier: Apache-2.0 */
/* Physical handles and their mappings. */
#ifndef DUCTILE_VMM_VIRTUAL_MEMORY_MEMORY_H
#define DUCTILE_VMM_VIRTUAL_MEMORY_MEMORY_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_memory_init(vgpu *gpu);
void dvmm_vgpu_memory_fini(vgpu *gpu);
int dvmm_vgpu_phys_create(vgpu *gpu, uint64_t size, const dvmm_phys_props *props, dvmm_phys *out);
int dvmm_vgpu_phys_release(vgpu *gpu, dvmm_phys phys);
vgpu_phys *dvmm_vgpu_find_phys(const vgpu *gpu, dvmm_phys phys);
int dvmm_vgpu_map(vgpu *gpu, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys);
int dvmm_vgpu_unmap(vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_set_device_access(vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                                dvmm_access access);
dvmm_access dvmm_vgpu_access_of(const vgpu_mapping *mapping, int device);
/* Maps without checking for a reservation. */
int dvmm_vgpu_map_anywhere(vgpu *gpu, ductile_addr addr, vgpu_phys *phys, dvmm_access access);
void dvmm_vgpu_drop_mapping(vgpu *gpu, vgpu_mapping *mapping);
void dvmm_vgpu_drop_ref(vgpu *gpu, vgpu_phys *phys);
/* Is all of the span mapped with at least that access? */
bool dvmm_vgpu_is_accessible(const vgpu *gpu, ductile_addr addr, uint64_t size, int device,
                             dvmm_access access);
uint64_t dvmm_vgpu_count_mappings(const vgpu *gpu, ductile_addr addr, uint64_t size);

#endif
