/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares Ductile's own declarations of the driver's interface with cuda.h, where there is one.
 * Everything happens at compile time; a difference is an error that names its line. Without the
 * header nothing is compared and nothing is lost: the declarations are the same ones.
 */
#include "vmm/cuda/abi_check.h"

/* A file may not be empty of declarations. */
_Static_assert(sizeof(ductile_addr) == 8 && sizeof(void *) == 8, "a 64-bit system is needed");

#ifdef FOUND_CUDA_HEADERS

/* ---- Structs ------------------------------------------------------------------------------- */

SAME_SIZE(cu_location, CUmemLocation);
SAME_PLACE(cu_location, type, CUmemLocation, type);
SAME_PLACE(cu_location, id, CUmemLocation, id);

SAME_SIZE(cu_phys_props, CUmemAllocationProp);
SAME_PLACE(cu_phys_props, type, CUmemAllocationProp, type);
SAME_PLACE(cu_phys_props, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(cu_phys_props, location, CUmemAllocationProp, location);
SAME_PLACE(cu_phys_props, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(cu_phys_props, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(cu_phys_props, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(cu_phys_props, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_PLACE(cu_phys_props, flags.reserved, CUmemAllocationProp, allocFlags.reserved);

SAME_SIZE(cu_access_desc, CUmemAccessDesc);
SAME_PLACE(cu_access_desc, location, CUmemAccessDesc, location);
SAME_PLACE(cu_access_desc, flags, CUmemAccessDesc, flags);

#if CUDA_VERSION >= 12080
SAME_SIZE(cu_copy_attributes, CUmemcpyAttributes);
SAME_PLACE(cu_copy_attributes, source_order, CUmemcpyAttributes, srcAccessOrder);
SAME_PLACE(cu_copy_attributes, source_hint, CUmemcpyAttributes, srcLocHint);
SAME_PLACE(cu_copy_attributes, target_hint, CUmemcpyAttributes, dstLocHint);
SAME_PLACE(cu_copy_attributes, flags, CUmemcpyAttributes, flags);
#endif

SAME_SIZE(dvmm_phys, CUmemGenericAllocationHandle);
SAME_SIZE(cu_result, CUresult);
SAME_SIZE(cu_device_attribute, CUdevice_attribute);
SAME_SIZE(cu_granularity_option, CUmemAllocationGranularity_flags);
SAME_SIZE(cu_capture_status, CUstreamCaptureStatus);
SAME_SIZE(cu_capture_mode, CUstreamCaptureMode);
SAME_SIZE(cu_handle_type, CUmemAllocationHandleType);

/* ---- Constants ----------------------------------------------------------------------------- */

CU_CONSTANTS(SAME_CONSTANT)
#if CUDA_VERSION >= 12020
CU_CONSTANTS_12020(SAME_CONSTANT)
#endif

#if CUDA_VERSION >= 12030
CU_CONSTANTS_12030(SAME_CONSTANT)
_Static_assert(sizeof(CUmemFabricHandle) == DVMM_FABRIC_BYTES, "a fabric handle");
#endif
#if CUDA_VERSION >= 12080
CU_CONSTANTS_12080(SAME_CONSTANT)
#endif

SAME_VALUE(DVMM_SUCCESS, CUDA_SUCCESS);
SAME_VALUE(DVMM_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(DVMM_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(DVMM_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(DVMM_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME_VALUE(DVMM_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME_VALUE(DVMM_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME_VALUE(DVMM_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME_VALUE(DVMM_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(DVMM_OPERATING_SYSTEM, CUDA_ERROR_OPERATING_SYSTEM);
SAME_VALUE(DVMM_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME_VALUE(DVMM_ILLEGAL_STATE, CUDA_ERROR_ILLEGAL_STATE);
SAME_VALUE(DVMM_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME_VALUE(DVMM_NOT_READY, CUDA_ERROR_NOT_READY);
SAME_VALUE(DVMM_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_VALUE(DVMM_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME_VALUE(DVMM_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(DVMM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(DVMM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME_VALUE(DVMM_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_VALUE(DVMM_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME_VALUE(DVMM_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(DVMM_UNKNOWN, CUDA_ERROR_UNKNOWN);

SAME_VALUE(DVMM_SHARE_NONE, CU_MEM_HANDLE_TYPE_NONE);
SAME_VALUE(DVMM_SHARE_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_VALUE(DVMM_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME_VALUE(DVMM_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_VALUE(DVMM_ACCESS_RW, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_VALUE(DVMM_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(DVMM_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(DVMM_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(DVMM_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(DVMM_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(DVMM_CAPTURE_BROKEN, CU_STREAM_CAPTURE_STATUS_INVALIDATED);

/* ---- Functions ----------------------------------------------------------------------------- */

#include "vmm/cuda/abi_theirs.h"

CU_REQUIRED_FUNCTIONS(SAME_FUNCTION)
#if CUDA_VERSION >= 12050
#define PFN_cuStreamGetCtx_v2_v12050 PFN_cuStreamGetCtx_v12050 /* has no suffix there */
CU_OPTIONAL_FUNCTIONS_12050(SAME_FUNCTION)
#endif
#if CUDA_VERSION >= 12080
#define cu_copy_attributes CUmemcpyAttributes
CU_OPTIONAL_FUNCTIONS_12080(SAME_FUNCTION)
#endif

#endif
