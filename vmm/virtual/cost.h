/* SPDX-License-Identifier: Apache-2.0 */
/* What a call costs. */
#ifndef DUCTILE_VMM_VIRTUAL_COST_H
#define DUCTILE_VMM_VIRTUAL_COST_H

#include "vmm/virtual/state/state.h"

/* What one call costs, in ns; `n` is how many mappings of `size` bytes in all it touches. Pure. */
uint64_t dvmm_vgpu_cost_ns(vgpu_call call, uint64_t size, uint64_t n);

/* What phys_create costs of memory of the host, which is page-locked. Pure. */
uint64_t dvmm_vgpu_host_create_ns(uint64_t size);

#endif
