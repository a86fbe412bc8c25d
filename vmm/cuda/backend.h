/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the seam on libcuda. */
#ifndef DUCTILE_VMM_CUDA_BACKEND_H
#define DUCTILE_VMM_CUDA_BACKEND_H

#include "vmm/cuda/cuda_state.h"

extern const dvmm_driver_ops dvmm_cuda_ops;

/* The properties for cuMemCreate, and for the query of the granule. */
cu_phys_props dvmm_cuda_props(const cuda_backend *b, const dvmm_phys_props *props);

#endif
