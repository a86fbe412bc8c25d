/* SPDX-License-Identifier: Apache-2.0 */
/* From here on our names are those of cuda.h. So the parameter lists, expanded once more, must give
 * exactly the type that the header keeps for this version of the function. */
#ifndef DUCTILE_VMM_CUDA_ABI_THEIRS_H
#define DUCTILE_VMM_CUDA_ABI_THEIRS_H

#include "vmm/cuda/abi.h"

#define cu_result CUresult
#define cu_device CUdevice
#define cu_context CUcontext
#define cu_green_context CUgreenCtx
#define cu_device_attribute CUdevice_attribute
#define cu_granularity_option CUmemAllocationGranularity_flags
#define cu_capture_status CUstreamCaptureStatus
#define cu_capture_mode CUstreamCaptureMode
#define cu_handle_type CUmemAllocationHandleType
#define cu_location CUmemLocation
#define cu_phys_props CUmemAllocationProp
#define cu_access_desc CUmemAccessDesc

#endif
