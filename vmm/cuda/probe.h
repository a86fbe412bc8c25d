/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that a device can map memory. */
#ifndef DUCTILE_VMM_CUDA_PROBE_H
#define DUCTILE_VMM_CUDA_PROBE_H

#include "vmm/cuda/cuda_state.h"
#include "vmm/cuda/load.h"

/* Creates, maps, opens, checks, unmaps and releases one granule; undoes what it did on failure. */
ductile_status dvmm_cuda_probe(cuda_backend *b, const dvmm_caps *caps, cu_reason why);

#endif
