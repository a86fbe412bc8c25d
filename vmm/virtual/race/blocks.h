/* SPDX-License-Identifier: Apache-2.0 */
/* Live blocks that the program has announced. */
#ifndef DUCTILE_VMM_VIRTUAL_RACE_BLOCKS_H
#define DUCTILE_VMM_VIRTUAL_RACE_BLOCKS_H

#include "vmm/virtual/state/state.h"

void dvmm_vgpu_block_begin(vgpu *gpu, ductile_addr address, uint64_t size);
void dvmm_vgpu_block_end(vgpu *gpu, ductile_addr address);
/* The live block that holds all of the span, which lies in one mapping; 0 when there is none. */
uint64_t dvmm_vgpu_block_at(const struct vgpu_mapping *mapping, ductile_addr address,
                            uint64_t size);
/* A live block in the memory of the mapping; 0 when there is none. */
uint64_t dvmm_vgpu_block_behind(const struct vgpu_mapping *mapping);
/* Are blocks announced in the reservation of the address? */
bool dvmm_vgpu_is_announced(const vgpu *gpu, ductile_addr address);

#endif
