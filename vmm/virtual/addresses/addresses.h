/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations, and the table from granules to mappings. */
#ifndef DUCTILE_VMM_VIRTUAL_ADDRESSES_ADDRESSES_H
#define DUCTILE_VMM_VIRTUAL_ADDRESSES_ADDRESSES_H

#include "vmm/virtual/state/state.h"

bool dvmm_vgpu_addresses_init(vgpu *gpu);
void dvmm_vgpu_addresses_fini(vgpu *gpu);
bool dvmm_vgpu_is_granules(const vgpu *gpu, uint64_t n);
/* The reservation that holds all of the span, or NULL; valid until the next reservation. */
vgpu_range *dvmm_vgpu_range_of(const vgpu *gpu, ductile_addr addr, uint64_t size);
/* The reservation in which a mapping of the span would start, or NULL when there is none or the
 * span reaches into the next one. */
vgpu_range *dvmm_vgpu_range_to_map(const vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_address_reserve(vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr hint,
                              ductile_addr *out);
int dvmm_vgpu_address_free(vgpu *gpu, ductile_addr addr, uint64_t size);
/* The mapping that holds the address, or NULL. */
vgpu_mapping *dvmm_vgpu_mapping_at(const vgpu *gpu, ductile_addr addr);
/* Points the granules of a span at a mapping; 0 always succeeds. Pre: inside the space. */
bool dvmm_vgpu_point_at(vgpu *gpu, ductile_addr addr, uint64_t size, uint32_t mapping_number);

#endif
