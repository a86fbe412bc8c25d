/* SPDX-License-Identifier: Apache-2.0 */
/* Work with memory; host memory. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_USES_H
#define DUCTILE_VMM_VIRTUAL_WORK_USES_H

#include "vmm/virtual/state/state.h"

/* Work with memory. Copies and fills check their spans when issued and again when they run; a
 * kernel's are not checked before it runs. */
int dvmm_vgpu_launch(vgpu *gpu, ductile_stream stream, const ductile_virtual_use *uses,
                     size_t n_uses);
int dvmm_vgpu_fill(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size, ductile_stream stream);
int dvmm_vgpu_copy(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size,
                   ductile_stream stream);
int dvmm_vgpu_upload(vgpu *gpu, ductile_addr to, const void *from, uint64_t size,
                     ductile_stream stream);
int dvmm_vgpu_download(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                       ductile_stream stream);
/* Issues the first n copies in their order, up to one that is refused. */
int dvmm_vgpu_copy_batch(vgpu *gpu, const dvmm_batch *batch, uint32_t n, ductile_stream stream);
int dvmm_vgpu_read_back(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                        ductile_stream stream);

/* Host memory, and waits for a word in it. */
void dvmm_vgpu_host_fini(vgpu *gpu);
int dvmm_vgpu_host_alloc(vgpu *gpu, uint64_t size, void **out);
int dvmm_vgpu_host_free(vgpu *gpu, void *memory);
int dvmm_vgpu_host_register(vgpu *gpu, void *memory, uint64_t size);
int dvmm_vgpu_host_unregister(vgpu *gpu, void *memory);
int dvmm_vgpu_stream_wait_value(vgpu *gpu, ductile_stream stream, const uint64_t *word,
                                uint64_t value);

#endif
