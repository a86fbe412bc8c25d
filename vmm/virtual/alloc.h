/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc. */
#ifndef DUCTILE_VMM_VIRTUAL_ALLOC_H
#define DUCTILE_VMM_VIRTUAL_ALLOC_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_alloc_fini(vgpu *gpu);
int dvmm_vgpu_mem_alloc(vgpu *gpu, uint64_t size, ductile_addr *out);
int dvmm_vgpu_mem_free(vgpu *gpu, ductile_addr addr);
/* The size of the live allocation that starts there; 0 when there is none. */
uint64_t dvmm_vgpu_allocation_size(const vgpu *gpu, ductile_addr addr);

#endif
