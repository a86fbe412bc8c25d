/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the order of its capture, and the memory that it holds. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_SCRIPT_H
#define DUCTILE_VMM_VIRTUAL_WORK_SCRIPT_H

#include "vmm/virtual/state/state.h"

/* Takes ownership of the operation, also on failure. */
int dvmm_vgpu_script_add(vgpu *gpu, vgpu_script *script, vgpu_op *op);
void dvmm_vgpu_script_fini(vgpu *gpu, vgpu_script *script);
/* Until the second is called, others may unmap and move the memory that the script uses. */
void dvmm_vgpu_script_let_go(vgpu *gpu, vgpu_script *script);
void dvmm_vgpu_script_hold(vgpu *gpu, vgpu_script *script);
/* Takes ownership of the script on success. */
int dvmm_vgpu_graph_new(vgpu *gpu, vgpu_script *script, ductile_virtual_graph **out);

#endif
