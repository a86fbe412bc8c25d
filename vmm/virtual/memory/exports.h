/* SPDX-License-Identifier: Apache-2.0 */
/* Access of other devices; memory of other processes. */
#ifndef DUCTILE_VMM_VIRTUAL_MEMORY_EXPORTS_H
#define DUCTILE_VMM_VIRTUAL_MEMORY_EXPORTS_H

#include "vmm/virtual/state/state.h"

int dvmm_vgpu_can_access_peer(const vgpu *gpu, int device, int *out);
int dvmm_vgpu_set_access_for(vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access,
                             const int *devices, size_t n_devices);
int dvmm_vgpu_get_access_for(const vgpu *gpu, ductile_addr addr, int device, dvmm_access *out);
int dvmm_vgpu_phys_export(vgpu *gpu, dvmm_phys phys, dvmm_share_type type, dvmm_shared *out);
int dvmm_vgpu_phys_import(vgpu *gpu, const dvmm_shared *shared, dvmm_phys *out);
/* Frees memory that only descriptors kept alive, which are closed by now. */
void dvmm_vgpu_exports_sweep(vgpu *gpu);
void dvmm_vgpu_exports_fini(vgpu *gpu);

#endif
