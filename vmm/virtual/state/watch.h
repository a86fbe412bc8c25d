/* SPDX-License-Identifier: Apache-2.0 */
/* Planned faults, violations and the call log. */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_WATCH_H
#define DUCTILE_VMM_VIRTUAL_STATE_WATCH_H

#include "vmm/virtual/state/state.h"

bool dvmm_vgpu_watch_init(vgpu *gpu);
void dvmm_vgpu_watch_fini(vgpu *gpu);
/* DVMM_N_ALL_CALLS: no call has that name. */
vgpu_call dvmm_vgpu_call_named(const char *name);
const char *dvmm_vgpu_call_name(vgpu_call call);
/* The planned fault for this call; NULL when there is none. */
const ductile_virtual_fault *dvmm_vgpu_fault_for(vgpu *gpu, vgpu_call call);
void dvmm_vgpu_log(vgpu *gpu, vgpu_call call, uint64_t address, uint64_t size, int code);
/* Records a mistake that the hardware does not report. */
void dvmm_vgpu_violation(vgpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Records a detected conflict. `first` may be all zero: not known. */
void dvmm_vgpu_report(vgpu *gpu, ductile_violation kind, const ductile_virtual_side *first,
                      const ductile_virtual_side *second);
void dvmm_vgpu_poison(vgpu *gpu, int code);

#endif
