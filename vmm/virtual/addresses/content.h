/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of memory. */
#ifndef DUCTILE_VMM_VIRTUAL_ADDRESSES_CONTENT_H
#define DUCTILE_VMM_VIRTUAL_ADDRESSES_CONTENT_H

#include "vmm/virtual/state/state.h"

/* Pre of all functions: the span is mapped. They return false when the host has no memory left;
 * contents are lost then. */
bool dvmm_vgpu_write_value(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size);
bool dvmm_vgpu_write_bytes(vgpu *gpu, ductile_addr to, const uint8_t *bytes, uint64_t size);
bool dvmm_vgpu_copy_bytes(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size);
void dvmm_vgpu_read_bytes(const vgpu *gpu, uint8_t *to, ductile_addr from, uint64_t size);
void dvmm_vgpu_content_fini(vgpu_content *content);

#endif
